"""The end of a window: whether a text may go on in the next one.

Knows no model and no sound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.segments import FRAMES_PER_TIMESTAMP, Window
from kvcast.whisper.tokenizer import timestamps_from

_REMNANT = 1.0
"""Seconds before the end in which no segment begins: it is the pause in which the cut lies."""


class OpenEnd:
    """The end of a window in running speech: a text may go on in the next one."""

    def options(self, options: DecodingOptions, window: Window) -> DecodingOptions:
        """Return the options to decode a window with."""
        del window
        return options

    def tokens(self, result: DecodingResult, window: Window) -> Sequence[int]:
        """Return a window's tokens, with a timestamp at the end if no text goes on."""
        del window
        return result.tokens

    def resumed(self, after_words: int, after_timestamps: int) -> int:
        """Return the next window's frame, given the last word's end and the timestamps."""
        del after_timestamps
        return after_words


@dataclass(frozen=True)
class QuietEnd(OpenEnd):
    """Excerpts end in a pause, so no sentence goes on.

    OpenAI's rules leave the text after the last timestamp to the next window. An excerpt has no
    next one, so the model must finish its segments, and a finished text ends with the excerpt.
    """

    timestamp_begin: int

    @override
    def options(self, options: DecodingOptions, window: Window) -> DecodingOptions:
        return replace(options, latest_start=max(0.0, window.duration - _REMNANT))

    @override
    def tokens(self, result: DecodingResult, window: Window) -> Sequence[int]:
        tokens = result.tokens
        timestamps = timestamps_from(self.timestamp_begin)
        timed = [token in timestamps for token in tokens]
        if not any(timed) or not result.complete:
            return tokens
        if timed[-2:] == [True, True]:  # a segment in the remnant
            return tokens[:-1]
        if timed[-1]:
            return tokens
        return (*tokens, self.timestamp_begin + window.frames // FRAMES_PER_TIMESTAMP)

    @override
    def resumed(self, after_words: int, after_timestamps: int) -> int:
        return after_timestamps
