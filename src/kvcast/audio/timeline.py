"""Maps times in the parts of a recording that are transcribed to times in the recording."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from kvcast.audio.decode import SAMPLE_RATE


class Part(NamedTuple):
    """Samples `start` to `end` of a recording, at 16 kHz."""

    start: int
    end: int

    @property
    def samples(self) -> int:
        return self.end - self.start

    @property
    def seconds(self) -> tuple[float, float]:
        return self.start / SAMPLE_RATE, self.end / SAMPLE_RATE


def between(parts: Sequence[Part], samples: int) -> tuple[Part, ...]:
    """Return the gaps before, between and after parts of a recording of `samples` samples."""
    edges = [0, *(edge for part in parts for edge in part), samples]
    return tuple(Part(*gap) for gap in zip(edges[::2], edges[1::2], strict=True) if gap[0] < gap[1])


def common(parts: Iterable[Part], others: Sequence[Part]) -> tuple[Part, ...]:
    """Return the intersections of parts with others, both in order and disjoint."""
    shared = (
        Part(max(part.start, other.start), min(part.end, other.end))
        for part in parts
        for other in others
    )
    return tuple(part for part in shared if part.start < part.end)


class Timeline:
    """Maps seconds of a recording's joined parts to seconds of the recording.

    At a joint, one moment of the parts is two of the recording: words that begin there belong to
    the next part, words that end there to the previous one.
    """

    joints: tuple[float, ...]  # seconds, in the parts, where one ends and the next one begins

    def __init__(self, parts: Sequence[Part], *, slack: float = 0.0) -> None:
        """Prepare for disjoint `parts` in order, with `slack` seconds of padding at their edges."""
        self.joints = _ends(parts)[:-1]
        self._slack = slack
        self._parts = _merge(parts)
        self._ends = _ends(self._parts)
        self._starts = (0.0, *self._ends[:-1])

    @property
    def leaves_out(self) -> bool:
        """Whether times in the recording differ; without parts they do not."""
        return bool(self._parts)

    @property
    def duration(self) -> float:
        return self._ends[-1] if self._ends else 0.0

    def original(self, start: float, end: float) -> tuple[float, float]:
        """Return when something from `start` to `end`, seconds in the parts, was in the recording.

        Predicted times are some tenths of a second off. If only the slack of a part is on one side
        of a joint, that side is ignored: otherwise a word with a start just before a joint would
        begin minutes early.
        """
        if not self._parts:
            return start, end
        last = len(self._parts) - 1
        first = min(bisect_right(self._ends, start), last)
        final = max(min(bisect_left(self._ends, end), last), first)
        if first < final:
            before, after = self._ends[first] - start, end - self._starts[final]
            early, late = before <= self._slack, after <= self._slack
            if early and late and final == first + 1:  # nothing between them: the larger one counts
                early, late = before <= after, before > after
            if early:
                first += 1
                start = self._starts[first]
            if late:
                final -= 1
                end = self._ends[final]
        return self._in_part(first, start), self._in_part(final, end)

    def of_word(self, start: float, end: float) -> tuple[float, float]:
        """Return when a word was in the recording: all in the part that contains its middle."""
        index = min(bisect_right(self._ends, (start + end) / 2), len(self._parts) - 1)
        return self._in_part(index, start), self._in_part(index, min(end, self._ends[index]))

    def _in_part(self, index: int, seconds: float) -> float:
        begins, ends = self._parts[index].seconds
        return min(begins + max(seconds - self._starts[index], 0.0), ends)


def _merge(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Join parts that touch: nothing is missing between them."""
    merged: list[Part] = []
    for part in parts:
        if merged and merged[-1].end == part.start:
            merged[-1] = Part(merged[-1].start, part.end)
        else:
            merged.append(part)
    return tuple(merged)


def _ends(parts: Iterable[Part]) -> tuple[float, ...]:
    """Return the seconds, in the parts, at which each ends."""
    return tuple(end / SAMPLE_RATE for end in accumulate(part.samples for part in parts))
