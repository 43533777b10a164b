"""Detects text that a model made up in silence, by its words' times and probabilities.

Follows `hallucination_silence_threshold` in openai/whisper's transcribe.py. Knows no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvcast.speech.segments import FRAMES_PER_SECOND, Word
from kvcast.whisper.segments import WINDOW_FRAMES, Span, Window, end_of_speech

_MARKS = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
_WORDS_SCORED = 8
_UNLIKELY = 0.15
_SHORT, _LONG = 0.133, 2.0
_NEAR = 2.0
"""To the ends of a window, in seconds: a word beside an end may be cut off, so it does not
count."""


@dataclass(frozen=True)
class KeptSegments:
    """The segments kept of a window, and the frame at which the next window begins.

    `skipped`: the window counts as not decoded.
    """

    spans: list[Span]
    seek: int
    skipped: bool = False


def without_hallucinations(
    kept: KeptSegments,
    window: Window,
    *,
    threshold: float,
    complete: bool,
    last_speech: float,
    content_frames: int,
) -> KeptSegments:
    """Drop spans that are probably made up and stand in silence, and go on after the silence.

    Args:
        kept: the window's spans with words, and the next window's frame if no span is dropped.
        window: where it lies.
        threshold: seconds that are a silence.
        complete: whether the window ends with a lone timestamp: no speech follows it.
        last_speech: end of the last word before this window, in seconds.
        content_frames: of the whole recording.

    """
    silence = _Silence(window, threshold, last_speech)
    seek = kept.seek if complete else silence.after_last_word(kept)
    if (late := silence.before_made_up_start(kept.spans)) is not None:
        return KeptSegments([], late, skipped=True)
    for index, span in enumerate(kept.spans):
        if silence.surrounds(kept.spans, index):
            again = round(max(window.start + 1, span.start) * FRAMES_PER_SECOND)
            over = content_frames / FRAMES_PER_SECOND - span.end < threshold
            return KeptSegments(kept.spans[:index], content_frames if over else again)
    return KeptSegments(kept.spans, seek)


@dataclass(frozen=True)
class _Silence:
    """Finds the silences of a window."""

    window: Window
    threshold: float
    last_speech: float

    @property
    def _end(self) -> float:
        """Of a full window, however much of it is sound."""
        return (self.window.seek + WINDOW_FRAMES) / FRAMES_PER_SECOND

    def after_last_word(self, kept: KeptSegments) -> int:
        """Return the next window's frame: in a silence after the last word, or after the window."""
        end = end_of_speech(kept.spans)
        if end is None or end <= self.window.start:
            return kept.seek
        if self._end - end > self.threshold:
            return round(end * FRAMES_PER_SECOND)
        return self.window.seek + self.window.frames

    def before_made_up_start(self, spans: Sequence[Span]) -> int | None:
        """Return the end of a silence that a made up span follows at the window's start."""
        first = next((span for span in spans if span.words), None)
        if first is None or not _is_anomaly(first):
            return None
        gap = first.start - self.window.start
        if gap <= self.threshold:
            return None
        return self.window.seek + round(gap * FRAMES_PER_SECOND)

    def surrounds(self, spans: Sequence[Span], index: int) -> bool:
        """Tell whether a span is made up, after a silence, and before one or another such span."""
        span = spans[index]
        if not span.words or not _is_anomaly(span):
            return False
        earlier = [before.end for before in spans[:index] if before.words]
        silent_since = earlier[-1] if earlier else self.last_speech
        silent_before = (
            span.start - silent_since > self.threshold
            or span.start < self.threshold
            or span.start - self.window.start < _NEAR
        )
        later = next((after for after in spans[index + 1 :] if after.words), None)
        next_start = later.words[0].start if later and later.words else self.window.end
        silent_after = (
            next_start - span.end > self.threshold
            or (later is not None and _is_anomaly(later))
            or self._end - span.end < _NEAR
        )
        return silent_before and silent_after


def _is_anomaly(span: Span) -> bool:
    words = [word for word in span.words or () if word.word not in _MARKS][:_WORDS_SCORED]
    score = sum(map(_oddity, words))
    return score >= 3 or score + 0.01 >= len(words)


def _oddity(word: Word) -> float:
    """Score a word that is unlikely, very short or very long."""
    duration = word.end - word.start
    unlikely = 1.0 if word.probability < _UNLIKELY else 0.0
    return unlikely + max(0.0, _SHORT - duration) * 15 + max(0.0, duration - _LONG)
