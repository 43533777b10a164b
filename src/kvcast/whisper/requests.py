"""Requests about a 30-second window: its language, its text, its alignment; and repetition loops.

A looping text has period p if each of its last tokens equals the token p positions earlier.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Self, cast

import numpy as np
from typing_extensions import override

from kvcast.decoding.sampling import check_not_nan, softmax
from kvcast.decoding.speculative_decoding import Speculation, Speculations
from kvcast.engine.requests import OVER, Continuations, Input, Prompt, Request
from kvcast.runtimes.base import EncoderDecoder, Float32, Int64, Runtime, TokenProbabilityQuery
from kvcast.speech.strategies import Candidate, MaximumLikelihood, SearchRequest
from kvcast.transcripts.segments import compression_ratio
from kvcast.whisper.decoding import Continued, DecodingOptions, DecodingResult, WindowPrompt
from kvcast.whisper.tokenizer import WhisperTokenizer, timestamps_from
from kvcast.whisper.word_timestamps import TokenTimes

_COPIES = 4
_TOKENS = 48  # shorter or fewer copies are refrains, counts, or "no, no, no"


@dataclass(frozen=True)
class Repetition:
    """The same words over and over, up to a text's end; the first copy is `tokens[begin:end]`.

    There may be timestamps among them.
    """

    begin: int
    end: int
    copies: int


def repetition(tokens: Sequence[int], eot: int) -> Repetition | None:
    """Return the repetition that ends a sequence: at least 4 copies and 48 tokens of the same text.

    Ids below `eot` are text; others, as timestamps, may occur between.
    """
    ids_n = np.asarray(tokens, np.int64)
    [places_t] = np.nonzero(ids_n < eot)
    text_t = ids_n[places_t]
    if len(text_t) < _TOKENS:
        return None
    backwards_t = text_t[::-1]
    # The last copy ends with the same token as the copy before it.
    periods = np.flatnonzero(backwards_t[1 : len(text_t) // _COPIES + 1] == backwards_t[0]) + 1
    for period in periods.tolist():
        differs = np.flatnonzero(text_t[period:] != text_t[:-period])
        begin = int(differs[-1]) + 1 if differs.size else 0
        length = len(text_t) - begin
        if length >= max(_TOKENS, _COPIES * period):
            return Repetition(
                begin=int(places_t[begin]),
                end=int(places_t[begin + period - 1]) + 1,
                copies=length // period,
            )
    return None


def without_repetition(
    tokens: Sequence[int], repetition: Repetition, timestamp_begin: int
) -> tuple[int, ...]:
    """Return the tokens to keep of a sequence that ends in a repetition.

    If a segment was finished before it, everything before it: the rest is decoded again from there.
    Otherwise the first copy as well, with the timestamp that closes it, if there is one.
    """
    tokens = tuple(tokens)
    timestamps = timestamps_from(timestamp_begin)
    is_timestamp = [token in timestamps for token in tokens]
    if any(map(all, pairwise(is_timestamp[: repetition.begin]))):
        return tokens[: repetition.begin]
    closed = repetition.end < len(tokens) and is_timestamp[repetition.end]
    return tokens[: repetition.end + closed]


_SHOWN = 60  # characters of a repeated text that are shown


@dataclass(frozen=True, eq=False)
class Features(Input):
    """Log-mel features [n_mels, frames] of 30 seconds."""

    features_mt: Float32

    # A window alone fills the encoder's GEMMs. Several would save no time, multiply the memory,
    # and in int8 share scales.
    most_together: ClassVar[int | None] = 1

    @property
    @override
    def positions(self) -> int:
        return int(self.features_mt.shape[1]) // 2

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[Float32]:
        return (np.stack([window.features_mt for window in inputs]),)


class LanguageRequest(Request):
    def __init__(self, window: Features, tokenizer: WhisperTokenizer) -> None:
        super().__init__(Prompt(np.array([tokenizer.sot], np.int64), input=window), capacity=1)
        self._tokenizer = tokenizer
        self.probabilities: dict[str, float] = {}

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        languages_rl = softmax(logits_rv[:, self._tokenizer.language_tokens])
        check_not_nan(languages_rl)
        codes = self._tokenizer.languages
        self.probabilities = dict(zip(codes, languages_rl[0].tolist(), strict=True))
        return OVER


@dataclass(frozen=True)
class _Repetition:
    """Returns whether the best text so far repeats itself.

    No method of the request, which would hold itself, and its window until Python looks for cycles.
    """

    ranking: MaximumLikelihood
    eot: int

    def __call__(self, candidates: Sequence[Candidate]) -> bool:
        return repetition(self.ranking.best(candidates).tokens, self.eot) is not None


class WindowRequest(SearchRequest):
    """Decodes a window's text, and stops if it only repeats itself."""

    def __init__(
        self,
        window: Features,
        options: DecodingOptions,
        prompt: WindowPrompt,
        *,
        known: int,
        language: str,
        tokenizer: WhisperTokenizer,
        room: int,
        stream: int,
        speculations: Speculations | None,
    ) -> None:
        """Begin; `known`: tokens of the text at the prompt's end, which the result leaves out."""
        ranking = MaximumLikelihood(options.length_penalty)
        filters = options.filters(tokenizer)
        if prompt.forced:
            filters = [Continued(each, prompt.forced) for each in filters]
        super().__init__(
            Prompt(np.array(prompt.tokens, np.int64), input=window),
            strategy=options.strategy(stream),
            filters=filters,
            eot=tokenizer.eot,
            max_new_tokens=min(options.max_new_tokens or room, room),
            probe=len(prompt.before),  # start of transcript
            hopeless=_Repetition(ranking, tokenizer.eot) if options.stop_repetition else None,
        )
        self.drafts: Speculation | None = None
        if speculations is not None and self.width == 1:
            self.drafts = speculations.begin(self.prompt, self.capacity, filters)
        self._options = options
        self._language = language
        self._prefix = prompt.forced[: len(prompt.forced) - known]
        self._tokenizer = tokenizer
        self._ranking = ranking

    def result(self) -> DecodingResult:
        tokenizer = self._tokenizer
        best = self._ranking.best(self.search.candidates())
        tokens = (*self._prefix, *best.tokens)
        again = repetition(tokens, tokenizer.eot) if self._options.stop_repetition else None
        kept = without_repetition(tokens, again, tokenizer.timestamp_begin) if again else tokens
        return DecodingResult(
            language=self._language,
            tokens=kept,
            text=tokenizer.decode(kept).strip(),
            avg_logprob=best.sum_logprob / (len(best.tokens) + 1),
            no_speech_prob=float(softmax(self.probed_v[None])[0, tokenizer.no_speech]),
            temperature=self._options.temperature,
            compression_ratio=compression_ratio(tokenizer.decode(tokens).strip()),
            complete=again is None and len(best.tokens) < self.max_new_tokens,
            repetition=self._repetition(tokens, again) if again else None,
            draft=None if self.drafts is None else self.drafts.counts(),
        )

    def _repetition(self, tokens: Sequence[int], again: Repetition) -> str:
        text = self._tokenizer.decode(tokens[again.begin : again.end])
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        return f"repeats {json.dumps(shown, ensure_ascii=False)} {again.copies} times"


class AlignmentRequest(Request):
    """Aligns a text's tokens with the speech, once they are known.

    The tokens are fed once more, all in one call, over the window's encoded input, which is still
    in its slot unless another input took it. As in openai-whisper's timing.py, the results are the
    frame at which each token begins, by dtw over its attention, and its probability.

    The queries of the decode steps would save this call, but unlike OpenAI's they follow a prompt
    and timestamps: on read speech 5 to 15% of the words were then more than 50 ms away from
    openai-whisper's, up to 2.7 s.

    Once it is done: `attention_st`: how much each of the s tokens of start, text and end stands out
    at each frame; the rest as in `TokenTimes`.
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
        """Begin; `text`: [n], n >= 1, without timestamps and end. All fit the model's context.

        `frames`: of the recording, in the encoder's frames. `among_v`: [vocab], 0 for tokens of
        text and -inf for the others.
        """
        if not text:
            raise ValueError("there is no text to align")
        tokens = np.array([*start, *text, eot], np.int64)
        super().__init__(Prompt(tokens, input=window), capacity=len(tokens))
        # The logits of each position give the probability of the next token.
        before = range(len(start) - 1, len(tokens) - 2)
        self._asked = TokenProbabilityQuery(before, tokens[len(start) : -1], among_v)
        self._frames = frames
        # The model predicts the first text token at the last start token, so that token's
        # attention places it.
        self._attending = slice(len(start) - 1, -1)
        self.attention_st: Float32 = np.empty((0, 0), np.float32)
        self.begins_n: Int64 = np.empty(0, np.int64)
        self.probabilities_n: Float32 = np.empty(0, np.float32)
        self.attended_n: Int64 = np.empty(0, np.int64)

    @override
    def read_at_once(self, runtime: Runtime, cache: object, row: int) -> bool:
        aligning = cast(EncoderDecoder, runtime)
        alignment = aligning.align(self.prompt.tokens, cache, row, self._asked)
        self.attention_st = aligning.attention_by_token(alignment.scores_hst, self._frames)
        attended_nt = self.attention_st[self._attending]
        self.begins_n = aligning.dtw(attended_nt)
        self.attended_n = attended_nt[:-1].argmax(axis=1)
        self.probabilities_n = alignment.probabilities_p
        return True

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        del logits_rv
        return OVER

    def times(self) -> TokenTimes:
        return TokenTimes(self.begins_n, self.probabilities_n, self.attended_n)


def likeliest(probabilities: Mapping[str, float]) -> str:
    """Return the code with the highest probability; of equals the first."""
    return max(probabilities, key=probabilities.__getitem__)
