"""Alignment of a window's text with its speech, as one of the loop's requests.

The finished tokens are read once more, all in one call, over the window's encoded input, which is
still in its slot if no other input has needed that. What comes of it is what openai-whisper's
timing.py places words in time by: where each token begins in the speech that it attends to, and how
probable it was.

The queries of the steps that wrote the text would save this call, but they follow a prompt and
timestamps, which OpenAI's do not: on read speech 5 to 15% of the words were then more than 50 ms
away from openai-whisper's, up to 2.7 s. Knows neither words nor recordings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
from typing_extensions import override

from kvcast.engine.requests import OVER, Continuations, Input, Prompt, Request
from kvcast.runtimes.base import Asked, EncoderDecoder, Float32, Int64, Runtime
from kvcast.whisper.decoding import Features, Job, WindowDecoder
from kvcast.whisper.token_times import TokenTimes
from kvcast.whisper.tokenizer import WhisperTokenizer


class AlignmentRequest(Request):
    """A pass over tokens that are known.

    Attributes:
        attention_st: [s, frames], once it is done: how much each of the s tokens of start, text and
            end stands out at each frame.
        begins_n: [n + 1], once it is done: the frame at which each token of the text begins, and
            the one at which the last ends.
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
        among_v: Float32,
    ) -> None:
        """Begin.

        Args:
            window: what the text was heard in.
            start: from start-of-transcript to no-timestamps.
            text: [n], n >= 1; without timestamps and end. All tokens fit the model's context.
            frames: how many of the encoder's frames are of the recording.
            eot: the token that ends a text.
            among_v: [vocab], 0 for tokens of text and -inf for the others.

        """
        if not text:
            raise ValueError("there is no text to align")
        tokens = np.array([*start, *text, eot], np.int64)
        super().__init__(Prompt(tokens, input=window), capacity=len(tokens))
        # A token is as probable as the one before it makes it.
        before = range(len(start) - 1, len(tokens) - 2)
        self._asked = Asked(before, tokens[len(start) : -1], among_v)
        self._frames = frames
        # The last of the start, and not the first token of the text, is what a model hears the
        # first token with.
        self._hearing = slice(len(start) - 1, -1)
        self.attention_st: Float32 = np.empty((0, 0), np.float32)
        self.begins_n: Int64 = np.empty(0, np.int64)
        self.probabilities_n: Float32 = np.empty(0, np.float32)

    @override
    def read_at_once(self, runtime: Runtime, cache: object, row: int) -> bool:
        aligning = cast(EncoderDecoder, runtime)
        found = aligning.align(self.prompt.tokens, cache, row, self._asked)
        self.attention_st = aligning.attention_by_token(found.scores_hst, self._frames)
        self.begins_n = aligning.first_frames(self.attention_st[self._hearing])
        self.probabilities_n = found.probabilities_p
        return True

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
            among_v=_text_alone(tokenizer),
        )
        decoder.run(self, request, partial(self._times, request))

    def _times(self, request: AlignmentRequest) -> TokenTimes:
        return TokenTimes(request.begins_n, request.probabilities_n).padded(len(self.text))


def _text_alone(tokenizer: WhisperTokenizer) -> Float32:
    """Return 0 for tokens of text and -inf for the others, [vocab]."""
    among_v = np.full(tokenizer.vocab_size, -np.inf, np.float32)
    among_v[: tokenizer.eot] = 0
    among_v[list(tokenizer.added_text)] = 0
    return among_v
