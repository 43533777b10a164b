"""Parakeet: words with times, from the positions at which their tokens were heard.

Times are as NeMo and transformers' processor place them. Knows no recording and no runtime.
"""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from kvcast.audio.mel import FRAMES_PER_SECOND
from kvcast.audio.normalised_mel import normalised_log_mel
from kvcast.engine.requests import Input
from kvcast.errors import UsageError
from kvcast.families.parakeet import ParakeetDimensions
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.speech.abilities import abilities_of
from kvcast.speech.model import SpeechModel
from kvcast.speech.params import TranscribeParams
from kvcast.speech.passages import Manner
from kvcast.speech.recognition import Heard, Hints, Recognition, Written
from kvcast.speech.segments import Word
from kvcast.speech.sound_features import SoundFeatures
from kvcast.speech.transducing import Emission, TransducerRequest
from kvcast.tokenizers.base import TextTokenizer

_MULTILINGUAL_TOKENS = 8193
"""Tokens of the published models that know European languages; others know English."""


class ParakeetRecognition(Recognition):
    """The likeliest token of each step; nothing is asked."""

    refused = frozenset(
        {
            *("beam", "patience", "length_penalty"),
            *("max_new_tokens", "repetition_penalty", "no_repeat_ngram"),
        }
    )

    def __init__(self, tokenizer: TextTokenizer, dimensions: ParakeetDimensions) -> None:
        self._tokenizer, self._dimensions = tokenizer, dimensions
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
        return SoundFeatures(features_tm, encoder.encoded(len(features_tm)))

    @override
    def prompt(self, positions: int, hints: Hints) -> list[int]:
        return [self._dimensions.blank]

    @override
    def read(self, tokens: Sequence[int], hints: Hints) -> Heard:
        language = hints.language or ("en" if len(self.abilities.languages) == 1 else None)
        return Heard(text=self._tokenizer.decode(tokens).strip(), language=language)

    @override
    def request(self, sound: Input) -> TransducerRequest:
        return TransducerRequest(sound, self._dimensions)

    @override
    def written(self, request: TransducerRequest, hints: Hints) -> Written:
        seconds = (1 << self._dimensions.encoder.halvings) / FRAMES_PER_SECOND
        emissions = request.emissions
        tokens = tuple(emission.token for emission in emissions)
        words, counts = words_of(emissions, self._tokenizer, seconds)
        return Written(
            tokens=tokens,
            logprob=sum(emission.logprob for emission in emissions),
            heard=replace(self.read(tokens, hints), words=words, counts=counts),
        )


def words_of(
    emissions: Sequence[Emission], tokenizer: TextTokenizer, seconds: float
) -> tuple[tuple[Word, ...], tuple[int, ...]]:
    """Return words with times, and how many tokens each is made of.

    `seconds` lie between positions. A mark after a word takes no time.
    """
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
    """An encoder of sound, and a small network that writes as it goes over positions."""

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: ParakeetDimensions
    ) -> None:
        super().__init__(runtime, tokenizer, dimensions, ParakeetRecognition(tokenizer, dimensions))

    @override
    def manner(self, params: TranscribeParams) -> Manner:
        manner = super().manner(params)
        if manner.temperature:
            raise UsageError("this model takes the likeliest tokens: temperature is 0")
        return manner
