"""Word times of successive windows, and text that was hallucinated in silence.

Follows `hallucination_silence_threshold` in openai/whisper's transcribe.py. Temperature fallback is
in `long_form.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvcast.engine.callers import Policy
from kvcast.speech.params import TranscribeParams
from kvcast.transcripts.segments import FRAMES_PER_SECOND, Word
from kvcast.whisper.decoding import DecodingResult
from kvcast.whisper.requests import Features
from kvcast.whisper.windows import WindowRequests
from kvcast.whisper.word_timestamps import (
    WINDOW_FRAMES,
    Punctuation,
    Span,
    TokenTimes,
    Window,
    end_of_speech,
    text_tokens,
    with_words,
)

_NO_TOKENS = TokenTimes(np.zeros(1, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int64))
"""Of a window without text."""


_MARKS = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
_WORDS_SCORED = 8
_UNLIKELY = 0.15
_SHORT, _LONG = 0.133, 2.0
_NEAR = 2.0  # seconds to the ends of a window, where a word may be cut off


@dataclass(frozen=True)
class KeptSegments:
    """The segments kept of a window, and the frame at which the next window begins."""

    spans: list[Span]
    seek: int
    skipped: bool = False  # the window counts as not decoded


def without_hallucinations(
    kept: KeptSegments,
    window: Window,
    *,
    threshold: float,
    complete: bool,
    last_speech: float,
    content_frames: int,
) -> KeptSegments:
    """Drop spans in silence that are probably hallucinated, and continue after the silence.

    `kept.seek`: the next window's frame if no span is dropped. `threshold`: seconds that are a
    silence. `complete`: the window ends with a lone timestamp: no speech follows it. `last_speech`:
    end of the last word before this window, in seconds.
    """
    silence = _Silence(window, threshold, last_speech)
    seek = kept.seek if complete else silence.after_last_word(kept)
    if (late := silence.before_hallucinated_start(kept.spans)) is not None:
        return KeptSegments([], late, skipped=True)
    for index, span in enumerate(kept.spans):
        if silence.surrounds(kept.spans, index):
            again = round(max(window.start + 1, span.start) * FRAMES_PER_SECOND)
            over = content_frames / FRAMES_PER_SECOND - span.end < threshold
            return KeptSegments(kept.spans[:index], content_frames if over else again)
    return KeptSegments(kept.spans, seek)


@dataclass(frozen=True)
class _Silence:
    window: Window
    threshold: float
    last_speech: float

    @property
    def _end(self) -> float:
        return (self.window.seek + WINDOW_FRAMES) / FRAMES_PER_SECOND

    def after_last_word(self, kept: KeptSegments) -> int:
        """Return the next window's frame: in a silence after the last word, or after the window."""
        end = end_of_speech(kept.spans)
        if end is None or end <= self.window.start:
            return kept.seek
        if self._end - end > self.threshold:
            return round(end * FRAMES_PER_SECOND)
        return self.window.seek + self.window.frames

    def before_hallucinated_start(self, spans: Sequence[Span]) -> int | None:
        """Return the end of a silence that a hallucinated span follows at the window's start."""
        first = next((span for span in spans if span.words), None)
        if first is None or not _is_anomaly(first):
            return None
        gap = first.start - self.window.start
        if gap <= self.threshold:
            return None
        return self.window.seek + round(gap * FRAMES_PER_SECOND)

    def surrounds(self, spans: Sequence[Span], index: int) -> bool:
        """Return whether a span is hallucinated: after silence, before silence or another one."""
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
    duration = word.end - word.start
    unlikely = 1.0 if word.probability < _UNLIKELY else 0.0
    return unlikely + max(0.0, _SHORT - duration) * 15 + max(0.0, duration - _LONG)


_FRAMES_PER_ENCODED = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowText:
    """The text of a window."""

    window: Window
    features: Features
    result: DecodingResult
    rejections: tuple[str, ...]
    spans: list[Span]
    complete: bool  # ends with a lone timestamp: no speech follows
    seek: int  # frame of the next window, by the timestamps


class WordTimestamps:
    def __init__(
        self,
        params: TranscribeParams,
        requests: WindowRequests,
        resumed: Callable[[int, int], int],
    ) -> None:
        """Prepare; `resumed` returns the next frame, given the last word's end and timestamps."""
        self._params = params
        self._requests = requests
        self._resumed = resumed
        self._last_speech = 0.0

    def place(self, window_text: WindowText, end: int) -> Policy[KeptSegments]:
        """Find a window's spans with words, and the next window's frame; decoding ends at `end`."""
        times, text = _NO_TOKENS, text_tokens(window_text.spans, self._requests.tokenizer)
        if text:
            times = yield from self._requests.align(
                window_text.features,
                text,
                language=window_text.result.language,
                task=self._params.task,
                frames=window_text.window.frames // _FRAMES_PER_ENCODED,
            )
        return self._kept(window_text, times, end)

    def _kept(self, window_text: WindowText, times: TokenTimes, end: int) -> KeptSegments:
        window = window_text.window
        spans = with_words(
            window_text.spans,
            times,
            window,
            tokenizer=self._requests.tokenizer,
            language="en" if self._params.task == "translate" else window_text.result.language,
            punctuation=Punctuation(
                self._params.prepend_punctuations, self._params.append_punctuations
            ),
            last_speech=self._last_speech,
        )
        kept = KeptSegments(spans, self._after(spans, window_text))
        if (threshold := self._params.hallucination_silence_threshold) is not None:
            kept = without_hallucinations(
                kept,
                window,
                threshold=threshold,
                complete=window_text.complete,
                last_speech=self._last_speech,
                content_frames=end,
            )
        last = end_of_speech(kept.spans)
        self._last_speech = self._last_speech if last is None else last
        return KeptSegments(kept.spans, max(kept.seek, window.seek + 1), skipped=kept.skipped)

    def _after(self, spans: Sequence[Span], window_text: WindowText) -> int:
        end = end_of_speech(spans)
        if window_text.complete or end is None or end <= window_text.window.start:
            return window_text.seek
        return self._resumed(round(end * FRAMES_PER_SECOND), window_text.seek)
