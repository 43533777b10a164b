"""What a reorder copies."""

import numpy as np
import pytest

from kvcast.errors import KvcastError
from kvcast.runtimes.history import History, Move, SourceHistory


def filled(kind: type[History], *rows: list[int]) -> History:
    """A history of rows that took their tokens in one chunk each."""
    return kind.empty(len(rows), 16).append(range(len(rows)), [np.array(row) for row in rows])


def test_rows_with_one_past_need_no_copy() -> None:
    _, moves = filled(History, *[[5, 6, 7]] * 5).reorder([3, 3, 0, 1, 2])
    assert moves == []


def test_only_what_comes_after_the_parting_is_copied() -> None:
    beams = filled(History, [5, 6, 7, 0], [5, 6, 7, 1], [5, 6, 7, 2])
    beams, moves = beams.reorder([0, 0, 1])
    assert moves == [Move(1, 0, 3, 4), Move(2, 1, 3, 4)]
    # Rows 0 and 1 share four tokens by now: a step later only the fifth differs.
    beams = beams.append([0, 1, 2], [np.array([8]), np.array([9]), np.array([8])])
    _, moves = beams.reorder([1, 1, 2])
    assert moves == [Move(0, 1, 4, 5)]


def test_rows_that_go_on_from_longer_ones_take_the_rest() -> None:
    history, moves = filled(History, [5, 6], [5, 6, 7, 8]).reorder([1, 1])
    assert moves == [Move(0, 1, 2, 4)]
    assert history.lengths.tolist() == [4, 4]


def test_rows_that_go_on_from_shorter_ones_take_all() -> None:
    """A ring may have lost what the shorter one holds."""
    _, moves = filled(History, [5, 6, 7, 8], [5, 6]).reorder([1, 1])
    assert moves == [Move(0, 1, 0, 2)]


def test_rows_of_other_inputs_share_nothing_though_their_tokens_agree() -> None:
    _, moves = filled(History, [5, 6, 7], [5, 6, 7]).reorder([1, 1], unrelated=[0])
    assert moves == [Move(0, 1, 0, 3)]


def test_a_row_that_goes_on_from_an_empty_one_copies_nothing() -> None:
    history, moves = filled(History, [5, 6], [5]).reset([1]).reorder([1, 1])
    assert moves == []
    assert history.lengths.tolist() == [0, 0]


def test_sources_that_begin_alike_share_nothing() -> None:
    _, moves = filled(SourceHistory, [5, 6, 7], [5, 6, 8]).reorder([1, 1])
    assert moves == [Move(0, 1, 0, 3)]


def test_targets_of_one_source_share_it() -> None:
    rows = filled(SourceHistory, [5, 6], [5, 6])
    rows = rows.append([0, 1], [np.array([9, 1]), np.array([9, 2])])
    _, moves = rows.reorder([1, 1])
    assert moves == [Move(0, 1, 3, 4)]


def test_another_number_of_rows_is_no_reorder() -> None:
    with pytest.raises(KvcastError, match="2 rows cannot become 3"):
        filled(History, [5], [6]).reorder([0, 1, 1])
