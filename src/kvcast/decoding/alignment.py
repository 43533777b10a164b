"""Alignment of a window's text with its speech, as one of the loop's requests.

The finished tokens are read once more, all in one call, over the window's encoded input, which is
still in its slot if no other input has needed that. What comes of it is what openai-whisper's
timing.py places words in time by: how each token attends to the speech, and how probable it was.
Knows neither words nor recordings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
from typing_extensions import override

from kvcast.decoding.numerics import log_probabilities
from kvcast.decoding.requests import OVER, Continuations, Input, Prompt, Request
from kvcast.decoding.token_times import TokenTimes, token_times
from kvcast.decoding.whisper import Features, Job, WindowDecoder
from kvcast.runtimes.base import EncoderDecoder, Float32, Int64, Runtime


class AlignmentRequest(Request):
    """A pass over tokens that are known.

    Attributes:
        attention_st: [s, frames], once it is done: how much each of the s tokens of start, text and
            end stands out at each frame.
        probabilities_n: [n], once it is done: of each token of the text after those before it,
            among the tokens of text.

    """

    def __init__(
        self,
        window: Input,
        start: Sequence[int],
        text: Sequence[int],
        *,
        frames: int,
        eot: int,
        added: Sequence[int] = (),
    ) -> None:
        """Begin.

        Args:
            window: what the text was heard in.
            start: from start-of-transcript to no-timestamps.
            text: [n], n >= 1; without timestamps and end. All tokens fit the model's context.
            frames: how many of the encoder's frames are of the recording.
            eot: the token that ends a text; those before it are tokens of text.
            added: those after it that are text as well, ascending.

        """
        if not text:
            raise ValueError("there is no text to align")
        tokens = np.array([*start, *text, eot], np.int64)
        super().__init__(Prompt(tokens, input=window), capacity=len(tokens))
        self._start, self._eot, self._added = len(start), eot, list(added)
        self._frames = frames
        self.attention_st: Float32 = np.empty((0, 0), np.float32)
        self.probabilities_n: Float32 = np.empty(0, np.float32)

    @override
    def read_at_once(self, runtime: Runtime, cache: object, row: int) -> bool:
        tokens_s, start = self.prompt.tokens, self._start
        # The logits of a token are those at the one before it.
        asked = range(start - 1, len(tokens_s) - 2)
        aligning = cast(EncoderDecoder, runtime)
        found = aligning.align(tokens_s, cache, row, asked)
        self.attention_st = aligning.attention_by_token(found.scores_hst, self._frames)
        self.probabilities_n = self._probabilities(found.logits_pv, tokens_s[start:-1])
        return True

    def _probabilities(self, logits_nv: Float32, text_n: Int64) -> Float32:
        """Return that of each token of the text among all tokens of text."""
        text_nv, columns_n = logits_nv[:, : self._eot], text_n
        if self._added:
            text_nv = np.concatenate([text_nv, logits_nv[:, self._added]], axis=1)
            places_n = self._eot + np.searchsorted(self._added, text_n)
            columns_n = np.where(text_n < self._eot, text_n, places_n)
        probabilities_n: Float32 = np.exp(log_probabilities(text_nv, columns_n[:, None])[:, 0])
        return probabilities_n

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        del logits_rv
        return OVER


@dataclass(frozen=True, eq=False, kw_only=True)
class AlignmentJob(Job):
    """The text of a window, whose tokens are to be placed in time: its result is `TokenTimes`.

    Attributes:
        window: in which the text was heard.
        language: code of the one spoken.
        task: as the text was decoded.
        text: its tokens, one or more; without timestamps.
        frames: how many of the encoder's frames are of the recording.

    """

    window: Features
    language: str
    task: str
    text: Sequence[int]
    frames: int

    @override
    def start(self, decoder: WindowDecoder) -> None:
        tokenizer = decoder.tokenizer
        start = tokenizer.sot_sequence(self.language, self.task, timestamps=False)
        fitting = self.text[: decoder.context - len(start) - 1]
        request = AlignmentRequest(
            self.window,
            start,
            fitting,
            frames=self.frames,
            eot=tokenizer.eot,
            added=tokenizer.added_text,
        )
        decoder.run(self, request, partial(self._times, request, len(start)))

    def _times(self, request: AlignmentRequest, before: int) -> TokenTimes:
        times = token_times(request.attention_st, request.probabilities_n, before=before)
        return times.padded(len(self.text))
