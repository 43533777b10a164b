"""T5's relative position bias: the bucket, or the value, of each pair of a query and a key.

It depends only on the distance between them, so a call over a cache needs just the rows of its own
positions. Knows no tokens and no model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import UsageError
from kvcast.inspect.grid import grid
from kvcast.inspect.schedule import MOST_POSITIONS
from kvcast.inspect.units import plural
from kvcast.spec.position_encodings import bucket_of

HIDDEN = "."


@dataclass(frozen=True, kw_only=True)
class Bias:
    """The text to show for each bucket of both stacks.

    Attributes:
        title: names the model, or the buckets.
        max_distance: from this distance on, all share a bucket.
        encoder: texts [buckets].
        decoder: texts [buckets].

    """

    title: str
    max_distance: int
    encoder: Sequence[str]
    decoder: Sequence[str]

    @classmethod
    def plain(cls, buckets: int, max_distance: int) -> Self:
        """Show the buckets' numbers; raises UsageError for impossible sizes."""
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
        """Return the matrix of a whole sequence, for both stacks, as text."""
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
        """Return the decoder's rows for `new` tokens from position `start` on, as text."""
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
