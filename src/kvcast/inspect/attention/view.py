"""What is shown of a text's attention: the mean of heads, with the tokens of rows and columns.

Knows neither a model's insides nor how a view is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

from kvcast.inspect.attention.mean import Head, spans
from kvcast.runtimes.base import Float32

FORMAT, VERSION = "kvcast.inspect.attention", 1

Over: TypeAlias = Literal["sound", "source", "text"]
"""What is attended to: a sound, a source of tokens that an encoder read, or the text itself."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token of a text; `text` is what it spells, or its number in angle brackets."""

    id: int
    text: str


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionView:
    """Averaged weights.

    Attributes:
        model: as the user gave it.
        over: what the columns are.
        rows: tokens. Over the text itself, that which a row's position reads; otherwise that which
            it wrote.
        columns: tokens; none over a sound.
        seconds: of a sound that a column stands for; 0 over tokens.
        heads: those that were averaged.
        weights_st: [rows, columns].
        error: largest difference of weights times values from the layers' own results, relative.

    """

    model: str
    over: Over
    rows: Sequence[Token]
    columns: Sequence[Token] = ()
    seconds: float = 0.0
    heads: Sequence[Head]
    weights_st: Float32
    error: float

    @property
    def title(self) -> str:
        """One line."""
        rows, columns = self.weights_st.shape
        over = {
            "sound": f"{columns * self.seconds:.1f} s of sound",
            "source": f"a source of {columns} tokens",
            "text": "itself",
        }[self.over]
        return f"{self.model}: a text of {rows} tokens over {over}; {_averaged(self.heads)}"

    def of_sound(self, seconds: float, shown: int) -> Self:
        """Return a view over the first `shown` columns of a sound, each of so many seconds."""
        return replace(self, seconds=seconds, weights_st=self.weights_st[:, :shown])

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it; docs/inspect.md documents every field."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "over": self.over,
            "heads": [list(head) for head in self.heads],
            "rows": [_token(token) for token in self.rows],
            "columns": [_token(token) for token in self.columns],
            "seconds_per_column": self.seconds or None,
            "weights": [[round(weight, 6) for weight in row] for row in self.weights_st.tolist()],
            "error": self.error,
        }


def _token(token: Token) -> dict[str, Any]:
    return {"id": token.id, "text": token.text}


def _averaged(heads: Sequence[Head]) -> str:
    if len(heads) == 1:
        [(layer, head)] = heads
        return f"layer {layer}, head {head}"
    layers = sorted({layer for layer, _ in heads})
    return f"mean of {len(heads)} heads of layer{'s' * (len(layers) > 1)} {spans(layers)}"
