"""Texts that repeat themselves are told from refrains, counting and emphasis."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcast.whisper.requests import Repetition, repetition, without_repetition

EOT = 1000
BEGIN = 2000
LINE = list(range(12))


def repeated(tokens: Sequence[int]) -> Repetition | None:
    return repetition(tokens, EOT)


def test_four_copies_and_48_tokens_are_a_repetition():
    assert repeated(LINE * 4) == Repetition(begin=0, end=12, copies=4)
    assert repeated([7] * 48) == Repetition(begin=0, end=1, copies=48)
    assert repeated([20, 21, *LINE * 4]) == Repetition(begin=2, end=14, copies=4)


@pytest.mark.parametrize(
    "spoken",
    [
        [],
        [7] * 47,  # "no, no, no"
        LINE * 3,
        [*LINE, *LINE[:11], *LINE, *LINE],
        [*LINE[:11], 99, *LINE * 3],  # the first line is another
        list(range(20)) * 3,
        [*LINE * 8, 30],  # it went on
        list(range(200)),
    ],
)
def test_less_is_none(spoken: list[int]):
    assert repeated(spoken) is None


def test_a_last_copy_may_be_unfinished():
    assert repeated(LINE * 4 + LINE[:5]) == Repetition(begin=0, end=12, copies=4)
    assert repeated([5, 6] * 24 + [5]) == Repetition(begin=0, end=2, copies=24)


def test_timestamps_between_copies_do_not_hide_them():
    spoken = [token for i in range(6) for token in (BEGIN + i, *LINE, BEGIN + i + 1)]
    again = repeated([BEGIN, 20, 21, BEGIN + 5, *spoken])
    assert again == Repetition(begin=5, end=17, copies=6)


@given(
    before=st.lists(st.integers(0, 3), max_size=30),
    copy=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    copies=st.integers(1, 60),
    stamps=st.lists(st.integers(0, 200), max_size=6),
)
def test_whatever_is_found_is_there(before, copy, copies, stamps):
    tokens = before + copy * copies
    for place in stamps:
        tokens.insert(place, BEGIN + 5)
    again = repeated(tokens)
    if copies >= 4 and len(copy) * copies >= 48:
        assert again is not None
    if again is None:
        return
    text = [token for token in tokens[again.begin :] if token < EOT]
    first = [token for token in tokens[again.begin : again.end] if token < EOT]
    assert tokens[again.begin] < EOT
    assert tokens[again.end - 1] < EOT
    assert again.copies >= 4
    assert len(text) >= 48
    assert (first * (again.copies + 1))[: len(text)] == text


def kept(tokens: list[int]) -> tuple[int, ...]:
    again = repeated(tokens)
    assert again is not None
    return without_repetition(tokens, again, BEGIN)


def test_finished_segments_before_a_repetition_are_kept_and_it_is_not():
    finished = [BEGIN, 20, 21, BEGIN + 50, BEGIN + 50]
    assert kept([*finished, *LINE * 5]) == tuple(finished)
    assert kept([*finished, 22, *LINE * 5]) == (*finished, 22)


def test_otherwise_the_first_copy_is_kept_as_far_as_its_timestamp():
    assert kept([BEGIN, 20, *LINE * 5]) == (BEGIN, 20, *LINE)
    segments = [token for i in range(5) for token in (BEGIN + i, *LINE, BEGIN + i + 1)]
    assert kept(segments) == (BEGIN, *LINE, BEGIN + 1)
    assert kept(LINE * 5) == tuple(LINE)
