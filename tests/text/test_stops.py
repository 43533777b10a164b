"""A text ends before its first stop string, however it is split into pieces."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvcast.errors import UsageError
from kvcast.text.texts import StopStrings

_FEW_LETTERS = st.text(st.sampled_from("ab\n"), max_size=30)
_STOPS = st.lists(st.text(st.sampled_from("ab\n"), min_size=1, max_size=5), max_size=4)


def shown_by_naive_search(text: str, stops: list[str]) -> tuple[str, bool]:
    """Search character by character, by the definition."""
    for end in range(len(text) + 1):
        complete = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(complete)], True
    return text, False


@given(text=_FEW_LETTERS, stops=_STOPS, cuts=st.lists(st.integers(0, 30)))
@example(text="aaab", stops=["aab"], cuts=[1, 2, 3])
@example(text="abab\nb", stops=["ababb", "\n"], cuts=[2, 4])
@example(text="abba", stops=["abba", "bb"], cuts=[])
def test_pieces_make_no_difference(text: str, stops: list[str], cuts: list[int]):
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    matcher = StopStrings(tuple(stops)).matcher()
    shown, stopped = "", False
    for start, end in pairwise(bounds):
        safe, stopped = matcher.push(text[start:end])
        shown += safe
        assert text.startswith(shown)
    assert (shown + matcher.finish(), stopped) == shown_by_naive_search(text, stops)


@given(text=_FEW_LETTERS, stops=_STOPS)
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stops: list[str]):
    matcher = StopStrings(tuple(stops)).matcher()
    shown = ""
    for i, character in enumerate(text):
        safe, stopped = matcher.push(character)
        shown += safe
        if stopped:
            return
        held = text[: i + 1].removeprefix(shown)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_nothing_comes_after_the_end():
    matcher = StopStrings(("\n\n", "User:")).matcher()
    assert matcher.push("Hello. Us") == ("Hello. ", False)
    assert matcher.push("er: more") == ("", True)
    assert matcher.push("and more") == ("", True)
    assert matcher.finish() == ""


def test_an_empty_stop_string_is_refused():
    with pytest.raises(UsageError, match="a stop string is empty"):
        StopStrings(("a", ""))
