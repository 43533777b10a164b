"""Text encoders on any runtime: texts of different lengths in batches, and pooled to vectors.

Texts are sorted by length, so that a batch has little padding. A text's vector does not depend on
the batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import Float32, Int64

_TOKENS = 2048
"""Tokens of a batch, padding included, unless one text has more."""
_PADDING = 4
"""A batch has at most one padding token in this number."""


@dataclass(frozen=True, eq=False)
class EncodedSource:
    tokens: Int64  # [t], at least one
    segments: Int64  # [t], 1 for the tokens of a pair's second text

    def __len__(self) -> int:
        return len(self.tokens)


class TextEncoderRuntime(ABC):
    """Runs `encode`, and `head` if the model has one; `dimensions` by name, as in manifests."""

    def __init__(
        self, dimensions: Mapping[str, Any], programs: Mapping[str, Sequence[str]]
    ) -> None:
        self._width: int = dimensions["stack"]["width"]
        self._pool = _POOLINGS[dimensions["pooling"]]
        self._outputs = [projection["outputs"] for projection in dimensions["head"]][-1:]
        self._inputs = programs["encode"]

    @abstractmethod
    def run(
        self, program: str, given: Mapping[str, NDArray[Any]], shape: tuple[int, ...]
    ) -> Float32:
        """Run a program, whose result has this shape."""

    def vectors(self, sources: Sequence[EncodedSource]) -> Float32:
        """Return the pooled and projected vectors [n, outputs]."""
        pooled_nw = np.empty((len(sources), self._width), np.float32)
        for batch in batches([len(source) for source in sources]):
            hidden_btw = self._encode([sources[i] for i in batch])
            for i, hidden_tw in zip(batch, hidden_btw, strict=True):
                pooled_nw[i] = self._pool(hidden_tw[: len(sources[i])])
        if not self._outputs or not len(sources):
            return pooled_nw
        return self.run("head", {"pooled": pooled_nw}, (len(sources), *self._outputs))

    def _encode(self, sources: Sequence[EncodedSource]) -> Float32:
        lengths = np.array([len(source) for source in sources], np.int32)
        tokens_bt = np.zeros((len(sources), lengths.max()), np.int64)
        segments_bt = np.zeros_like(tokens_bt)
        for i, source in enumerate(sources):
            tokens_bt[i, : len(source)] = source.tokens
            segments_bt[i, : len(source)] = source.segments
        arrays = (tokens_bt, lengths, segments_bt)
        given = dict(zip(self._inputs, arrays, strict=False))
        return self.run("encode", given, (*tokens_bt.shape, self._width))


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of texts that are encoded at once, each index in one list."""
    batch: list[int] = []
    held = 0
    for i in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        longest = lengths[batch[0]] if batch else 0
        padded = longest * (len(batch) + 1)
        if batch and (padded > _TOKENS or (padded - held - lengths[i]) * _PADDING > padded):
            yield batch
            batch, held = [], 0
        batch.append(i)
        held += lengths[i]
    if batch:
        yield batch


_POOLINGS: Mapping[str, Callable[[Float32], Float32]] = {
    "mean": lambda hidden_tw: hidden_tw.mean(axis=0),
    "cls": lambda hidden_tw: hidden_tw[0],
    "max": lambda hidden_tw: hidden_tw.max(axis=0),
    "last": lambda hidden_tw: hidden_tw[-1],
}
