"""A stretch of a recording, decoded window by window, each after the text before.

Follows `transcribe` in openai/whisper's transcribe.py: windows seek by the timestamps that were
predicted, text conditions the next window, doubtful windows are tried again, silent ones skipped.
Knows no file formats and no runtime, and not who else is decoded meanwhile.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvcast.decoding.whisper import DecodingOptions, DecodingResult, Features, WindowJob
from kvcast.tasks.params import TranscribeParams
from kvcast.tasks.whisper.fallback import is_silence, rejection
from kvcast.tasks.whisper.segments import WINDOW_FRAMES, Segment, Span, Window, split
from kvcast.text.whisper import WhisperTokenizer

PROMPT_RESET_TEMPERATURE = 0.5
"""Text that took a higher temperature is too doubtful to condition the next window."""


class Ending:
    """What is known of the end of a window: nothing, so a text may go on in the next one."""

    def options(self, options: DecodingOptions, window: Window) -> DecodingOptions:
        """Return how to decode a window."""
        del window
        return options

    def tokens(self, result: DecodingResult, window: Window) -> Sequence[int]:
        """Return a window's tokens, with a timestamp at the end if nothing goes on."""
        del window
        return result.tokens


class Sound(Protocol):
    """What a passage reads: see `kvcast.audio.features.MelWindows`."""

    def window(self, seek: int, end: int | None = None) -> NDArray[np.float32]:
        """Return the encoder's input [n_mels, 3000] from `seek`, zeros from `end` on."""


class Passage:
    """Frames of a recording that are decoded one window after the other.

    Attributes:
        segments: what was found and not taken yet. Segments that are empty or take no time are
            left out. Ids count from 0 within the passage.

    """

    def __init__(
        self,
        sound: Sound,
        clip: tuple[int, int],
        *,
        attempts: Sequence[DecodingOptions],
        params: TranscribeParams,
        tokenizer: WhisperTokenizer,
        ending: Ending | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            sound: the recording, or this part of it.
            clip: the first frame (of 10 ms), and the one after the last.
            attempts: how to decode a window first, and after each rejection; one at least. With a
                language each, if the model is multilingual.
            params: all other options.
            tokenizer: of the model.
            ending: what is known of the windows' ends.

        """
        self._sound = sound
        self._seek, self._end = clip
        self._attempts = attempts
        self._params = params
        self._tokenizer = tokenizer
        self._ending = ending or Ending()
        self._prompt = initial_tokens(params, tokenizer)
        self._heard: Features | None = None
        self._rejections: list[str] = []
        self._found = 0
        self.segments: deque[Segment] = deque()

    @property
    def over(self) -> bool:
        """Whether everything was decoded."""
        return self._seek >= self._end

    def next(self) -> WindowJob:
        """Return what is to be decoded next, if it is not over; `take` its result."""
        window = self._window
        if self._heard is None:
            self._heard = Features(self._sound.window(window.seek, window.seek + window.frames))
        return WindowJob(
            window=self._heard,
            options=self._ending.options(self._attempts[len(self._rejections)], window),
            prompt=tuple(self._prompt),
            stream=window.seek,
        )

    def take(self, result: DecodingResult) -> None:
        """Find a window's segments and go on behind it, or reject the result."""
        reason = rejection(result, self._params)
        if reason is not None and len(self._rejections) + 1 < len(self._attempts):
            self._rejections.append(reason)
            return
        rejections, self._rejections = tuple(self._rejections), []
        window, self._heard = self._window, None
        if is_silence(result, self._params):
            self._seek += window.frames
            return
        tokens = self._ending.tokens(result, window)
        spans, advance = split(tokens, window, self._tokenizer.timestamp_begin)
        for span in spans:
            text = self._text(span)
            if text.strip() and span.start != span.end:
                self._prompt += span.tokens
                self.segments.append(_segment(self._found, window, span, text, result, rejections))
                self._found += 1
        if not self._conditions_next(result):
            self._prompt.clear()
        self._seek += advance

    @property
    def _window(self) -> Window:
        return Window(self._seek, min(WINDOW_FRAMES, self._end - self._seek))

    def _conditions_next(self, result: DecodingResult) -> bool:
        """Tell whether a window's text prompts the next window."""
        certain = result.temperature <= PROMPT_RESET_TEMPERATURE
        return self._params.condition_on_previous_text and certain

    def _text(self, span: Span) -> str:
        tokenizer = self._tokenizer
        return tokenizer.decode(token for token in span.tokens if token < tokenizer.eot)


def initial_tokens(params: TranscribeParams, tokenizer: WhisperTokenizer) -> list[int]:
    """Return what precedes the first window."""
    if params.initial_prompt is None:
        return []
    return tokenizer.encode(" " + params.initial_prompt.strip())


def _segment(
    id_: int,
    window: Window,
    span: Span,
    text: str,
    result: DecodingResult,
    rejections: tuple[str, ...],
) -> Segment:
    return Segment(
        id=id_,
        seek=window.seek,
        start=span.start,
        end=span.end,
        text=text,
        tokens=span.tokens,
        temperature=result.temperature,
        avg_logprob=result.avg_logprob,
        compression_ratio=result.compression_ratio,
        no_speech_prob=result.no_speech_prob,
        fallback=rejections,
    )
