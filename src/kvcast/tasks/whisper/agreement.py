"""What several hypotheses of the same sound agree on, word by word.

LocalAgreement-n of Macháček, Dabre and Bojar, "Turning Whisper into Real-Time Transcription System"
(arXiv:2307.14743): words that n successive hypotheses of a growing stretch of sound begin with are
settled. Knows no sound and no model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Self

from kvcast.text.whisper import timestamps_from
from kvcast.text.word_split import TokenWord


@dataclass(frozen=True)
class Unit:
    """A word, and the timestamps that precede it.

    Attributes:
        stamps: in steps of 20 ms from the beginning of the stretch: the end of the segment before
            it, if that is known, and the start of its own; none within a segment.
        tokens: of the word; none after the last one.
        text: of the word, with its space.

    """

    stamps: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str

    @property
    def begins_segment(self) -> bool:
        """Whether another segment ends before it."""
        return len(self.stamps) > 1

    @property
    def opens_nothing(self) -> bool:
        """Whether it begins a segment that has no word."""
        return self.begins_segment and not self.tokens

    def later(self, stamps: int) -> Self:
        """Return it as it is in a stretch that begins so many steps later."""
        return replace(self, stamps=tuple(max(0, stamp - stamps) for stamp in self.stamps))

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
    found: list[Unit] = []
    at = 0
    while at < len(tokens):
        stamps = tuple(takewhile(timestamps.__contains__, tokens[at:]))
        at += len(stamps)
        text = tuple(takewhile(lambda token: token not in timestamps, tokens[at:]))
        at += len(text)
        before = tuple(stamp - timestamp_begin for stamp in stamps)
        for word in split(text):
            found.append(Unit(before, word.tokens, word.text))
            before = ()
        if before:
            found.append(Unit(before, (), ""))
    return found


def agreed(hypotheses: Sequence[Sequence[Unit]]) -> int:
    """Return how many words at the beginning are the same in all.

    Timestamps do not count: they tremble while words stand.
    """
    count = 0
    for first, *others in zip(*hypotheses, strict=False):
        if not first.tokens or any(other.text != first.text for other in others):
            break
        count += 1
    return count
