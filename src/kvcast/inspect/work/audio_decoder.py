"""Work of a decoder that hears: its encoder's, and a decoder-only model's over all positions.

Knows neither bytes nor rates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from typing_extensions import override

from kvcast.families.audio_decoder import AUDIO_DECODER, AudioDecoderDimensions
from kvcast.families.audio_encoder import MOST_FRAMES
from kvcast.inspect.work.base import CacheKind, Work
from kvcast.inspect.work.decoder import DecoderWork


@dataclass(frozen=True, kw_only=True)
class AudioDecoderWork(DecoderWork):
    """A decoder that hears; an input is one excerpt of the longest kind."""

    dimensions: AudioDecoderDimensions

    @cached_property
    @override
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return AUDIO_DECODER.tensor_shapes(self.dimensions)

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
        audio = self.dimensions.audio
        positions = audio.positions * audio.joined
        layers = audio.layers * (4 * audio.width**2 + 2 * audio.width * audio.inner)
        projector = audio.projected * (audio.joined * audio.width + audio.output)
        seen = positions
        if audio.chunk:
            windows = MOST_FRAMES // audio.window or 1
            seen = positions // windows
        attention = 2 * 2 * audio.layers * positions * seen * audio.width
        products = 2 * (positions * layers + audio.positions * projector)
        return Work(
            encoder=inputs * products,
            encoder_attention=inputs * (attention + self._convolutions),
            weights=self.count("encoder."),
            encoder_matrices=layers + projector,
        )

    @property
    def _convolutions(self) -> int:
        """Operations of the layers before attention."""
        audio, frames = self.dimensions.audio, MOST_FRAMES
        if not audio.chunk:
            return 2 * 3 * (frames * audio.n_mels * audio.width + frames // 2 * audio.width**2)
        operations, bands, before = 0, audio.n_mels, 1
        for _ in range(3):
            frames, bands = (frames + 1) // 2, (bands + 1) // 2
            operations += 2 * 9 * frames * bands * before * audio.channels
            before = audio.channels
        return operations + 2 * frames * bands * audio.channels * audio.width

    @override
    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        held = self.dimensions.audio.positions
        numbers = held * self.dimensions.width
        sound = CacheKind(kind="embeddings", layers=1, positions=held, numbers=numbers)
        return (*super().cache(positions), sound)
