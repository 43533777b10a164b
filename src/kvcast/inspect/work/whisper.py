"""Work of a Whisper over windows of sound. Knows neither bytes nor rates."""

from dataclasses import dataclass, replace
from functools import cached_property

from typing_extensions import override

from kvcast.families.whisper import WhisperDimensions
from kvcast.inspect.work.base import Work
from kvcast.inspect.work.encoder_decoder import EncoderDecoderWork, FamilySizes


@dataclass(frozen=True, kw_only=True)
class WhisperWork(EncoderDecoderWork):
    """A Whisper; an input is one window of sound."""

    dimensions: WhisperDimensions

    @property
    @override
    def usual_prompt(self) -> int:
        return 4  # start of the transcript, language, task and no timestamps

    @cached_property
    @override
    def sizes(self) -> FamilySizes:
        d = self.dimensions.d_model
        idle = self.cross_weights + self.count("decoder.positions")
        return FamilySizes(
            source=self.dimensions.source_positions,
            width=d,
            mixed=d,
            feed_forward=2 * d * 4 * d,
            encoder_weights=self.count("encoder."),
            step_weights=self.count("decoder.") - idle,
            columns=11 * d,
        )

    @override
    def encode(self, inputs: int = 1) -> Work:
        t, d, layers = self.sizes.source, self.width, super().encode(inputs)
        # Kernels of 3; the second convolution halves the positions.
        convolutions = 2 * 3 * (2 * t * self.dimensions.n_mels * d + t * d * d)
        return replace(layers, encoder_attention=layers.encoder_attention + inputs * convolutions)
