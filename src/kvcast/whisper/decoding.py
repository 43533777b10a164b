"""Options, prompt and logits processors of a 30-second window, as in openai/whisper's decoding.py.

Hotwords and the order before a prefix are faster-whisper's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from typing_extensions import override

from kvcast.decoding.logits_processors import (
    LogitsProcessor,
    NoRepeatNgram,
    RepetitionPenalty,
    SuppressTokens,
)
from kvcast.decoding.sampling import sampling_kernels
from kvcast.decoding.sampling_kernels import TimestampTokens
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.errors import UsageError
from kvcast.runtimes.base import Float32, Int64
from kvcast.speech.params import SEARCH, WindowParams
from kvcast.speech.strategies import BeamSearch, Greedy, Sampling, Strategy
from kvcast.whisper.tokenizer import SECONDS_PER_TIMESTAMP, WhisperTokenizer, timestamps_from

NON_SPEECH = -1  # in `suppress_tokens`, the tokenizer's non-speech tokens


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(WindowParams):
    """Options that decide a window's tokens, besides the audio and the prompt.

    `temperature`: 0 decodes greedily or with beams, more samples. `max_initial_timestamp`: latest
    start of the first segment in seconds; None is any. `latest_start`: segments that begin up to
    here, in seconds of the window, are decoded to their ends; None allows the model to leave the
    last one to the next window.
    """

    temperature: float = SEARCH(0.0, least=0)("0 is a search, more samples")
    max_initial_timestamp: float | None = 1.0
    latest_start: float | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0 and self.best_of > 1:
            raise UsageError("best_of needs a temperature above 0: at 0 all samples are the same")
        if self.temperature > 0 and self.beam > 1:
            raise UsageError("beam needs temperature 0: above it best_of samples are drawn")
        self.strategy()

    def check(self, tokenizer: WhisperTokenizer, context: int) -> None:
        check_prompt(self, tokenizer, context)
        if self.task == "translate" and not tokenizer.is_multilingual:
            raise UsageError("this model knows English only and cannot translate")
        for token in self.suppressed_ids():
            if not NON_SPEECH <= token < tokenizer.vocab_size:
                raise UsageError(
                    f"suppress_tokens: {token} is no token; give -1 or ids below "
                    f"{tokenizer.vocab_size}"
                )

    def strategy(self, stream: int = 0) -> Strategy:
        """Return the search; `stream` seeds different windows differently."""
        if self.temperature > 0:
            seed = (self.seed, stream, round(1000 * self.temperature))
            return Sampling(self.temperature, self.best_of, seed)
        if self.beam > 1:
            return BeamSearch(self.beam, self.patience or 1.0)
        return Greedy()

    def filters(self, tokenizer: WhisperTokenizer) -> list[LogitsProcessor]:
        """Return the logit filters in the order in which they apply."""
        filters: list[LogitsProcessor] = []
        if self.repetition_penalty != 1:
            filters.append(RepetitionPenalty(self.repetition_penalty))
        if self.no_repeat_ngram:
            filters.append(NoRepeatNgram(self.no_repeat_ngram))
        filters.append(SuppressBlank(tokenizer.blank))
        if ids := set(self.suppressed_ids()):
            if NON_SPEECH in ids:
                ids = ids - {NON_SPEECH} | set(tokenizer.non_speech_tokens)
            ids |= set(tokenizer.control_tokens)
        if ids := ids | set(tokenizer.unused_tokens):
            filters.append(SuppressTokens(sorted(ids)))
        if self.timestamps:
            latest = self.max_initial_timestamp
            filters.append(
                TimestampRules(
                    begin=tokenizer.timestamp_begin,
                    end=tokenizer.timestamp_end,
                    eot=tokenizer.eot,
                    no_timestamps=tokenizer.no_timestamps,
                    latest_initial=round(latest / SECONDS_PER_TIMESTAMP) if latest else None,
                )
            )
            if self.latest_start is not None:
                begin = tokenizer.timestamp_begin
                last = begin + round(self.latest_start / SECONDS_PER_TIMESTAMP)
                filters.append(FinishSegments(begin=begin, eot=tokenizer.eot, latest=last))
        return filters


@dataclass(frozen=True, kw_only=True)
class DecodingResult:
    """The text of a window.

    `avg_logprob`: mean over the tokens and the end. `compression_ratio`: bytes of text over bytes
    compressed; high if it repeats itself. `complete`: whether the model ended the text, and not the
    limit of tokens. `repetition`: the loop at which the text was stopped, as in 'repeats " you" 48
    times'; the tokens and the text have it once at most.
    """

    language: str
    tokens: tuple[int, ...]
    text: str
    avg_logprob: float
    no_speech_prob: float
    temperature: float
    compression_ratio: float
    complete: bool = True
    repetition: str | None = None
    draft: DraftCounts | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the result of which `asdict` made this record, before or after JSON."""
        draft = record["draft"]
        values = {
            "tokens": tuple(record["tokens"]),
            "draft": None if draft is None else DraftCounts(**draft),
        }
        return cls(**{**record, **values})


@dataclass(frozen=True)
class SuppressBlank(LogitsProcessor):
    """A text does not start with these tokens."""

    blank: tuple[int, ...]

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        if not generated_rn.shape[1]:
            logits_rv[:, self.blank] = -np.inf


@dataclass(frozen=True, kw_only=True)
class TimestampRules(LogitsProcessor):
    """Timestamps come in pairs, never go back, start the transcript, and win by total weight.

    Ids from `begin` to before `end` are timestamps; text is below `eot` and, where a fine-tune has
    added some, from `end` on. The first timestamp is at most `begin + latest_initial`.
    """

    begin: int
    end: int
    eot: int
    no_timestamps: int
    latest_initial: int | None

    @cached_property
    def _tokens(self) -> TimestampTokens:
        return TimestampTokens(self.begin, self.end, self.eot, self.no_timestamps)

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        if not generated_rn.shape[1]:
            last = self.end
            if self.latest_initial is not None:
                last = min(last, self.begin + self.latest_initial + 1)
            logits_rv[:, : self.begin] = -np.inf
            logits_rv[:, last:] = -np.inf
            return
        sampling_kernels().apply_timestamp_rules(logits_rv, generated_rn, self._tokens)


class Continued(LogitsProcessor):
    """Another filter, to which tokens before the sampled ones count as sampled."""

    def __init__(self, following: LogitsProcessor, before: Sequence[int]) -> None:
        self._following = following
        self._before_1n = np.asarray(before, np.int64)[None]

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        before_rn = np.repeat(self._before_1n, len(generated_rn), axis=0)
        self._following.apply(logits_rv, np.concatenate([before_rn, generated_rn], axis=1))


@dataclass(frozen=True, kw_only=True)
class FinishSegments(LogitsProcessor):
    """A text does not end where a segment begins, up to the timestamp `latest`.

    Whisper would leave that segment to the next window, if there is one.
    """

    begin: int
    eot: int
    latest: int

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        if generated_rn.shape[1] < 2:
            return
        last_r2 = generated_rn[:, -2:]
        timestamps = timestamps_from(self.begin)
        begins_r = ((last_r2 >= timestamps.start) & (last_r2 < timestamps.stop)).all(axis=1)
        logits_rv[begins_r & (generated_rn[:, -1] <= self.latest), self.eot] = -np.inf


@dataclass(frozen=True, kw_only=True)
class WindowPrompt:
    """The parts of a prompt, in this order."""

    before: tuple[int, ...]  # hotwords and the end of the previous text; may be empty
    task: tuple[int, ...]
    forced: tuple[int, ...]  # known tokens at the beginning of the text, the prefix first

    @classmethod
    def of(
        cls,
        params: WindowParams,
        language: str,
        *,
        previous: Sequence[int],
        forced: Sequence[int] = (),
        tokenizer: WhisperTokenizer,
        context: int,
    ) -> Self:
        """Assemble a prompt with the end of `previous` that fits, and `forced` after the prefix.

        Raises UsageError for hotwords or a prefix that are too long.
        """
        hotwords = _hotwords(params, tokenizer, context)
        room = _room_before(context) - len(hotwords)
        before = [*hotwords, *previous[max(0, len(previous) - room) :]]
        return cls(
            before=(tokenizer.sot_prev, *before) if before else (),
            task=tokenizer.sot_sequence(language, params.task, timestamps=params.timestamps),
            forced=(*_prefix(params, tokenizer, context), *forced),
        )

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.before, *self.task, *self.forced)


def check_prompt(params: WindowParams, tokenizer: WhisperTokenizer, context: int) -> None:
    _hotwords(params, tokenizer, context)
    _prefix(params, tokenizer, context)


def cut_notices(
    initial: Sequence[int], params: WindowParams, tokenizer: WhisperTokenizer, context: int
) -> tuple[str, ...]:
    """Return a notice if the initial prompt, of these tokens, is longer than fits."""
    room = _room_before(context) - len(_hotwords(params, tokenizer, context))
    if len(initial) <= room:
        return ()
    beside = " beside the hotwords" if params.hotwords is not None else ""
    return (
        f"the initial prompt is cut: of its {len(initial)} tokens, the last {room} fit{beside}, "
        f"and {len(initial) - room} are left out",
    )


def _hotwords(params: WindowParams, tokenizer: WhisperTokenizer, context: int) -> list[int]:
    if params.hotwords is None:
        return []
    return _limited("hotwords", params.hotwords, tokenizer, _room_before(context))


def _prefix(params: WindowParams, tokenizer: WhisperTokenizer, context: int) -> tuple[int, ...]:
    if params.prefix is None:
        return ()
    # Half of the most that a window's text may have.
    forced = _limited("prefix", params.prefix, tokenizer, context // 4)
    return (tokenizer.timestamp_begin, *forced) if params.timestamps else tuple(forced)


def _limited(name: str, text: str, tokenizer: WhisperTokenizer, most: int) -> list[int]:
    tokens = tokenizer.encode(" " + text.strip())
    if len(tokens) > most:
        raise UsageError(
            f"{name} may have {most} tokens with this model, not {len(tokens)}: shorten it"
        )
    return tokens


def _room_before(context: int) -> int:
    """Return how many tokens may precede the task, besides start-of-previous."""
    return context // 2 - 1
