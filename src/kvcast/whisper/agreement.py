"""Words of hypotheses: what successive ones begin with alike, and what follows settled words.

Later hypotheses may spell settled words differently; the words after these are found by the least
changes of letters. Knows no sound and no model.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.whisper.tokenizer import timestamps_from
from kvcast.whisper.word_split import TokenWord

_ALIKE = 0.5
"""A hypothesis that changes more of the settled letters is a different text."""


class Place(NamedTuple):
    """Where a word lies, in steps of 20 ms, and how probable it is in this sound.

    Attributes:
        end: of the word.
        probability: of its least probable token.
        attended: the latest step to which one of its tokens attends most.

    """

    end: int
    probability: float
    attended: int

    def later(self, steps: int) -> Self:
        """Return the place as of a window that begins so many steps later."""
        return self._replace(end=max(0, self.end - steps), attended=max(0, self.attended - steps))


@dataclass(frozen=True)
class Unit:
    """A word, and the timestamps that precede it.

    Attributes:
        stamps: in steps of 20 ms from the beginning of the window: the end of the segment before
            it, if that is known, and the start of its own; none within a segment.
        tokens: of the word; none after the last one.
        text: of the word, with its space.
        place: in the sound, if it is known.

    """

    stamps: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    place: Place | None = None

    @property
    def begins_segment(self) -> bool:
        """Whether another segment ends before it."""
        return len(self.stamps) > 1

    @property
    def opens_nothing(self) -> bool:
        """Whether it begins a segment that has no word."""
        return self.begins_segment and not self.tokens

    def later(self, stamps: int) -> Self:
        """Return the unit as of a window that begins so many steps later."""
        place = self.place and self.place.later(stamps)
        own = tuple(max(0, stamp - stamps) for stamp in self.stamps)
        return replace(self, stamps=own, place=place)

    def spelled(self, timestamp_begin: int) -> tuple[int, ...]:
        """Return all of its tokens."""
        return (*(timestamp_begin + stamp for stamp in self.stamps), *self.tokens)


def units(
    tokens: Sequence[int],
    timestamp_begin: int,
    split: Callable[[Sequence[int]], Sequence[TokenWord]],
) -> list[Unit]:
    """Cut a hypothesis into units; timestamps at its end become one without a word.

    Args:
        tokens: text and timestamps.
        timestamp_begin: ids from here on are timestamps.
        split: cuts text tokens into words.

    """
    timestamps = timestamps_from(timestamp_begin)
    units: list[Unit] = []
    at = 0
    while at < len(tokens):
        stamps = tuple(takewhile(timestamps.__contains__, tokens[at:]))
        at += len(stamps)
        text = tuple(takewhile(lambda token: token not in timestamps, tokens[at:]))
        at += len(text)
        before = tuple(stamp - timestamp_begin for stamp in stamps)
        for word in split(text):
            units.append(Unit(before, word.tokens, word.text))
            before = ()
        if before:
            units.append(Unit(before, (), ""))
    return units


def agreed(hypotheses: Sequence[Sequence[Unit]]) -> int:
    """Return the number of words with which all hypotheses begin.

    Timestamps do not count: they tremble while words stand.
    """
    count = 0
    for first, *others in zip(*hypotheses, strict=False):
        if not first.tokens or any(other.text != first.text for other in others):
            break
        count += 1
    return count


def continued(settled: Sequence[Unit], hypothesis: Sequence[Unit]) -> int | None:
    """Return how many words at the beginning of a hypothesis repeat the settled ones.

    Punctuation and case do not count. Where the last word is spelled in another way, letters alone
    do not tell how many words replace it ("ninety six" and "96 and he left"): then the words that
    end when it did replace it. None if the hypothesis differs.
    """
    if not any(unit.tokens for unit in settled):
        return 0
    spelled = [_letters(unit) for unit in settled]
    letters, words = "".join(spelled), [_letters(unit) for unit in hypothesis]
    lengths = np.cumsum([0, *map(len, words)])
    changes = _changes(letters, "".join(words))[lengths]
    least = int(changes.min())
    if not letters or least > _ALIKE * len(letters):
        return None
    counts = [0, *(count for count, word in enumerate(words, start=1) if word)]
    [last] = [place for place, word in enumerate(spelled) if word][-1:]
    best = max((count for count in counts if changes[count] == least), key=lengths.__getitem__)
    if best and words[best - 1] != spelled[last]:
        near = [count for count in counts if changes[count] <= least + least // 2]
        best = _nearest(near, best, settled[last], hypothesis)
    # Of marks that follow, the settled ones are settled, too.
    marks = takewhile(lambda unit: unit.tokens and not _letters(unit), hypothesis[best:])
    return best + min(sum(1 for _ in marks), len(settled) - last - 1)


def _nearest(counts: Sequence[int], best: int, last: Unit, hypothesis: Sequence[Unit]) -> int:
    """Return the count whose last word ends nearest to the last settled one; `best` if unknown."""
    ends = {count: hypothesis[count - 1].place if count else Place(0, 1.0, 0) for count in counts}
    known = {count: place.end for count, place in ends.items() if place is not None}
    if last.place is None or len(known) < len(counts):
        return best
    end = last.place.end
    return min(counts, key=lambda count: abs(known[count] - end))


def _letters(unit: Unit) -> str:
    return "".join(
        letter for letter in unit.text.lower() if unicodedata.category(letter)[0] in "LMN"
    )


def _changes(text: str, other: str) -> NDArray[np.int64]:
    """Return how many letters to change, add or drop for each beginning of the other, [n + 1]."""
    theirs = np.array([ord(letter) for letter in other], np.int64)
    places = np.arange(len(other) + 1)
    row = places
    for number, letter in enumerate(text, start=1):
        row = np.append(number, np.minimum(row[1:] + 1, row[:-1] + (theirs != ord(letter))))
        row = np.minimum.accumulate(row - places) + places
    return row
