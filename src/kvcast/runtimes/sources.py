"""What the runtimes of UniLM generators share: sources, whose positions all see each other.

Knows nothing of tensors.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from kvcast.errors import KvcastError
from kvcast.runtimes.base import Int64
from kvcast.runtimes.history import History, Move


class SourceHistory(History):
    """A history of rows whose first chunk is their source.

    There keys and values at a position follow from the whole source, not from the tokens up to
    it. A source's tokens are kept as negative numbers, so that where two rows part it shows
    whether they have one source.
    """

    def append(self, rows: Sequence[int], tokens: Sequence[Int64]) -> Self:
        """See `History`."""
        marked = [
            new if self.lengths[row] else -1 - new for row, new in zip(rows, tokens, strict=True)
        ]
        return super().append(rows, marked)

    def _move(self, target: int, source: int) -> Move | None:
        move = super()._move(target, source)
        if move and (self.tokens_rc[[target, source], move.first] < 0).any():
            return replace(move, first=0)
        return move


def check_sources(sources: Sequence[Int64], max_positions: int) -> None:
    """Raise KvcastError for a source that is empty or longer than the model takes."""
    for i, source in enumerate(sources):
        if not 1 <= len(source) <= max_positions:
            raise KvcastError(
                f"source {i} has {len(source)} tokens and the model takes 1 to {max_positions}"
            )
