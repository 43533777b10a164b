"""Canary and Cohere's Transcribe: a prompt names languages, the text answers what is heard.

Prompts are those that transformers' processors write. Knows no recording and no runtime.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from kvcast.audio.normalised_mel import normalised_log_mel
from kvcast.engine.requests import Input
from kvcast.errors import KvcastError, UsageError
from kvcast.families.canary import CanaryDimensions
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.speech.languages import LANGUAGES
from kvcast.speech.model import SpeechModel
from kvcast.speech.params import TranscribeParams
from kvcast.speech.passages import Manner
from kvcast.speech.recognition import Heard, Hints, Recognition
from kvcast.speech.sound_features import SoundFeatures
from kvcast.tokenizers.base import TextTokenizer

_TASK = "task"


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """How models of an architecture are asked.

    Attributes:
        languages: codes, of those that the tokenizer has.
        language: of speech whose language nobody told; None: it has to be told.
        translates: whether texts may be in another language than speech.
        noise: that features want, as a deviation of samples.

    """

    languages: Sequence[str]
    language: str | None = None
    translates: bool = False
    noise: float = 0.0


_KINDS: Mapping[str, _Kind] = {
    "canary": _Kind(
        languages=(
            *("bg", "hr", "cs", "da", "nl", "en", "et", "fi", "fr", "de", "el", "hu", "it"),
            *("lv", "lt", "mt", "pl", "pt", "ro", "sk", "sl", "es", "sv", "ru", "uk"),
        ),
        language="en",
        translates=True,
    ),
    "cohere_asr": _Kind(
        languages=(
            *("ar", "de", "el", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "vi", "zh"),
        ),
        noise=1e-5,
    ),
}


class CanaryRecognition(Recognition):
    """A prompt of special tokens, the language of the speech and that of the text among them."""

    def __init__(self, tokenizer: TextTokenizer, dimensions: CanaryDimensions) -> None:
        if dimensions.architecture not in _KINDS:
            raise KvcastError(f"this kvcast knows no {dimensions.architecture} models: update it")
        self.kind = _KINDS[dimensions.architecture]
        self.tokenizer, self._encoder = tokenizer, dimensions.encoder
        self._before = dimensions.before
        self.options = frozenset({_TASK} if self.kind.translates else ())
        self.most_positions = dimensions.encoder.positions
        self.ends = tokenizer.end_tokens
        known = tokenizer.control_tokens([f"<|{code}|>" for code in self.kind.languages])
        self.languages = {
            code: LANGUAGES.get(code, code)
            for code in self.kind.languages
            if f"<|{code}|>" in known
        }
        self.most_tokens = dimensions.target_positions - len(self.prompt(0, Hints()))

    @override
    def input(self, samples: Float32) -> Input:
        features_tm = normalised_log_mel(samples, self._encoder.n_mels, self.kind.noise)
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

    recognition: CanaryRecognition

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: CanaryDimensions
    ) -> None:
        super().__init__(runtime, tokenizer, dimensions, CanaryRecognition(tokenizer, dimensions))

    @override
    def manner(self, params: TranscribeParams) -> Manner:
        manner, kind = super().manner(params), self.recognition.kind
        if manner.hints.language is None and kind.language is None:
            raise UsageError("this model has to be told the language: name it with language")
        return manner
