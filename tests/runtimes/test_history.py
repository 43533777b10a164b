"""What a reorder copies."""

import numpy as np
import pytest

from kvcast.errors import KvcastError
from kvcast.runtimes.history import History, Moves


def holding(*lengths: int) -> History:
    """A history of rows that took so many tokens in one chunk each."""
    return grown(History.empty(len(lengths), 16), *lengths)


def grown(history: History, *counts: int) -> History:
    """The history after rows took so many more tokens; those of no new tokens take no part."""
    new = {row: np.zeros(count, np.int64) for row, count in enumerate(counts) if count}
    return history.append(list(new), list(new.values()))


def fanned_out(length: int, rows: int) -> History:
    """Rows that all continue the first."""
    return holding(*[length] + [0] * (rows - 1)).reorder([0] * rows)[0]


def test_rows_with_one_past_need_no_copy() -> None:
    beams, moves = holding(3, 0, 0, 0, 0).reorder([0] * 5)
    assert moves == [Moves([1, 2, 3, 4], [0] * 4, 0, 3)]
    _, moves = beams.reorder([3, 3, 0, 1, 2])
    assert not moves


def test_only_what_comes_after_the_parting_is_copied() -> None:
    beams = grown(fanned_out(3, 3), 1, 1, 1)
    beams, moves = beams.reorder([0, 0, 1])
    assert moves == [Moves([1, 2], [0, 1], 3, 4)]
    # Rows 0 and 1 share four positions by now: a step later only the fifth differs.
    beams, moves = grown(beams, 1, 1, 1).reorder([1, 1, 2])
    assert moves == [Moves([0], [1], 4, 5)]
    # Row 2 parted from both before that.
    _, moves = beams.reorder([0, 2, 2])
    assert moves == [Moves([1], [2], 3, 5)]


def test_rows_that_go_on_from_longer_ones_take_the_rest_and_from_shorter_ones_all() -> None:
    """A ring may have lost what the shorter one holds."""
    history, moves = grown(fanned_out(2, 2), 0, 2).reorder([1, 1])
    assert moves == [Moves([0], [1], 2, 4)]
    assert history.lengths.tolist() == [4, 4]
    _, moves = grown(fanned_out(2, 2), 2, 0).reorder([1, 1])
    assert moves == [Moves([0], [1], 0, 2)]


def test_rows_that_read_apart_share_nothing() -> None:
    """Whatever they read: another input, a UniLM's other source, or the same tokens."""
    _, moves = holding(3, 3).reorder([1, 1])
    assert moves == [Moves([0], [1], 0, 3)]


def test_a_row_that_was_emptied_shares_nothing() -> None:
    history = grown(fanned_out(3, 3).reset([1]), 0, 3, 0)
    _, moves = history.reorder([0, 0, 0])
    assert moves == [Moves([1], [0], 0, 3)]


def test_a_row_that_goes_on_from_an_empty_one_copies_nothing() -> None:
    history, moves = fanned_out(2, 2).reset([1]).reorder([1, 1])
    assert not moves
    assert history.lengths.tolist() == [0, 0]


def test_rows_of_another_cache_share_what_they_shared_there() -> None:
    beams = grown(fanned_out(3, 3), 1, 1, 1)
    forked = holding(5, 5, 5, 5).adopt([1, 2, 3], beams, [0, 2, 2])
    assert forked.lengths.tolist() == [5, 4, 4, 4]
    assert not forked.reorder([0, 1, 3, 2])[1]
    assert forked.reorder([0, 2, 2, 3])[1] == [Moves([1], [2], 3, 4)]
    assert forked.reorder([0, 0, 2, 3])[1] == [Moves([1], [0], 0, 5)]


def test_another_number_of_rows_is_no_reorder() -> None:
    with pytest.raises(KvcastError, match="2 rows cannot become 3"):
        holding(1, 1).reorder([0, 1, 1])


def test_a_row_holds_no_more_than_the_capacity() -> None:
    with pytest.raises(KvcastError, match="16 positions and is full"):
        grown(holding(16, 1), 1, 1)
    with pytest.raises(KvcastError, match="a cache of 2 positions cannot hold 3"):
        History.empty(1, 2).adopt([0], holding(3), [0])


def test_a_row_that_was_cut_shares_no_more_than_it_holds() -> None:
    beams = grown(fanned_out(5, 3).truncate([1], [2]), 0, 2, 0)
    assert beams.lengths.tolist() == [5, 4, 5]
    _, moves = beams.reorder([0, 0, 1])
    assert moves == [Moves([1], [0], 2, 5), Moves([2], [1], 0, 4)]


def test_a_row_is_cut_to_what_it_holds_and_rings_kept() -> None:
    history = holding(6, 4).let_go([0], [5])
    for length in (4, 7):
        with pytest.raises(ValueError, match=f"row 0 holds 6 .* to 5 or more, not to {length}"):
            history.truncate([0], [length])
    assert history.truncate([0, 1], [5, 0]).lengths.tolist() == [5, 0]
    assert history.reset([0]).truncate([0], [0]).lengths.tolist() == [0, 4]


def test_a_row_that_continues_another_can_be_cut_as_far_as_that_one() -> None:
    history, _ = holding(6, 4).let_go([0], [5]).reorder([0, 0])
    assert history.shortest.tolist() == [5, 5]
    other, _ = holding(3, 6).let_go([1], [5]).reorder([0, 0])
    assert other.shortest.tolist() == [0, 0]


def test_a_row_that_goes_on_from_an_empty_one_can_be_cut_like_it() -> None:
    turned = holding(8, 0).let_go([0], [4])
    history, moves = turned.reorder([1, 1])
    assert not moves
    assert grown(history, 2, 0).truncate([0], [1]).lengths.tolist() == [1, 0]
