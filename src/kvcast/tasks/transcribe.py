"""A recording becomes segments, window by window, as each is done.

Follows `transcribe` in openai/whisper's transcribe.py: windows seek by the timestamps that were
predicted, text conditions the next window, doubtful windows are tried again, silent ones skipped.
Segments that are empty or take no time are not yielded. Knows no file formats and no runtime.
"""

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
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
from kvcast.tasks.whisper.fallback import Thresholds
from kvcast.tasks.whisper.segments import (
    FRAMES_PER_SECOND,
    WINDOW_FRAMES,
    Segment,
    Span,
    Window,
    split,
)
from kvcast.text.whisper import WhisperTokenizer

__all__ = ["Clip", "Prompting", "Segment", "Transcription", "Windows"]

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


@dataclass(frozen=True, kw_only=True)
class Clip:
    """The part of a recording to transcribe, in seconds; an `end` of None is the recording's."""

    start: float = 0.0
    end: float | None = None

    def frames(self, content_frames: int) -> tuple[int, int]:
        """Return the first frame and the one after the last."""
        if self.end is None:
            return round(self.start * FRAMES_PER_SECOND), content_frames
        end = round(self.end * FRAMES_PER_SECOND)
        return round(self.start * FRAMES_PER_SECOND), min(end, content_frames)


@dataclass(frozen=True, kw_only=True)
class Prompting:
    """What text each window is decoded after."""

    initial_prompt: str | None = None
    condition_on_previous_text: bool = True

    def initial_tokens(self, tokenizer: WhisperTokenizer) -> list[int]:
        """Return what precedes the first window."""
        if self.initial_prompt is None:
            return []
        return tokenizer.encode(" " + self.initial_prompt.strip())

    def keeps(self, temperature: float) -> bool:
        """Tell whether text decoded at this temperature prompts the next window."""
        return self.condition_on_previous_text and temperature <= _PROMPT_RESET_TEMPERATURE


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
        thresholds: Thresholds,
        prompting: Prompting,
        clip: Clip,
    ) -> None:
        """Prepare; nothing is decoded yet.

        Args:
            decoder: the model.
            windows: the recording.
            attempts: how to decode a window first, and after each rejection; one at least.
            thresholds: what is rejected, and what is silence.
            prompting: what text a window is decoded after.
            clip: the part of the recording to transcribe.

        """
        self._decoder = decoder
        self._windows = windows
        self._attempts = attempts
        self._thresholds = thresholds
        self._prompting = prompting
        self._clip = clip
        self._segments = self._transcribe()

    @property
    def duration(self) -> float:
        """Seconds of the whole recording."""
        return self._windows.duration

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know, one line each."""
        start, end = self._clip.frames(self._windows.content_frames)
        if start < end:
            return self._windows.notices
        late = f"clip_start {self._clip.start:g} is past the end, {self.duration:.2f} s"
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
        prompt = self._prompting.initial_tokens(self._decoder.tokenizer)
        seek, end = self._clip.frames(self._windows.content_frames)
        found = itertools.count()
        try:
            while seek < end:
                window = Window(seek, min(WINDOW_FRAMES, end - seek))
                result, rejections = self._decode(window, prompt)
                if self._thresholds.is_silence(result):
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
                if not self._prompting.keeps(result.temperature):
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
            rejection = self._thresholds.rejection(result)
            if rejection is None or options is self._attempts[-1]:
                break
            rejections.append(rejection)
        return result, tuple(rejections)

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
