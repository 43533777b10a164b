"""The words of a passage, window after window, and where each next window begins because of them.

Puts together what openai/whisper's transcribe.py does if word_timestamps is set. Knows no model and
no sound.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvcast.whisper.alignment import AlignmentJob
from kvcast.whisper.decoding import DecodingResult, Features
from kvcast.whisper.hallucination import Heard, without_hallucinations
from kvcast.whisper.params import TranscribeParams
from kvcast.whisper.segments import FRAMES_PER_SECOND, Span, Window, end_of_speech
from kvcast.whisper.token_times import TokenTimes
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast.whisper.words import Punctuation, text_tokens, with_words

_FRAMES_PER_ENCODED = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class Said:
    """What was said in a window.

    Attributes:
        window: where it lies.
        features: what was heard.
        result: of the decoding.
        rejections: why those before it were rejected.
        spans: of the result, in order.
        complete: whether the window ends with a lone timestamp: nobody speaks after it.
        seek: where the next window begins, as far as the timestamps tell.

    """

    window: Window
    features: Features
    result: DecodingResult
    rejections: tuple[str, ...]
    spans: list[Span]
    complete: bool
    seek: int


class WordPlacing:
    """Gives a passage's windows their words, in order."""

    def __init__(
        self,
        params: TranscribeParams,
        tokenizer: WhisperTokenizer,
        resumed: Callable[[int, int], int],
    ) -> None:
        """Prepare.

        Args:
            params: all options.
            tokenizer: of the model.
            resumed: returns where the next window begins, of where the last word ended and what the
                timestamps tell, if a window is not complete.

        """
        self._params = params
        self._tokenizer = tokenizer
        self._resumed = resumed
        self._last_speech = 0.0

    def job(self, said: Said) -> AlignmentJob | None:
        """Return what is to be found out about a window; None if it has no text."""
        text = text_tokens(said.spans, self._tokenizer)
        if not text:
            return None
        return AlignmentJob(
            window=said.features,
            language=said.result.language,
            task=self._params.task,
            text=text,
            frames=said.window.frames // _FRAMES_PER_ENCODED,
        )

    def heard(self, said: Said, times: TokenTimes, end: int) -> Heard:
        """Return a window's spans with their words, and where to go on.

        `end` is the frame after the last that is to be heard.
        """
        window = said.window
        spans = with_words(
            said.spans,
            times,
            window,
            tokenizer=self._tokenizer,
            language="en" if self._params.task == "translate" else said.result.language,
            punctuation=Punctuation(
                self._params.prepend_punctuations, self._params.append_punctuations
            ),
            last_speech=self._last_speech,
        )
        heard = Heard(spans, self._after(spans, said))
        if (threshold := self._params.hallucination_silence_threshold) is not None:
            heard = without_hallucinations(
                heard,
                window,
                threshold=threshold,
                complete=said.complete,
                last_speech=self._last_speech,
                content_frames=end,
            )
        last = end_of_speech(heard.spans)
        self._last_speech = self._last_speech if last is None else last
        return Heard(heard.spans, max(heard.seek, window.seek + 1), skipped=heard.skipped)

    def _after(self, spans: Sequence[Span], said: Said) -> int:
        end = end_of_speech(spans)
        if said.complete or end is None or end <= said.window.start:
            return said.seek
        return self._resumed(round(end * FRAMES_PER_SECOND), said.seek)


NO_TOKENS = TokenTimes(np.zeros(1, np.int64), np.zeros(0, np.float32))
"""Of a window without text."""
