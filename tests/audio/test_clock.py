"""Gaps between frames of 20 ms, by their times."""

import numpy as np
import pytest

from kvcast.audio.repair import FrameClock

LASTS = 0.02
EXACT = LASTS * np.arange(200)


def gaps(times, *, origin=0.0, is_damaged=False):
    """Return the gaps by the index of the frame that they precede, and the position at the end."""
    clock = FrameClock(origin, is_damaged=is_damaged)
    following = [*times[1:], None]
    result = {
        index: round(gap, 6)
        for index, (time, after) in enumerate(zip(times, following, strict=True))
        if (gap := clock.gap_before(time, LASTS, after))
    }
    return result, round(clock.position, 6)


def late(start, seconds):
    return EXACT + np.where(np.arange(200) >= start, seconds, 0)


CASES = {
    "exact": (EXACT, {}),
    "rounded": (np.round(EXACT, 3) + 0.0004, {}),
    "late": (EXACT + 2, {0: 2.0}),
    "one frame lost": (late(100, LASTS), {100: LASTS}),
    "one of the first lost": (late(5, LASTS), {}),
    "much lost": (late(100, 3), {100: 3.0}),
    "a clock": (EXACT + 0.03 * np.sin(np.arange(200)), {}),
    "a slow clock": (EXACT * 1.0005, {}),
    "begins anew": (late(100, -2), {}),
    "begins elsewhere": (late(100, 10_000), {}),
    "a damaged time": (np.where(np.arange(200) == 100, 500, EXACT), {}),
    "a damaged time before": (np.where(np.arange(200) == 100, -500, EXACT), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_only_missing_frames_become_a_gap(name):
    times, expected = CASES[name]
    actual, position = gaps(times)
    assert actual == expected
    assert position == pytest.approx(200 * LASTS + sum(expected.values()))


def test_a_drifting_clock_is_followed_from_a_tenth_of_a_second_on():
    actual, position = gaps(EXACT * 1.1)
    assert all(0.1 <= gap < 0.13 for gap in actual.values())
    assert position == pytest.approx(200 * LASTS * 1.1, abs=0.12)


def test_where_frames_are_missing_small_gaps_count_of_a_clock_too():
    times = late(100, 0.05) + 0.005 * np.sin(np.arange(200))
    assert gaps(times)[0] == {}
    assert list(gaps(times, is_damaged=True)[0]) == [100]


def test_frames_without_times_follow_one_another():
    assert gaps([None] * 5, origin=None) == ({}, 5 * LASTS)


def test_a_recording_without_a_beginning_begins_with_its_first_frame():
    assert gaps(EXACT + 7, origin=None) == ({}, 200 * LASTS)
