"""Work of a decoder that hears: its encoder's, and a decoder-only model's over all positions.

Knows neither bytes nor rates.
"""

from dataclasses import dataclass
from functools import cached_property

from typing_extensions import override

from kvcast.families.audio_decoder import AudioDecoderDimensions
from kvcast.inspect.work.base import CacheKind, Work
from kvcast.inspect.work.decoder import DecoderWork
from kvcast.inspect.work.sound_encoders import counted


@dataclass(frozen=True, kw_only=True)
class AudioDecoderWork(DecoderWork):
    """A decoder that hears; an input is one excerpt of the longest kind."""

    dimensions: AudioDecoderDimensions

    @cached_property
    @override
    def parameters(self) -> int:
        return self.count("decoder.")

    @property
    @override
    def usual_prompt(self) -> int:
        return self.dimensions.audio.positions + 20

    @override
    def encode(self, inputs: int = 1) -> Work:
        of_one = counted(self.dimensions.audio)
        return Work(
            encoder=inputs * of_one.products,
            encoder_attention=inputs * of_one.others,
            weights=self.count("encoder."),
            encoder_matrices=of_one.matrices,
        )

    @override
    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        held = self.dimensions.audio.positions
        numbers = held * self.dimensions.width
        sound = CacheKind(kind="embeddings", layers=1, positions=held, numbers=numbers)
        return (*super().cache(positions), sound)
