"""Groups the rows of a batch that take part in a call. Knows nothing of tensors."""

from collections.abc import Iterator, Sequence


def neighbours(rows: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield runs of adjacent rows with the same number of new tokens, and that number.

    Args:
        rows: ascending, without repeats.
        counts: number of new tokens of each row.

    """
    first = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or (rows[i], counts[i]) != (rows[i - 1] + 1, counts[i - 1]):
            yield slice(rows[first], rows[i - 1] + 1), counts[first]
            first = i
