"""Seconds of joined parts map to seconds of the recording, never into skipped audio."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcast.audio.timeline import Part, Timeline, between, common

SECOND = 16_000


def seconds(*parts: tuple[float, float]) -> tuple[Part, ...]:
    return tuple(Part(round(start * SECOND), round(end * SECOND)) for start, end in parts)


# 5 s to 10 s, and 70 s to 80 s: 15 s in all, with a joint at 5.
TWO = Timeline(seconds((5, 10), (70, 80)), slack=0.4)


@st.composite
def some_parts(draw: st.DrawFn) -> list[Part]:
    """Ordered and disjoint; some touch."""
    lengths = draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=8)
    )
    parts, end = [], 0
    for gap, length in lengths:
        parts.append(Part((end + gap) * 1600, (end + gap + length) * 1600))
        end += gap + length
    return parts


def test_times_move_by_skipped_audio_before_them() -> None:
    assert TWO.original(1.0, 2.0) == (6.0, 7.0)
    assert TWO.original(7.0, 9.5) == (72.0, 74.5)
    assert TWO.duration == 15


def test_a_joint_is_an_end_and_a_start() -> None:
    assert TWO.joints == (5.0,)
    assert TWO.original(3.0, 5.0) == (8.0, 10.0)
    assert TWO.original(5.0, 8.0) == (70.0, 73.0)


def test_a_span_across_a_joint_keeps_both_parts() -> None:
    assert TWO.original(2.0, 9.0) == (7.0, 74.0)


@pytest.mark.parametrize(
    ("said", "was"),
    [
        ((4.7, 8.0), (70.0, 73.0)),  # begins in the padding after the speech before
        ((2.0, 5.3), (7.0, 10.0)),  # ends in the padding before the next speech
        ((4.9, 5.3), (70.0, 70.3)),  # in both: most of it comes after the joint
        ((4.7, 5.1), (9.7, 10.0)),  # most of it comes before
    ],
)
def test_padding_on_the_other_side_of_a_joint_does_not_count(said, was):
    assert TWO.original(*said) == pytest.approx(was)


def test_parts_between_are_kept_when_both_edges_are_padding() -> None:
    three = Timeline(seconds((0, 5), (20, 25), (40, 45)), slack=0.4)
    assert three.original(4.8, 10.2) == pytest.approx((20.0, 25.0))


def test_parts_that_touch_are_joints_and_change_no_time() -> None:
    cut = Timeline(seconds((5, 8), (8, 12), (12, 13)), slack=0.4)
    assert cut.joints == (3.0, 7.0)
    assert cut.original(2.9, 7.1) == pytest.approx((7.9, 12.1))


def test_times_past_the_end_are_the_end() -> None:
    assert TWO.original(14.0, 17.0) == (79.0, 80.0)
    assert TWO.original(16.0, 17.0) == (80.0, 80.0)


def test_no_parts_change_no_time() -> None:
    assert Timeline(()).original(1.0, 2.0) == (1.0, 2.0)
    assert Timeline(()).joints == ()
    assert Timeline(()).duration == 0


@given(parts=some_parts(), slack=st.floats(0, 1), first=st.floats(0, 1), second=st.floats(0, 1))
def test_every_time_lies_in_a_part(parts, slack, first, second):
    timeline = Timeline(parts, slack=slack)
    start, end = sorted([first * timeline.duration, second * timeline.duration])
    began, ended = timeline.original(start, end)
    assert began <= ended + 1e-9
    for moment in (began, ended):
        assert any(a - 1e-9 <= moment <= b + 1e-9 for a, b in (part.seconds for part in parts))


@given(parts=some_parts(), place=st.floats(0.01, 0.99), slack=st.floats(0, 1))
def test_a_span_in_one_part_keeps_its_length(parts, place, slack):
    timeline = Timeline(parts, slack=slack)
    ends = list(accumulate(part.samples for part in parts))
    for part, end in zip(parts, ends, strict=True):
        length = place * part.samples / SECOND
        start = (end - part.samples) / SECOND
        began, ended = timeline.original(start, start + length)
        assert (began, ended) == pytest.approx((part.seconds[0], part.seconds[0] + length))


@given(parts=some_parts(), slack=st.floats(0, 0.3), cuts=st.lists(st.floats(0, 1), max_size=12))
def test_neighbours_stay_in_order(parts: list[Part], slack: float, cuts: list[float]) -> None:
    timeline = Timeline(parts, slack=slack)
    edges = sorted({0.0, *(cut * timeline.duration for cut in cuts)})
    mapped = [timeline.original(*pair) for pair in pairwise(edges)]
    for (_, ended), (began, _) in pairwise(mapped):
        assert ended <= began + 1e-9


@given(parts=some_parts(), rest=st.integers(0, 9))
def test_parts_and_what_lies_between_are_the_recording(parts: list[Part], rest: int) -> None:
    samples = parts[-1].end + 1600 * rest
    everything = sorted([*parts, *between(parts, samples)])
    assert everything[0].start == 0
    assert everything[-1].end == samples
    assert all(a.end == b.start for a, b in pairwise(everything))


def test_nothing_between_is_left_where_nothing_is_spoken() -> None:
    assert between((), 100) == (Part(0, 100),)
    assert between((), 0) == ()


def test_common_parts() -> None:
    spoken = seconds((5, 10), (70, 80))
    assert common(spoken, seconds((0, 6), (8, 75))) == seconds((5, 6), (8, 10), (70, 75))
    assert common(spoken, seconds((10, 70))) == ()
