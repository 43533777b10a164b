"""Cuts a window's tokens into segments, and counts the frames to the next window.

The rules follow `transcribe` in openai/whisper's transcribe.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kvcast.transcripts.segments import FRAMES_PER_SECOND, Word
from kvcast.whisper.tokenizer import SECONDS_PER_TIMESTAMP, timestamps_from

FRAMES_PER_TIMESTAMP = 2
WINDOW_FRAMES = 30 * FRAMES_PER_SECOND


@dataclass(frozen=True)
class Window:
    """Frames `seek` to `seek + frames` of a recording."""

    seek: int
    frames: int

    @property
    def start(self) -> float:
        """In seconds."""
        return self.seek / FRAMES_PER_SECOND

    @property
    def duration(self) -> float:
        """In seconds."""
        return self.frames / FRAMES_PER_SECOND

    @property
    def end(self) -> float:
        """In seconds."""
        return (self.seek + self.frames) / FRAMES_PER_SECOND


@dataclass(frozen=True)
class Span:
    """A segment's tokens, its times in seconds from the recording's start, and its words."""

    start: float
    end: float
    tokens: tuple[int, ...]
    words: tuple[Word, ...] | None = None


def split(tokens: Sequence[int], window: Window, timestamp_begin: int) -> tuple[list[Span], int]:
    """Cut a window's tokens into segments; also return the frames to advance.

    Two timestamps in a row are a cut: one segment ends, the next starts. Text after the last cut is
    unfinished, and the next window begins there; but a lone timestamp at the very end means that no
    speech follows, and the whole window is done, as it is without any cut.

    Example: tokens `<|0.00|> a <|1.00|> <|1.00|> b` give one segment, 0 s to 1 s, and an advance
    of 100 frames; with `<|2.00|>` at the end they give two, and the whole window is done.
    """
    tokens = tuple(tokens)
    timestamps = timestamps_from(timestamp_begin)
    is_timestamp = [token in timestamps for token in tokens]
    cuts = [i for i, pair in enumerate(pairwise(is_timestamp), start=1) if all(pair)]
    whole = ends_alone(tokens, timestamp_begin)
    if not cuts:
        return [_uncut(tokens, window, timestamps)], window.frames
    ends = [*cuts, len(tokens)] if whole else cuts
    spans = [
        Span(
            window.start + (tokens[start] - timestamp_begin) * SECONDS_PER_TIMESTAMP,
            window.start + (tokens[end - 1] - timestamp_begin) * SECONDS_PER_TIMESTAMP,
            tokens[start:end],
        )
        for start, end in pairwise([0, *ends])
    ]
    spoken = (tokens[ends[-1] - 1] - timestamp_begin) * FRAMES_PER_TIMESTAMP
    # A cut at 0.00, possible only without timestamp rules, must still advance.
    return spans, window.frames if whole else spoken or window.frames


def ends_alone(tokens: Sequence[int], timestamp_begin: int) -> bool:
    """Return whether a lone timestamp ends a window's tokens."""
    timestamps = timestamps_from(timestamp_begin)
    return [token in timestamps for token in tokens[-2:]] == [False, True]


def _uncut(tokens: tuple[int, ...], window: Window, timestamps: range) -> Span:
    times = [token - timestamps.start for token in tokens if token in timestamps]
    last = times[-1] if times else 0
    duration = last * SECONDS_PER_TIMESTAMP if last else window.duration
    return Span(window.start, window.start + duration, tokens)


def end_of_speech(spans: Sequence[Span]) -> float | None:
    """Return when the last word ends; without any word, the last span."""
    ends = [word.end for span in spans for word in span.words or ()]
    return ends[-1] if ends else spans[-1].end if spans else None


def within(spans: Sequence[Span], end: float) -> list[Span]:
    """Return spans, in order, that do not pass `end`, where the window's audio ends.

    Models emit times up to 30 s in any window. Spans past the end share the last of the audio.
    """
    room = [end - SECONDS_PER_TIMESTAMP * after for after in reversed(range(len(spans)))]
    return [_before(span, latest) for span, latest in zip(spans, room, strict=True)]


def _before(span: Span, end: float) -> Span:
    if span.end <= end:
        return span
    start = max(0.0, min(span.start, end - SECONDS_PER_TIMESTAMP))
    end = max(start, end)
    words = span.words and tuple(
        replace(word, start=min(word.start, end), end=min(word.end, end)) for word in span.words
    )
    return Span(start, end, span.tokens, words)
