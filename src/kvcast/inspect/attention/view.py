"""A view of a sequence's attention: the mean of heads, with its tokens, as JSON or a table."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.errors import KvcastError, UsageError
from kvcast.inspect.attention.model import FedSequence, InspectedModel
from kvcast.inspect.attention.weights import TOLERANCE, LayerWeights
from kvcast.inspect.schedule import MOST_POSITIONS
from kvcast.runtimes.base import Float32, Int64

FORMAT, VERSION = "kvcast.inspect.attention", 1

Over: TypeAlias = Literal["sound", "source", "text"]
"""What is attended to: a sound, a source of tokens that an encoder read, or the text itself."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token; `text`: its text, or its id in angle brackets."""

    id: int
    text: str


Head: TypeAlias = tuple[int, int]
"""A layer of the decoder, and a head of it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionView:
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
        rows, columns = self.weights_st.shape
        over = {
            "sound": f"{columns * self.seconds:.1f} s of audio",
            "source": f"a source of {columns} tokens",
            "text": "itself",
        }[self.over]
        return f"{self.model}: a text of {rows} tokens over {over}; {_describe_heads(self.heads)}"

    def of_audio(self, seconds: float, shown: int) -> Self:
        return replace(self, seconds=seconds, weights_st=self.weights_st[:, :shown])

    def document(self) -> dict[str, Any]:
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


def _describe_heads(heads: Sequence[Head]) -> str:
    if len(heads) == 1:
        [(layer, head)] = heads
        return f"layer {layer}, head {head}"
    layers = sorted({layer for layer, _ in heads})
    return f"mean of {len(heads)} heads of layer{'s' * (len(layers) > 1)} {spans(layers)}"


_LEVELS = " .:-=+*#%@"
_WIDTH = 60
_MOST = 3


def render(view: AttentionView) -> str:
    """Return a line for each row: over audio its course in time, else the heaviest tokens."""
    names = [json.dumps(token.text, ensure_ascii=False) for token in view.rows]
    width = max(map(len, names))
    lines = _courses(view) if view.over == "sound" else _heaviest(view)
    described = [
        f"{name.rjust(width)}  {line}".rstrip() for name, line in zip(names, lines, strict=True)
    ]
    return "\n".join([view.title, _legend(view), "", *described, ""])


def _legend(view: AttentionView) -> str:
    if view.over == "sound":
        bins = min(_WIDTH, view.weights_st.shape[1])
        each = view.weights_st.shape[1] * view.seconds / bins
        return (
            "rows: tokens, as they are generated; when the weight is largest, and its course in "
            f"columns of {each:.2g} s"
        )
    rows = "tokens, as they are generated" if view.over == "source" else "tokens, as they are read"
    return f"rows: {rows}; the {_MOST} positions with the largest weights"


def _courses(view: AttentionView) -> Iterator[str]:
    for weights_t in view.weights_st:
        seconds = (int(weights_t.argmax()) + 0.5) * view.seconds
        yield f"{seconds:6.2f} s  |{_course(weights_t)}|"


def _course(weights_t: Float32) -> str:
    bins = min(_WIDTH, len(weights_t))
    ends = np.arange(bins) * len(weights_t) // bins
    sums_b = np.add.reduceat(weights_t, ends)
    levels_b = np.rint(sums_b / max(float(sums_b.max()), 1e-30) * (len(_LEVELS) - 1))
    return "".join(_LEVELS[int(level)] for level in levels_b)


def _heaviest(view: AttentionView) -> Iterator[str]:
    for weights_t in view.weights_st:
        best = np.argsort(-weights_t, kind="stable")[:_MOST]
        yield "  ".join(
            f"{weights_t[i]:.2f} {i}:{json.dumps(view.columns[i].text, ensure_ascii=False)}"
            for i in best
            if weights_t[i] > 0
        )


@dataclass(frozen=True, kw_only=True)
class HeadChoice:
    layer: int | None = None
    head: int | None = None
    usual: Sequence[Head] = ()  # the heads used if neither is given; none for all

    def __contains__(self, head: Head) -> bool:
        if self.layer is None and self.head is None:
            return not self.usual or head in self.usual
        return self.layer in (None, head[0]) and self.head in (None, head[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class MeanWeights:
    heads: Sequence[Head]
    weights_st: Float32
    error: float


def mean_weights(layers: Iterable[LayerWeights], choice: HeadChoice) -> MeanWeights:
    heads: list[Head] = []
    counts: dict[int, int] = {}
    errors: list[float] = []
    total_st: Float32 | None = None
    for each in layers:
        counts[each.layer] = len(each.weights_hst)
        errors.append(each.error)
        chosen = [head for head in range(len(each.weights_hst)) if (each.layer, head) in choice]
        if chosen:
            heads += [(each.layer, head) for head in chosen]
            sum_st = each.weights_hst[chosen].sum(axis=0)
            total_st = sum_st if total_st is None else total_st + sum_st
    if total_st is None:
        raise _missing(choice, counts)
    error = float(np.max(errors))
    if not error <= TOLERANCE:  # NaN is not
        raise KvcastError(
            f"weights times values differ from the layer's own result by {error:.2g} of its "
            "largest number; please report this with the model's name"
        )
    return MeanWeights(heads=heads, weights_st=total_st / np.float32(len(heads)), error=error)


def spans(indices: Iterable[int]) -> str:
    """Format as `0 to 3, 7`."""
    found: list[list[int]] = []
    for number in sorted(indices):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in found)


def _missing(choice: HeadChoice, counts: dict[int, int]) -> UsageError:
    if choice.layer is not None and choice.layer not in counts:
        return UsageError(
            f"there is no attention in layer {choice.layer}: give one of {spans(counts)}"
        )
    most = max(counts.values() if choice.layer is None else [counts[choice.layer]])
    return UsageError(f"there is no head {choice.head}: give one of 0 to {most - 1}")


_WINDOW = 30.0
"""Seconds that Whisper pads audio to."""
_ANSWER = 64
"""New tokens that answer a source, at most, unless another number is given."""


def encoded_seconds(model: InspectedModel) -> float:
    frames = model.facts.get("mel_frames") or model.model.recognition.longest
    return float(frames) / 100


def over_audio(
    model: InspectedModel,
    samples: Float32,
    language: str | None,
    layer: int | None,
    head: int | None,
) -> AttentionView:
    """Attention of each token of a transcript to the audio, mono at 16 kHz.

    UsageError for an unknown layer, head or language; KvcastError if no speech was recognized.
    """
    sequence = model.transcribed(samples, language)
    tokens_s = sequence.tokens_s
    # Decoder-only models read the audio embeddings as token ids beyond the vocabulary.
    is_audio = tokens_s >= model.reader.checkpoint.dimensions.vocab_size
    columns = np.flatnonzero(is_audio) if is_audio.any() else None
    view = _view(model, sequence, "sound", layer, head, columns)
    positions = view.weights_st.shape[1]
    seconds = len(samples) / SAMPLE_RATE
    each = _seconds_of(model, samples, positions, seconds) / positions
    shown = min(positions, ceil(seconds / each))
    return view.of_audio(each, shown)


def over_text(
    model: InspectedModel, text: str, new: int | None, layer: int | None, head: int | None
) -> AttentionView:
    """Attention of a text's tokens to itself, or of an answer's to its source.

    At most `new` tokens are generated: by default 0 after a text, 64 in answer to one.
    """
    answers = model.kind == "cross"
    sequence = model.read(text, new if new is not None else _ANSWER if answers else 0)
    return _view(model, sequence, "source" if answers else "text", layer, head, None)


def _view(
    model: InspectedModel,
    sequence: FedSequence,
    over: Over,
    layer: int | None,
    head: int | None,
    columns: Int64 | None,
) -> AttentionView:
    rows = range(len(sequence.tokens))
    if over != "text":
        # A token's row is the position that generated it.
        rows = range(sequence.prompt - 1, len(sequence.tokens) - 1)
        if not rows:
            raise KvcastError(f"{model.name} generated nothing")
    if len(sequence.tokens) > MOST_POSITIONS:
        raise UsageError(
            f"{len(sequence.tokens):,} tokens are too many to show (at most {MOST_POSITIONS:,}): "
            "give a shorter text"
        )
    mean = mean_weights(
        model.reader.layers(sequence, model.kind),
        HeadChoice(layer=layer, head=head, usual=model.alignment_heads if over == "sound" else ()),
    )
    weights_st = mean.weights_st[list(rows)]
    if columns is not None:
        weights_st = weights_st[:, columns]
    shift = 0 if over == "text" else 1
    return AttentionView(
        model=model.name,
        over=over,
        rows=_spelled(model, [sequence.tokens[row + shift] for row in rows]),
        columns=_columns(model, sequence, over, weights_st.shape[1]),
        heads=mean.heads,
        weights_st=weights_st,
        error=mean.error,
    )


def _columns(
    model: InspectedModel, sequence: FedSequence, over: Over, count: int
) -> Sequence[Token]:
    if over == "sound":
        return ()
    read = sequence.tokens if over == "text" else sequence.source[0][0].tolist()
    return _spelled(model, read[:count])


def _spelled(model: InspectedModel, tokens: Sequence[int]) -> list[Token]:
    return [Token(id=token, text=model.spelled(token)) for token in tokens]


def _seconds_of(model: InspectedModel, samples: Float32, positions: int, seconds: float) -> float:
    """Seconds that the encoder's positions cover: its window's, or the audio's."""
    if "mel_frames" in model.facts:
        return encoded_seconds(model)
    half = model.model.recognition.input(samples[: len(samples) // 2])
    return _WINDOW if half.positions == positions else seconds
