"""`Recognition`: the model-specific part of speech models, which makes inputs and prompts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.mel import HOP, N_FFT, log_mel_frames, normalised
from kvcast.engine.requests import Input, Request
from kvcast.errors import KvcastError
from kvcast.families.audio_encoder import SoundEncoder
from kvcast.runtimes.base import Float32, Int32
from kvcast.speech.abilities import Abilities
from kvcast.tokenizers.base import TextTokenizer
from kvcast.transcripts.segments import FRAMES_PER_SECOND, Word

if TYPE_CHECKING:
    from kvcast.speech.voxtral_realtime import Pacing


@dataclass(frozen=True, kw_only=True)
class Hints:
    """Hints from users about the speech."""

    language: str | None = None
    context: str = ""
    translates: bool = False


@dataclass(frozen=True, kw_only=True)
class Recognized:
    """The text of a chunk.

    Attributes:
        language: code of the language, if the model reports it or the user gave it.
        words: with times in seconds from the chunk's start, from models that give them.

    """

    text: str
    language: str | None = None
    words: tuple[Word, ...] | None = None
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A request's tokens for a chunk; `logprob` is the sum of their logprobs."""

    tokens: tuple[int, ...]
    logprob: float
    recognized: Recognized


class Recognition(ABC):
    """How a model transcribes a chunk.

    Attributes:
        refused: names of options of `kvcast.speech.model.TAKEN` that it does not take.
        paced: whether text and audio advance together, so that `tokens_of` is exact.
        longest: frames of 10 ms in a chunk, at most.
        most_tokens: of the longest chunk's text, unless the user says otherwise.
        ends: tokens that end a text, one or more.

    """

    abilities: Abilities
    refused: frozenset[str] = frozenset()
    paced: bool = False
    longest: int = 28 * FRAMES_PER_SECOND
    most_tokens: int = 512
    most_positions: int
    ends: Sequence[int]

    @abstractmethod
    def input(self, samples: Float32) -> Input:
        """Return the encoder's input for mono samples at 16 kHz [n], of at most `longest`."""

    @abstractmethod
    def prompt(self, positions: int, hints: Hints) -> list[int]:
        """Return the tokens before the text of a chunk of `positions` encoded positions."""

    def tokens_of(self, seconds: float, hints: Hints) -> int:  # noqa: ARG002
        """Return the most tokens of a chunk's text, unless the user says otherwise."""
        return self.most_tokens

    @abstractmethod
    def read(self, tokens: Sequence[int], hints: Hints) -> Recognized:
        """Return the text of the tokens after the prompt, which exclude the end token."""

    def request(self, sound: Input) -> Request | None:  # noqa: ARG002 - most search for a text
        """Return the request of a model without a search (a transducer); None for others."""
        return None

    @property
    def pacing(self) -> "Pacing | None":
        """How live audio is fed to a model whose text advances with it; None: it cannot be."""
        return None

    def generated(self, request: Any, hints: Hints) -> Generated:
        """Return the tokens of such a request, once it is done."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class LogMelFeatures(Input):
    """Features [frames, bands], and the number of positions that they become."""

    features_tm: Float32
    encoded: int

    # One chunk alone fills the encoder's GEMMs, and needs no padding.
    most_together: ClassVar[int | None] = 1

    @property
    @override
    def positions(self) -> int:
        return self.encoded

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[Float32, Int32]:
        features_btm = np.stack([sound.features_tm for sound in inputs])
        return features_btm, np.array([sound.encoded for sound in inputs], np.int32)


def features_of(samples: Float32, n_mels: int) -> Float32:
    """Return scaled log-mel frames of a waveform by itself, fp32 [samples / 160, n_mels].

    As transformers' Whisper extractor: reflected on both sides, floored at 8 below the maximum.
    """
    reflected = np.pad(samples, N_FFT // 2, mode="reflect")
    frames_tm = log_mel_frames(reflected, n_mels)[: len(samples) // HOP]
    return normalised(frames_tm, frames_tm.max())


@dataclass(frozen=True, eq=False)
class AudioFeatures(Input):
    """Features [frames, bands] of a chunk, and the encoder that takes them."""

    features_tm: Float32
    encoder: SoundEncoder

    # Lengths differ, and each chunk alone fills the encoder's GEMMs.
    most_together: ClassVar[int | None] = 1

    @property
    @override
    def positions(self) -> int:
        return self.encoder.encoded(len(self.features_tm))

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[NDArray[Any], ...]:
        features_btm = np.stack([sound.features_tm for sound in inputs])
        return inputs[0].encoder.source(features_btm)


class AudioTokenRecognition(Recognition):
    """Base class of models whose prompt contains the audio embeddings."""

    def __init__(self, tokenizer: TextTokenizer, audio: SoundEncoder, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.audio = audio
        self.vocab_size = vocab_size
        self.most_positions = audio.positions
        self.ends = tokenizer.end_tokens

    def sound(self, positions: int) -> list[int]:
        """Return the token ids of the row's embeddings."""
        return list(range(self.vocab_size, self.vocab_size + positions))

    def special(self, *texts: str) -> list[int]:
        """Return special tokens by their texts; raises KvcastError for a missing one."""
        known = self.tokenizer.control_tokens(texts)
        for text in texts:
            if text not in known:
                raise KvcastError(f"the tokenizer has no token {text}: it is another model's")
        return [known[text] for text in texts]
