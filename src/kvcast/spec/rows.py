"""Rows of a batch, some of which take part in a call. Knows nothing of tensors."""

from collections.abc import Iterator, Sequence


def neighbours(rows: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield runs of rows side by side that have equally many new tokens, and how many.

    Args:
        rows: ascending, without repeats.
        counts: of each row's new tokens.

    """
    first = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or (rows[i], counts[i]) != (rows[i - 1] + 1, counts[i - 1]):
            yield slice(rows[first], rows[i - 1] + 1), counts[first]
            first = i
