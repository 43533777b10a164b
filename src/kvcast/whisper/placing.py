"""Places the words of windows, one after another, and each next window by them.

Follows openai/whisper's transcribe.py with word_timestamps. Knows no model and
no sound.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvcast.engine.callers import Policy
from kvcast.speech.params import TranscribeParams
from kvcast.speech.segments import FRAMES_PER_SECOND
from kvcast.whisper.decoding import DecodingResult
from kvcast.whisper.hallucination import KeptSegments, without_hallucinations
from kvcast.whisper.requests import Features
from kvcast.whisper.segments import Span, Window, end_of_speech
from kvcast.whisper.token_times import TokenTimes
from kvcast.whisper.windows import WindowRequests
from kvcast.whisper.words import Punctuation, text_tokens, with_words

_FRAMES_PER_ENCODED = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowText:
    """The text of a window.

    Attributes:
        window: where it lies.
        features: its sound.
        result: of the decoding.
        rejections: reasons why earlier results were rejected.
        spans: of the result, in order.
        complete: whether the window ends with a lone timestamp: no speech follows it.
        seek: frame at which the next window begins, by the timestamps.

    """

    window: Window
    features: Features
    result: DecodingResult
    rejections: tuple[str, ...]
    spans: list[Span]
    complete: bool
    seek: int


class WordPlacing:
    """Gives windows that follow one another their words."""

    def __init__(
        self,
        params: TranscribeParams,
        requests: WindowRequests,
        resumed: Callable[[int, int], int],
    ) -> None:
        """Prepare.

        Args:
            params: all options.
            requests: makes the requests of windows.
            resumed: returns where the next window begins, given the last word's end and the
                timestamps, if a window is not complete.

        """
        self._params = params
        self._requests = requests
        self._resumed = resumed
        self._last_speech = 0.0

    def place(self, window_text: WindowText, end: int) -> Policy[KeptSegments]:
        """Find a window's spans with their words, and the next window's frame.

        `end` is the frame after the last one to decode.
        """
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


_NO_TOKENS = TokenTimes(np.zeros(1, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int64))
"""Of a window without text."""
