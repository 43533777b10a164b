"""Options and results of decoding a 30-second window, as openai/whisper's decoding.py has them.

Turns options into filters and a strategy. Knows no requests and no recordings.
"""

from dataclasses import dataclass

from typing_extensions import override

from kvcast.decoding.filters import LogitFilter, NoRepeatNgram, RepetitionPenalty, SuppressTokens
from kvcast.decoding.speculation import DraftCounts
from kvcast.errors import UsageError
from kvcast.speech.params import SEARCH, WindowParams
from kvcast.speech.strategies import BeamSearch, Greedy, Sampling, Strategy
from kvcast.whisper.filters import FinishSegments, SuppressBlank, TimestampRules
from kvcast.whisper.tokenizer import SECONDS_PER_TIMESTAMP, WhisperTokenizer
from kvcast.whisper.window_prompt import check_prompt

NON_SPEECH = -1
"""In `suppress_tokens`, stands for the tokenizer's non-speech tokens."""


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(WindowParams):
    """Options that decide a window's tokens, beside the sound and the prompt.

    Attributes:
        temperature: 0 takes the likeliest tokens, more samples.
        max_initial_timestamp: latest start of the first segment in seconds; None is any.
        latest_start: segments that begin up to here, in seconds of the window, are written to their
            ends; None leaves the last one to the next window, if the model wants that.

    Raises:
        UsageError: for a value out of range or options that exclude each other.

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
        """Raise UsageError for options that a model of this tokenizer and context cannot serve."""
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
        """Return the search; `stream` keeps random numbers of different windows apart."""
        if self.temperature > 0:
            seed = (self.seed, stream, round(1000 * self.temperature))
            return Sampling(self.temperature, self.best_of, seed)
        if self.beam > 1:
            return BeamSearch(self.beam, self.patience or 1.0)
        return Greedy()

    def filters(self, tokenizer: WhisperTokenizer) -> list[LogitFilter]:
        """Return the logit filters in the order in which they apply."""
        filters: list[LogitFilter] = []
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

    Attributes:
        language: code.
        tokens: ids with timestamps, without prompt and end.
        text: decoded and stripped.
        avg_logprob: mean log-probability of the tokens and the end.
        no_speech_prob: probability that the window holds no speech.
        temperature: at which it was decoded.
        compression_ratio: bytes of text over bytes compressed; high if it repeats itself.
        complete: whether the model ended the text, and not the limit of tokens.
        draft: counts of drafted tokens; None without drafts.
        repetition: the endless repetition at which the text was stopped, as in
            'repeats " you" 48 times'; the tokens and the text have it once at most.

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
