"""T5's relative position bias: the bucket, or the value, of each query-key pair.

It depends only on the distance between them, so a call over a cache needs just the rows of its own
positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError, UsageError
from kvcast.families.t5 import T5Dimensions
from kvcast.inspect.schedule import MOST_POSITIONS
from kvcast.inspect.units import grid, plural
from kvcast.spec.position_encodings import bucket_of

HIDDEN = "."


@dataclass(frozen=True, kw_only=True)
class Bias:
    """The text to show for each bucket of both stacks."""

    title: str
    max_distance: int  # from this distance on, all share a bucket
    encoder: Sequence[str]
    decoder: Sequence[str]

    @classmethod
    def plain(cls, buckets: int, max_distance: int) -> Self:
        if buckets < 4 or buckets % 4 or buckets > MOST_POSITIONS:
            raise UsageError(f"buckets must be 4, 8, ... up to {MOST_POSITIONS:,}, not {buckets}")
        if max_distance <= buckets // 2:
            raise UsageError(f"distance must be above half of {buckets} buckets: {buckets // 2}")
        names = [str(bucket) for bucket in range(buckets)]
        return cls(
            title=f"{buckets} buckets; distances from {max_distance} on share one",
            max_distance=max_distance,
            encoder=names,
            decoder=names,
        )

    def matrix(self, length: int) -> str:
        _check(length)
        return "\n".join(
            [
                *self._introduction(plural(length, "position")),
                "encoder: half of the buckets for keys after their query",
                *self._encoder_rows(length),
                "",
                *self._decoder_rows(range(length)),
                "",
            ]
        )

    def call(self, start: int, new: int) -> str:
        """Return the decoder's rows for `new` tokens from position `start` on."""
        end = start + new
        _check(end)
        if new == 1:
            label, rows = f"a step at position {start}", "That is the last row"
        else:
            label, rows = (
                f"a chunk at positions {start} to {end - 1}",
                f"Those are the last {new} rows",
            )
        return "\n".join(
            [
                *self._introduction(label),
                *self._decoder_rows(range(start, end)),
                "",
                f"{rows} of the whole matrix of {plural(end, 'position')}, and all that "
                "this call needs.",
                "",
            ]
        )

    def _introduction(self, label: str) -> list[str]:
        return [
            f"{self.title}; {label}",
            f"rows: queries; columns: keys; {HIDDEN} is not seen",
            "",
        ]

    def _encoder_rows(self, length: int) -> Iterator[str]:
        distances = np.arange(length) - np.arange(length)[:, None]
        return _grid(range(length), self._words(self.encoder, distances, bidirectional=True))

    def _decoder_rows(self, queries: range) -> Iterator[str]:
        distances = np.arange(queries.stop) - np.array(queries)[:, None]
        words = self._words(self.decoder, distances, bidirectional=False)
        yield "decoder: all buckets for keys up to their query"
        yield from _grid(queries, np.where(distances > 0, HIDDEN, words))

    def _words(
        self, shown: Sequence[str], distances: NDArray[np.int64], *, bidirectional: bool
    ) -> NDArray[np.str_]:
        buckets = bucket_of(distances, len(shown), self.max_distance, bidirectional=bidirectional)
        return np.array(shown)[buckets]


def _grid(queries: range, words: NDArray[np.str_]) -> Iterator[str]:
    return grid(list(map(str, queries)), list(map(str, range(queries.stop))), words.tolist())


def _check(positions: int) -> None:
    if positions > MOST_POSITIONS:
        raise UsageError(
            f"{positions:,} positions are too many to show (at most {MOST_POSITIONS:,}): give fewer"
        )


def bias_of(model: str, head: int) -> Bias:
    # A drawing without a model needs none of these.
    from kvcast.bundle.manifest import is_bundle
    from kvcast.checkpoints.source import locate, open_checkpoint

    located = locate(model)
    if is_bundle(located):
        raise UsageError(f"{model} is a bundle: give the checkpoint that it was exported from")
    checkpoint = open_checkpoint(located)
    if not isinstance(checkpoint.dimensions, T5Dimensions):
        raise KvcastError(
            f"{model} is a {checkpoint.family.name} model: only a T5 has a relative position bias"
        )
    sizes = checkpoint.dimensions
    if head >= sizes.heads:
        raise UsageError(f"{model} has heads 0 to {sizes.heads - 1}, and no head {head}")
    if sizes.layer_bias:
        raise KvcastError(f"{model} has biases of each layer: only one for all layers is shown")
    encoder, decoder = (
        [f"{number:.2f}" for number in checkpoint.tensors[f"{stack}.bias.weight"][:, head]]
        for stack in ("encoder", "decoder")
    )
    return Bias(
        title=f"{model}, head {head}; {sizes.buckets} buckets; distances from "
        f"{sizes.max_distance} on share one",
        max_distance=sizes.max_distance,
        encoder=encoder,
        decoder=decoder,
    )
