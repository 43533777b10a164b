"""LocalAgreement and AlignAtt: which words of successive hypotheses are confirmed.

`AlignAtt` confirms words that attend to audio well before its end, `LocalAgreement` the common
first words of several hypotheses. Later hypotheses may spell confirmed words differently; where
they continue is found by the least edit distance.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.whisper.tokenizer import timestamps_from
from kvcast.whisper.word_timestamps import ENCODER_FRAMES_PER_SECOND, TokenWord

_ALIKE = 0.5  # a hypothesis that changes more of the confirmed letters is a different text


class Place(NamedTuple):
    """Where a word is, in steps of 20 ms, and how probable it is in this audio."""

    end: int
    probability: float
    attended: int  # latest step to which one of its tokens attends most

    def later(self, steps: int) -> Self:
        return self._replace(end=max(0, self.end - steps), attended=max(0, self.attended - steps))


@dataclass(frozen=True)
class Unit:
    """A word, and the timestamps that precede it.

    `stamps`: in steps of 20 ms from the window's beginning: the end of the segment before it, if
    known, and the start of its segment; none within a segment. `tokens`: none after the last word.
    """

    stamps: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    place: Place | None = None

    @property
    def begins_segment(self) -> bool:
        return len(self.stamps) > 1

    @property
    def opens_nothing(self) -> bool:
        return self.begins_segment and not self.tokens

    def later(self, stamps: int) -> Self:
        place = self.place and self.place.later(stamps)
        own = tuple(max(0, stamp - stamps) for stamp in self.stamps)
        return replace(self, stamps=own, place=place)

    def spelled(self, timestamp_begin: int) -> tuple[int, ...]:
        return (*(timestamp_begin + stamp for stamp in self.stamps), *self.tokens)


def units(
    tokens: Sequence[int],
    timestamp_begin: int,
    split: Callable[[Sequence[int]], Sequence[TokenWord]],
) -> list[Unit]:
    """Cut a hypothesis into units; timestamps at its end become one without a word."""
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
    """Return how many first words all hypotheses share, whatever their (jittering) timestamps."""
    count = 0
    for first, *others in zip(*hypotheses, strict=False):
        if not first.tokens or any(other.text != first.text for other in others):
            break
        count += 1
    return count


def continued(confirmed: Sequence[Unit], hypothesis: Sequence[Unit]) -> int | None:
    """Return how many words at the beginning of a hypothesis repeat the confirmed ones.

    Punctuation and case are ignored. Where the last word is spelled in another way ("ninety six"
    and "96 and he left"), the words that end nearest to its end time replace it. None if the
    hypothesis differs.
    """
    if not any(unit.tokens for unit in confirmed):
        return 0
    spelled = [_letters(unit) for unit in confirmed]
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
        best = _nearest(near, best, confirmed[last], hypothesis)
    # Of marks that follow, the confirmed ones are confirmed, too.
    marks = takewhile(lambda unit: unit.tokens and not _letters(unit), hypothesis[best:])
    return best + min(sum(1 for _ in marks), len(confirmed) - last - 1)


def _nearest(counts: Sequence[int], best: int, last: Unit, hypothesis: Sequence[Unit]) -> int:
    """Return the count whose last word ends nearest to the last confirmed; `best` if unknown."""
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


_FRESH = 2 * ENCODER_FRAMES_PER_SECOND  # this near to the end words may change
_UNSURE = 0.5  # less probable words are not confirmed within `_UNSURE_FOR` of the audio's end
_UNSURE_FOR = 5 * ENCODER_FRAMES_PER_SECOND

_SURE = 0.9  # words of this probability are hardly ever revised later

_WAITS = (
    (0.5, 3 * ENCODER_FRAMES_PER_SECOND // 2),
    (0.25, 3 * ENCODER_FRAMES_PER_SECOND),
    (0.0, 5 * ENCODER_FRAMES_PER_SECOND),
)  # from which probability on, how long words wait on which two hypotheses agree

AGREEMENT = 2  # hypotheses that must agree if attention cannot be used; the best of Macháček et al


class StreamingPolicy(Protocol):
    """Decides which words of hypotheses are confirmed, whatever audio follows."""

    @property
    def compared(self) -> int:
        """How many successive hypotheses it compares, 1 or more."""

    def confirmed(self, hypotheses: Sequence[Sequence[Unit]], length: int) -> int:
        """Return how many words at the beginning of the last hypothesis are confirmed.

        `hypotheses`: of ever more audio, all after the confirmed words; only the last one's places
        count from the window's beginning. `length`: of the window's audio, in steps of 20 ms.
        """


@dataclass(frozen=True)
class LocalAgreement(StreamingPolicy):
    """Confirms the common first words of successive hypotheses, if some audio follows them.

    Source: LocalAgreement-n of Macháček, Dabre and Bojar (arXiv:2307.14743).
    """

    hypotheses: int

    @property
    @override
    def compared(self) -> int:
        return self.hypotheses

    @override
    def confirmed(self, hypotheses: Sequence[Sequence[Unit]], length: int) -> int:
        def stands(unit: Unit) -> bool:
            place = unit.place
            if place is None:
                return False
            after = _FRESH if place.probability >= _UNSURE else _UNSURE_FOR
            return length - place.end >= after

        agreed_on = hypotheses[-1][: agreed(hypotheses)]
        return sum(1 for _ in takewhile(stands, agreed_on))


@dataclass(frozen=True)
class AlignAtt(StreamingPolicy):
    """Confirms words that attend to audio before the last moments, if the model is sure of them.

    Source: Papi, Turchi and Negri (arXiv:2305.11408). Small models revise improbable words when
    more audio follows. So these wait until a sure word follows, or until two hypotheses agree on
    them and some time has passed, the longer the less probable they are.
    """

    margin: int  # the last moments, in steps of 20 ms

    @property
    @override
    def compared(self) -> int:
        return 2

    @override
    def confirmed(self, hypotheses: Sequence[Sequence[Unit]], length: int) -> int:
        latest = hypotheses[-1]
        alike = agreed(hypotheses)
        count = 0
        for unit, following in zip_longest(latest, latest[1:]):
            if unit.place is None or not unit.tokens:
                break
            past = length - unit.place.attended
            followed = past >= 2 * self.margin and self._is_sure(following, length)
            waits = next(frames for least, frames in _WAITS if unit.place.probability >= least)
            agreed_on = count < alike and past >= max(waits, self.margin)
            if not (followed or agreed_on or self._is_sure(unit, length)):
                break
            count += 1
        return count

    def _is_sure(self, unit: Unit | None, length: int) -> bool:
        if unit is None or unit.place is None or not unit.tokens:
            return False
        place = unit.place
        return place.probability >= _SURE and length - place.attended >= self.margin
