"""What models share whose prompts have the embeddings of an excerpt. Knows no model of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.mel import HOP, N_FFT, log_mel_frames, normalised
from kvcast.engine.requests import Input
from kvcast.errors import KvcastError
from kvcast.families.sound_encoder import SoundEncoder
from kvcast.runtimes.base import Float32
from kvcast.speech.recognition import Recognition
from kvcast.tokenizers.base import TextTokenizer


def features_of(samples: Float32, n_mels: int) -> Float32:
    """Return scaled log-mel frames of a sound by itself, fp32 [samples / 160, n_mels].

    As transformers' Whisper extractor: reflected on both sides, floored at 8 below the maximum.
    """
    reflected = np.pad(samples, N_FFT // 2, mode="reflect")
    frames_tm = log_mel_frames(reflected, n_mels)[: len(samples) // HOP]
    return normalised(frames_tm, frames_tm.max())


@dataclass(frozen=True, eq=False)
class Sound(Input):
    """Features [frames, bands] of an excerpt, and the encoder that takes them."""

    features_tm: Float32
    encoder: SoundEncoder

    # Each has its own length, and fills the encoder's products.
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


class Hearing(Recognition):
    """What such recognitions share: their sound's embeddings are in the prompt."""

    def __init__(self, tokenizer: TextTokenizer, audio: SoundEncoder, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.audio = audio
        self.vocab_size = vocab_size
        self.most_positions = audio.positions
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
