"""Segments of a recording's text, with their times.

Knows no sound and no model.
"""

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcast.audio.timeline import Timeline

FRAMES_PER_SECOND = 100


@dataclass(frozen=True, kw_only=True)
class Word:
    """A spoken word, with the punctuation beside it.

    Attributes:
        start, end: seconds.
        word: as decoded; usually starts with a space.
        probability: mean of its tokens' probabilities.

    """

    start: float
    end: float
    word: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of speech with its text.

    Attributes:
        id: counts from 0.
        seek: frame (of 10 ms) at which its window began.
        start, end: seconds.
        text: as decoded; usually starts with a space.
        tokens: ids, timestamps included.
        language: code of the window's language.
        temperature: at which the window was decoded.
        avg_logprob: mean log-probability of the window's tokens.
        compression_ratio: of the window's text; high if it repeats itself.
        no_speech_prob: probability that the window holds no speech.
        fallback: why each lower temperature was rejected, in the order tried.
        words: in order, with word timestamps.
        channel: of the recording, from 1 on, if channels are transcribed one by one.

    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    language: str
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    fallback: tuple[str, ...]
    words: tuple[Word, ...] | None = None
    channel: int | None = None


def compression_ratio(text: str) -> float:
    """Return bytes of text over bytes that zlib needs for it."""
    encoded = text.encode()
    return len(encoded) / len(zlib.compress(encoded))


def placed(segment: Segment, timeline: "Timeline") -> Segment:
    """Return a segment of a recording's parts with the times that it has in the recording.

    With words it begins and ends with them. Times are rounded to milliseconds.
    """
    if not timeline.leaves_out:
        return segment
    begun, _ = timeline.original(*[segment.seek / FRAMES_PER_SECOND] * 2)
    words = segment.words and tuple(_placed_word(word, timeline) for word in segment.words)
    if words:
        start, end = words[0].start, words[-1].end
    else:
        start, end = map(_to_milliseconds, timeline.original(segment.start, segment.end))
    return replace(
        segment, seek=round(begun * FRAMES_PER_SECOND), start=start, end=end, words=words
    )


def _placed_word(word: Word, timeline: "Timeline") -> Word:
    start, end = map(_to_milliseconds, timeline.of_word(word.start, word.end))
    return replace(word, start=start, end=end)


def _to_milliseconds(seconds: float) -> float:
    return round(seconds, 3)
