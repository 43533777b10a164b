"""Qwen3-ASR and Voxtral: decoders whose prompt has the embeddings of an excerpt.

Prompts are those that transformers' processors write. Knows no recording and no runtime.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.mel import HOP, N_FFT, log_mel_frames, normalised
from kvcast.engine.requests import Input
from kvcast.errors import KvcastError
from kvcast.families.audio_decoder import AudioDecoderDimensions
from kvcast.families.audio_encoder import MOST_FRAMES, AudioEncoder, ChunkLayout, batch_of
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.speech.model import SpeechModel
from kvcast.speech.recognition import Heard, Hints, Recognition
from kvcast.tokenizers.base import TextTokenizer

_SHORTEST = 8000
"""Samples of the shortest sound that Qwen3-ASR is given; silence follows a shorter one."""

_REPEATED = 20
"""Copies of up to so many characters are one, if there are so many of them."""


def features_of(samples: Float32, n_mels: int) -> Float32:
    """Return scaled log-mel frames of a sound by itself, fp32 [samples / 160, n_mels].

    As transformers' Whisper extractor: reflected on both sides, floored at 8 below the maximum.
    """
    reflected = np.pad(samples, N_FFT // 2, mode="reflect")
    frames_tm = log_mel_frames(reflected, n_mels)[: len(samples) // HOP]
    return normalised(frames_tm, frames_tm.max())


@dataclass(frozen=True, eq=False)
class ChunkedSound(Input):
    """Frames [whole chunks, n_mels], and where their positions lie."""

    features_tm: Float32
    layout: ChunkLayout
    padded_positions: int

    # Each has its own length, and fills the encoder's products.
    most_together: ClassVar[int | None] = 1

    @property
    @override
    def positions(self) -> int:
        return len(self.layout.source)

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[NDArray[Any], ...]:
        features = np.stack([sound.features_tm for sound in inputs])
        layouts = [sound.layout for sound in inputs]
        return (features, *batch_of(layouts, inputs[0].padded_positions))


@dataclass(frozen=True, eq=False)
class WindowedSound(Input):
    """Frames [3000, n_mels] of 30 seconds."""

    features_tm: Float32
    joined: int

    most_together: ClassVar[int | None] = 1

    @property
    @override
    def positions(self) -> int:
        return len(self.features_tm) // 2 // self.joined

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[NDArray[Any], ...]:
        return (np.stack([sound.features_tm for sound in inputs]),)


class _Hearing(Recognition):
    """What both have: text on both sides of the sound's embeddings."""

    def __init__(self, tokenizer: TextTokenizer, dimensions: AudioDecoderDimensions) -> None:
        self.tokenizer = tokenizer
        self.audio: AudioEncoder = dimensions.audio
        self.vocab_size = dimensions.vocab_size
        self.most_positions = dimensions.audio.positions
        self.ends = tokenizer.end_tokens

    def sound(self, positions: int) -> list[int]:
        """Return the numbers that stand for the row's embeddings."""
        return list(range(self.vocab_size, self.vocab_size + positions))

    def special(self, *texts: str) -> list[int]:
        """Return special tokens by their texts; raises KvcastError for one that is not there."""
        known = self.tokenizer.control_tokens(texts)
        for text in texts:
            if text not in known:
                raise KvcastError(f"the tokenizer has no token {text}: it is another model's")
        return [known[text] for text in texts]


class QwenRecognition(_Hearing):
    """Qwen3-ASR: the system message has the context, the answer begins with the language."""

    options = frozenset({"initial_prompt", "hotwords"})
    languages: Mapping[str, str] = {
        "ar": "Arabic",
        "yue": "Cantonese",
        "zh": "Chinese",
        "cs": "Czech",
        "da": "Danish",
        "nl": "Dutch",
        "en": "English",
        "tl": "Filipino",
        "fi": "Finnish",
        "fr": "French",
        "de": "German",
        "el": "Greek",
        "hi": "Hindi",
        "hu": "Hungarian",
        "id": "Indonesian",
        "it": "Italian",
        "ja": "Japanese",
        "ko": "Korean",
        "mk": "Macedonian",
        "ms": "Malay",
        "fa": "Persian",
        "pl": "Polish",
        "pt": "Portuguese",
        "ro": "Romanian",
        "ru": "Russian",
        "es": "Spanish",
        "sv": "Swedish",
        "th": "Thai",
        "tr": "Turkish",
        "vi": "Vietnamese",
    }
    _codes: ClassVar[Mapping[str, str]] = {name: code for code, name in languages.items()}

    def __init__(self, tokenizer: TextTokenizer, dimensions: AudioDecoderDimensions) -> None:
        super().__init__(tokenizer, dimensions)
        self._begin, self._end = self.special("<|im_start|>", "<|im_end|>")
        self._sound_begin, self._sound_end = self.special("<|audio_start|>", "<|audio_end|>")
        self._text = tokenizer.encode_ready("<asr_text>")

    @override
    def input(self, samples: Float32) -> Input:
        short = max(0, _SHORTEST - len(samples))
        features_tm = features_of(np.pad(samples, (0, short)), self.audio.n_mels)
        frames = len(features_tm)
        whole = -(-frames // self.audio.chunk) * self.audio.chunk
        padded_tm = np.zeros((whole, self.audio.n_mels), np.float32)
        padded_tm[:frames] = features_tm
        return ChunkedSound(
            padded_tm, self.audio.layout(frames), len(self.audio.layout(whole).source)
        )

    @override
    def prompt(self, positions: int, hints: Hints) -> list[int]:
        encode, newline = self.tokenizer.encode, self.tokenizer.encode("\n")
        answer = encode("assistant\n")
        if hints.language is not None:
            named = f"assistant\nlanguage {self.languages[hints.language]}"
            answer = [*encode(named), *self._text]
        return [
            *(self._begin, *encode(f"system\n{hints.context}"), self._end, *newline),
            *(self._begin, *encode("user\n"), self._sound_begin, *self.sound(positions)),
            *(self._sound_end, self._end, *newline, self._begin, *answer),
        ]

    @override
    def read(self, tokens: Sequence[int], hints: Hints) -> Heard:
        # Tokenizers differ in whether the marker is special, so that its text is left out.
        size, given = len(self._text), list(tokens)
        places = (i for i in range(len(given)) if given[i : i + size] == self._text)
        place, language = next(places, None), hints.language
        if language is None and place is not None:
            named = self.tokenizer.decode(given[:place]).strip()
            language = self._codes.get(named.removeprefix("language ").strip())
            given = given[place + size :]
        text = self.tokenizer.decode(given).strip()
        return Heard(text=without_repetitions(text), language=language)


def without_repetitions(text: str) -> str:
    """Return a text in which what is written 20 times and more stands once."""
    text = re.sub(rf"(.)\1{{{_REPEATED},}}", r"\1", text, flags=re.DOTALL)
    if len(text) < 2 * _REPEATED:
        return text
    return re.sub(rf"(.{{1,{_REPEATED}}}?)\1{{{_REPEATED - 1},}}", r"\1", text, flags=re.DOTALL)


class VoxtralRecognition(_Hearing):
    """Voxtral: an instruction of sound alone, then the language, then the order to transcribe."""

    languages: Mapping[str, str] = {
        code: code for code in ("en", "es", "fr", "pt", "hi", "de", "nl", "it")
    }

    def __init__(self, tokenizer: TextTokenizer, dimensions: AudioDecoderDimensions) -> None:
        super().__init__(tokenizer, dimensions)
        names = ("<s>", "[INST]", "[BEGIN_AUDIO]", "[/INST]", "[TRANSCRIBE]")
        *self._before, self._after, self._order = self.special(*names)

    @override
    def input(self, samples: Float32) -> Input:
        whole = np.zeros(MOST_FRAMES * HOP, np.float32)
        whole[: len(samples)] = samples
        return WindowedSound(features_of(whole, self.audio.n_mels), self.audio.joined)

    @override
    def prompt(self, positions: int, hints: Hints) -> list[int]:
        language: list[int] = []
        if hints.language is not None:
            named = self.tokenizer.encode(f"lang:{hints.language}")
            language = named[1:] if named[:1] == self._before[:1] else named
        sound = self.sound(positions)
        return [*self._before, *sound, self._after, *language, self._order]

    @override
    def read(self, tokens: Sequence[int], hints: Hints) -> Heard:
        return Heard(text=self.tokenizer.decode(tokens).strip(), language=hints.language)


RECOGNITIONS: Mapping[str, Callable[[TextTokenizer, AudioDecoderDimensions], Recognition]] = {
    "qwen3_asr": QwenRecognition,
    "voxtral": VoxtralRecognition,
}
"""By the dimensions' architecture."""


class AudioDecoderModel(SpeechModel):
    """A decoder that hears."""

    def __init__(
        self,
        runtime: EncoderDecoder,
        tokenizer: TextTokenizer,
        dimensions: AudioDecoderDimensions,
    ) -> None:
        if dimensions.architecture not in RECOGNITIONS:
            raise KvcastError(f"this kvcast knows no {dimensions.architecture} models: update it")
        recognition = RECOGNITIONS[dimensions.architecture](tokenizer, dimensions)
        super().__init__(runtime, tokenizer, dimensions, recognition)
