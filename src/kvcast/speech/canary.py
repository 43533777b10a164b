"""Canary and Cohere's Transcribe: a prompt names languages, the text answers what is heard.

Prompts are those that transformers' processors write. Knows no recording and no runtime.
"""

from collections.abc import Sequence

from typing_extensions import override

from kvcast.audio.normalised_mel import normalised_log_mel
from kvcast.engine.requests import Input
from kvcast.errors import KvcastError
from kvcast.families.canary import CanaryDimensions
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.speech.abilities import abilities_of
from kvcast.speech.model import SpeechModel
from kvcast.speech.recognition import Heard, Hints, Recognition
from kvcast.speech.sound_features import SoundFeatures
from kvcast.tokenizers.base import TextTokenizer

_NOISE = {"cohere_asr": 1e-5}
"""By architecture, what features want to be added to samples, as a deviation."""


class CanaryRecognition(Recognition):
    """A prompt of special tokens, the language of the speech and that of the text among them."""

    def __init__(self, tokenizer: TextTokenizer, dimensions: CanaryDimensions) -> None:
        self.tokenizer, self._encoder = tokenizer, dimensions.encoder
        self._before, self._noise = dimensions.before, _NOISE.get(dimensions.architecture, 0.0)
        self.most_positions = dimensions.encoder.positions
        self.ends = tokenizer.end_tokens
        named = {f"<|{code}|>": code for code in abilities_of(dimensions.architecture).languages}
        known = tokenizer.control_tokens(list(named))
        self.abilities = abilities_of(dimensions.architecture).among(named[text] for text in known)
        self.most_tokens = dimensions.target_positions - len(self.prompt(0, Hints()))

    @override
    def input(self, samples: Float32) -> Input:
        features_tm = normalised_log_mel(samples, self._encoder.n_mels, self._noise)
        return SoundFeatures(features_tm, self._encoder.encoded(len(features_tm)))

    @override
    def prompt(self, positions: int, hints: Hints) -> list[int]:
        spoken = hints.language or "en"
        written = "en" if hints.translates else spoken
        texts = [
            *("<|startoftranscript|>", "<|emo:undefined|>", f"<|{spoken}|>", f"<|{written}|>"),
            *("<|pnc|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>"),
        ]
        known = self.tokenizer.control_tokens(texts)
        for text in texts:
            if text not in known:
                raise KvcastError(f"the tokenizer has no token {text}: it is another model's")
        return [*self._before, *(known[text] for text in texts)]

    @override
    def read(self, tokens: Sequence[int], hints: Hints) -> Heard:
        language = "en" if hints.translates else hints.language
        return Heard(text=self.tokenizer.decode(tokens).strip(), language=language)


class CanaryModel(SpeechModel):
    """An encoder of sound, and a decoder that attends to it."""

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: CanaryDimensions
    ) -> None:
        super().__init__(runtime, tokenizer, dimensions, CanaryRecognition(tokenizer, dimensions))
