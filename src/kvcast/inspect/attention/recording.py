"""Drives a runtime in its place, and keeps what each sequence was fed.

A model over it writes its text as always, so that nothing of a family is told again here: its
prompt, its tokens and its encoded input are those that the runtime saw. Knows no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import Float32, Int64, Tokens


@dataclass(eq=False)
class FedSequence:
    """One sequence, until its row was emptied.

    Attributes:
        source: what `encode` took for the input that the row reads, each [1, ...]; () for none.
        prompt: how many tokens came before the first that the model chose.
        tokens: the tokens that were fed. The last one that was chosen need not be among them.

    """

    source: tuple[NDArray[Any], ...] = ()
    prompt: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def tokens_s(self) -> Int64:
        """The tokens [s]."""
        return np.array(self.tokens, np.int64)


class RecordingRuntime:
    """A runtime whose cache has one row.

    Attributes:
        sequences: in the order in which they were begun.

    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._source: tuple[NDArray[Any], ...] = ()
        self.sequences: list[FedSequence] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def encode(self, cache: Any, slots: Sequence[int], *source: NDArray[Any]) -> Any:
        """Encode one input; see `kvcast.runtimes.base.EncoderDecoderOf.encode`."""
        self._source = tuple(part[:1].copy() for part in source)
        return self._runtime.encode(cache, slots, *source)

    def prefill(self, tokens: Tokens, cache: Any, *rest: Any, **others: Any) -> tuple[Float32, Any]:
        """Append a chunk of a prompt; see `kvcast.runtimes.base.RuntimeOf.prefill`."""
        sequence = self._fed(tokens, cache)
        sequence.prompt = len(sequence.tokens)
        result: tuple[Float32, Any] = self._runtime.prefill(tokens, cache, *rest, **others)
        return result

    def decode(self, tokens: Tokens, cache: Any, *rest: Any, **others: Any) -> tuple[Float32, Any]:
        """Append tokens; see `kvcast.runtimes.base.RuntimeOf.decode`."""
        self._fed(tokens, cache)
        result: tuple[Float32, Any] = self._runtime.decode(tokens, cache, *rest, **others)
        return result

    def _fed(self, tokens: Tokens, cache: Any) -> FedSequence:
        [new] = tokens
        kept = int(cache.lengths[0])
        if not kept:
            self.sequences.append(FedSequence(source=self._source))
        sequence = self.sequences[-1]
        # A row that was cut back holds fewer than were fed.
        sequence.tokens[kept:] = np.asarray(new).tolist()
        return sequence
