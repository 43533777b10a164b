"""NeMo's FastConformers: Canary, Cohere's Transcribe and Parakeet (CTC, RNN-T and TDT transducers).

Prompts and word times follow NeMo and transformers' processors. A transducer's decode
token packs a token id and the encoder frame that is read next.
"""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from typing_extensions import override

from kvcast.audio.mel import FRAMES_PER_SECOND, normalised_log_mel
from kvcast.decoding.sampling import check_not_nan
from kvcast.engine.requests import OVER, Continuations, Input, Prompt, Request
from kvcast.errors import UsageError
from kvcast.families.canary import CanaryDimensions
from kvcast.families.parakeet import ParakeetDimensions
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.speech.abilities import abilities_of
from kvcast.speech.model import SpeechModel
from kvcast.speech.params import TranscribeParams
from kvcast.speech.recognition import (
    ChunkOptions,
    Generated,
    LogMelFeatures,
    Recognition,
    Recognized,
    SpeechContext,
)
from kvcast.tokenizers.base import TextTokenizer
from kvcast.transcripts.segments import Word


class TransducerSizes(Protocol):
    @property
    def tokens(self) -> int:
        """Number of tokens; their logits come first, then the durations'."""

    @property
    def blank(self) -> int:
        """The blank token."""

    @property
    def prediction_layers(self) -> int:
        """LSTM layers of the prediction network; 0: CTC, which merges repeated tokens."""

    @property
    def durations(self) -> Sequence[int]:
        """Numbers of positions a token may span (TDT); empty (RNN-T): a blank one, others none."""

    @property
    def most_symbols(self) -> int:
        """Tokens at one position, at most: then the next one follows, as in NeMo."""


@dataclass(frozen=True)
class Emission:
    """A token, and the encoder positions that it covers."""

    token: int
    first: int
    end: int
    logprob: float


class TransducerRequest(Request):
    def __init__(self, source: Input, sizes: TransducerSizes) -> None:
        self._sizes, self._positions = sizes, source.positions
        # As in transformers, which counts the start token.
        self._left = sizes.most_symbols * source.positions - 1
        if not sizes.prediction_layers:
            self._left = source.positions
        super().__init__(
            Prompt(np.array([sizes.blank], np.int64), input=source), capacity=max(1, self._left)
        )
        self._position = self._symbols = 0
        self._before = sizes.blank
        self.emissions: list[Emission] = []

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        check_not_nan(logits_rv)
        sizes, [logits_v] = self._sizes, logits_rv
        of_tokens = logits_v[: sizes.tokens]
        token, first = int(of_tokens.argmax()), self._position
        taken = self._taken(token, logits_v[sizes.tokens :])
        self._position += taken
        if token != sizes.blank:
            self._emit(token, first, taken, of_tokens)
        self._before = token
        self._left -= 1
        if self._position >= self._positions or self._left <= 0:
            return OVER
        # CTC's logits depend on positions alone.
        return Continuations([0], [0], [token + sizes.tokens * self._position])

    def _taken(self, token: int, of_durations: Float32) -> int:
        sizes, is_blank = self._sizes, token == self._sizes.blank
        if not sizes.prediction_layers:
            return 1
        taken = sizes.durations[int(of_durations.argmax())] if sizes.durations else 0
        self._symbols += 1
        if taken == 0 and (is_blank or self._symbols >= sizes.most_symbols):
            taken = 1
        if taken:
            self._symbols = 0
        return taken

    def _emit(self, token: int, first: int, taken: int, logits_v: Float32) -> None:
        sizes, most = self._sizes, logits_v.max()
        logprob = float(logits_v[token] - most - np.log(np.exp(logits_v - most).sum()))
        end = first + (taken if sizes.durations else 1)
        if not sizes.prediction_layers and token == self._before:
            last = self.emissions[-1]
            self.emissions[-1] = Emission(token, last.first, end, max(last.logprob, logprob))
            return
        self.emissions.append(Emission(token, first, end, logprob))


_NOISE = {"cohere_asr": 1e-5}  # standard deviation of the dither added to samples, by architecture


class CanaryRecognition(Recognition):
    """A prompt of special tokens, which name the languages of the speech and of the text."""

    def __init__(self, tokenizer: TextTokenizer, dimensions: CanaryDimensions) -> None:
        self.tokenizer, self._encoder = tokenizer, dimensions.encoder
        self._before, self._noise = dimensions.before, _NOISE.get(dimensions.architecture, 0.0)
        self.most_positions = dimensions.encoder.positions
        self.ends = tokenizer.end_tokens
        named = {f"<|{code}|>": code for code in abilities_of(dimensions.architecture).languages}
        known = tokenizer.control_tokens(list(named))
        self.abilities = abilities_of(dimensions.architecture).among(named[text] for text in known)
        self.most_tokens = dimensions.target_positions - len(self.prompt(0, SpeechContext()))

    @override
    def input(self, samples: Float32) -> Input:
        features_tm = normalised_log_mel(samples, self._encoder.n_mels, self._noise)
        return LogMelFeatures(features_tm, self._encoder.embedding_count(len(features_tm)))

    @override
    def prompt(self, positions: int, context: SpeechContext) -> list[int]:
        spoken = context.language or "en"
        target = "en" if context.translates else spoken
        texts = [
            *("<|startoftranscript|>", "<|emo:undefined|>", f"<|{spoken}|>", f"<|{target}|>"),
            *("<|pnc|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>"),
        ]
        return [*self._before, *self.special(*texts)]


class CanaryModel(SpeechModel):
    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: CanaryDimensions
    ) -> None:
        super().__init__(runtime, tokenizer, dimensions, CanaryRecognition(tokenizer, dimensions))


_MULTILINGUAL_TOKENS = 8193  # of the published multilingual models; others know English


class ParakeetRecognition(Recognition):
    refused = frozenset(
        {
            *("beam", "patience", "length_penalty"),
            *("max_new_tokens", "repetition_penalty", "no_repeat_ngram"),
        }
    )

    def __init__(self, tokenizer: TextTokenizer, dimensions: ParakeetDimensions) -> None:
        self.tokenizer, self._dimensions = tokenizer, dimensions
        self.abilities = abilities_of(dimensions.architecture)
        if dimensions.tokens < _MULTILINGUAL_TOKENS:
            self.abilities = self.abilities.among(["en"])
        self.most_positions = dimensions.encoder.positions
        self.most_tokens = dimensions.positions - 1
        self.ends = [dimensions.blank]

    @override
    def input(self, samples: Float32) -> Input:
        encoder = self._dimensions.encoder
        features_tm = normalised_log_mel(samples, encoder.n_mels)
        return LogMelFeatures(features_tm, encoder.embedding_count(len(features_tm)))

    @override
    def prompt(self, positions: int, context: SpeechContext) -> list[int]:
        return [self._dimensions.blank]

    @override
    def read(self, tokens: Sequence[int], context: SpeechContext) -> Recognized:
        language = context.language or ("en" if len(self.abilities.languages) == 1 else None)
        return Recognized(text=self.tokenizer.decode(tokens).strip(), language=language)

    @override
    def request(self, source: Input) -> TransducerRequest:
        return TransducerRequest(source, self._dimensions)

    @override
    def generated(self, request: TransducerRequest, context: SpeechContext) -> Generated:
        seconds = (1 << self._dimensions.encoder.halvings) / FRAMES_PER_SECOND
        emissions = request.emissions
        tokens = tuple(emission.token for emission in emissions)
        words, counts = words_of(emissions, self.tokenizer, seconds)
        return Generated(
            tokens=tokens,
            logprob=sum(emission.logprob for emission in emissions),
            recognized=replace(self.read(tokens, context), words=words, counts=counts),
        )


def words_of(
    emissions: Sequence[Emission], tokenizer: TextTokenizer, seconds: float
) -> tuple[tuple[Word, ...], tuple[int, ...]]:
    """Return words with times, and how many tokens each has; `seconds` lie between positions."""
    words: list[Word] = []
    counts: list[int] = []
    stream, apart, silent = tokenizer.stream(), True, 0
    for emission in emissions:
        text = stream.push(emission.token)
        apart = apart or text.startswith(" ")
        silent += 1
        if not text.strip():
            continue
        start, end = emission.first * seconds, emission.end * seconds
        probability = math.exp(emission.logprob)
        if apart or not words:
            word = f" {text.strip()}"
            words.append(Word(start=start, end=end, word=word, probability=probability))
            counts.append(silent)
        else:
            last, count = words[-1], counts[-1]
            end = last.end if _is_mark(text) else max(last.end, end)
            mean = (last.probability * count + probability) / (count + 1)
            words[-1] = replace(last, end=end, word=last.word + text, probability=mean)
            counts[-1] += silent
        apart, silent = text.endswith(" "), 0
    if words:
        words[-1] = replace(words[-1], word=words[-1].word + stream.finish())
        counts[-1] += silent
    return tuple(words), tuple(counts)


def _is_mark(text: str) -> bool:
    return all(unicodedata.category(character).startswith("P") for character in text.strip())


class ParakeetModel(SpeechModel):
    """An audio encoder, and a small network that emits tokens position by position."""

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: ParakeetDimensions
    ) -> None:
        super().__init__(runtime, tokenizer, dimensions, ParakeetRecognition(tokenizer, dimensions))

    @override
    def chunk_options(self, params: TranscribeParams) -> ChunkOptions:
        options = super().chunk_options(params)
        if options.temperature:
            raise UsageError("this model only decodes greedily: temperature must be 0")
        return options
