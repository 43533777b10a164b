"""A recording becomes segments, window by window, as each is done.

Follows `transcribe` in openai/whisper's transcribe.py: windows seek by the timestamps that were
predicted, text conditions the next window, doubtful windows are tried again, silent ones skipped.
Segments that are empty or take no time are not yielded. Knows no file formats and no runtime.
"""

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.decoding.whisper import (
    DecodingOptions,
    DecodingResult,
    Features,
    WindowDecoder,
    likeliest,
)
from kvcast.tasks.params import TranscribeParams
from kvcast.tasks.whisper.fallback import is_silence, rejection
from kvcast.tasks.whisper.segments import (
    FRAMES_PER_SECOND,
    WINDOW_FRAMES,
    Segment,
    Span,
    Window,
    split,
)
from kvcast.text.whisper import WhisperTokenizer

__all__ = ["Segment", "Transcription", "Windows", "clipped_frames", "initial_tokens"]

_PROMPT_RESET_TEMPERATURE = 0.5
"""Text that took a higher temperature is too doubtful to condition the next window."""


class Windows(Protocol):
    """What is needed of a recording: see `kvcast.audio.features.MelWindows`."""

    @property
    def content_frames(self) -> int:
        """Frames of sound."""

    @property
    def duration(self) -> float:
        """Seconds of sound."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know."""

    def window(self, seek: int, end: int | None = None) -> NDArray[np.float32]:
        """Return the encoder's input [n_mels, 3000] from `seek`, zeros from `end` on."""

    def first_window(self) -> NDArray[np.float32]:
        """Return what the language is detected from, [n_mels, 3000]."""

    def close(self) -> None:
        """Release the recording."""


def clipped_frames(params: TranscribeParams, content_frames: int) -> tuple[int, int]:
    """Return the first frame of the part to transcribe, and the one after its last."""
    end = content_frames
    if params.clip_end is not None:
        end = min(round(params.clip_end * FRAMES_PER_SECOND), content_frames)
    return round(params.clip_start * FRAMES_PER_SECOND), end


def initial_tokens(params: TranscribeParams, tokenizer: WhisperTokenizer) -> list[int]:
    """Return what precedes the first window."""
    if params.initial_prompt is None:
        return []
    return tokenizer.encode(" " + params.initial_prompt.strip())


class Transcription(Iterator[Segment]):
    """Segments of one recording, decoded while they are taken; can be taken once.

    The recording is released when the last segment was taken, or by `close`.
    """

    def __init__(
        self,
        decoder: WindowDecoder,
        windows: Windows,
        *,
        attempts: Sequence[DecodingOptions],
        params: TranscribeParams,
    ) -> None:
        """Prepare; nothing is decoded yet.

        Args:
            decoder: the model.
            windows: the recording.
            attempts: how to decode a window first, and after each rejection; one at least.
            params: all other options.

        """
        self._decoder = decoder
        self._windows = windows
        self._attempts = attempts
        self._params = params
        self._segments = self._transcribe()

    @property
    def duration(self) -> float:
        """Seconds of the whole recording."""
        return self._windows.duration

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know, one line each."""
        start, end = clipped_frames(self._params, self._windows.content_frames)
        if start < end:
            return self._windows.notices
        late = f"clip_start {self._params.clip_start:g} is past the end, {self.duration:.2f} s"
        return (*self._windows.notices, late)

    @cached_property
    def language(self) -> str:
        """Code of the language: the one asked for, or else detected in the first 30 seconds."""
        if (language := self._attempts[0].language) is not None:
            return self._decoder.tokenizer.language_code(language)
        if not self._decoder.tokenizer.is_multilingual:
            return "en"
        [found] = self._decoder.detect_languages([Features(self._windows.first_window())])
        return likeliest(found)

    def __next__(self) -> Segment:
        """Decode as far as the next segment takes."""
        return next(self._segments)

    def close(self) -> None:
        """Stop, and release the recording."""
        self._segments.close()
        self._windows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _transcribe(self) -> Generator[Segment]:
        prompt = initial_tokens(self._params, self._decoder.tokenizer)
        seek, end = clipped_frames(self._params, self._windows.content_frames)
        found = itertools.count()
        try:
            while seek < end:
                window = Window(seek, min(WINDOW_FRAMES, end - seek))
                result, rejections = self._decode(window, prompt)
                if is_silence(result, self._params):
                    seek += window.frames
                    continue
                spans, advance = split(
                    result.tokens, window, self._decoder.tokenizer.timestamp_begin
                )
                for span in spans:
                    text = self._text(span)
                    if text.strip() and span.start != span.end:
                        prompt += span.tokens
                        yield _segment(next(found), window, span, text, result, rejections)
                if not self._conditions_next(result):
                    prompt.clear()
                seek += advance
        finally:
            self._windows.close()

    def _decode(
        self, window: Window, prompt: Sequence[int]
    ) -> tuple[DecodingResult, tuple[str, ...]]:
        """Try all ways to decode a window, until a result is accepted or none is left.

        Returns the last result, and why each one before it was rejected.
        """
        heard = Features(self._windows.window(window.seek, window.seek + window.frames))
        rejections: list[str] = []
        for options in self._attempts:
            spoken = replace(options, language=self.language)
            [result] = self._decoder.decode([heard], spoken, prompt=prompt, stream=window.seek)
            reason = rejection(result, self._params)
            if reason is None or options is self._attempts[-1]:
                break
            rejections.append(reason)
        return result, tuple(rejections)

    def _conditions_next(self, result: DecodingResult) -> bool:
        """Tell whether a window's text prompts the next window."""
        certain = result.temperature <= _PROMPT_RESET_TEMPERATURE
        return self._params.condition_on_previous_text and certain

    def _text(self, span: Span) -> str:
        tokenizer = self._decoder.tokenizer
        return tokenizer.decode(token for token in span.tokens if token < tokenizer.eot)


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
