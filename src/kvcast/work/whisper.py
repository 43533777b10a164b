"""Work of a Whisper over windows of sound."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

from typing_extensions import override

from kvcast.checkpoints import names
from kvcast.spec.whisper import WhisperDimensions
from kvcast.work.base import EncoderDecoderWork, Work, pairs


@dataclass(frozen=True, kw_only=True)
class WhisperWork(EncoderDecoderWork):
    """A Whisper; an input is one window of sound."""

    dimensions: WhisperDimensions

    @cached_property
    @override
    def parameters(self) -> int:
        return self._count("")

    @property
    @override
    def width(self) -> int:
        return self.dimensions.d_model

    @property
    @override
    def usual_prompt(self) -> int:
        return 4  # start of the transcript, language, task and no timestamps

    @override
    def encode(self, inputs: int = 1) -> Work:
        sizes = self.dimensions
        t, d, layers = sizes.source_positions, sizes.d_model, sizes.encoder_layers
        # Kernels of 3; the second convolution halves the positions.
        convolutions = 2 * 3 * (2 * t * sizes.n_mels * d + t * d * d)
        matrices = layers * 12 * d * d
        return Work(
            encoder=2 * inputs * t * matrices,
            encoder_attention=inputs * (convolutions + layers * 2 * 2 * t * t * d),
            weights=self._count("encoder."),
            encoder_matrices=matrices,
        )

    @override
    def project(self, inputs: int = 1) -> Work:
        sizes = self.dimensions
        matrices = sizes.decoder_layers * 2 * sizes.d_model**2
        return Work(
            cross_keys_values=2 * inputs * sizes.source_positions * matrices,
            weights=self._cross_weights,
            encoder_matrices=matrices,
        )

    @override
    def call(
        self, length: int, new: int, *, rows: int = 1, inputs: int = 1, asked: int = 1
    ) -> Work:
        sizes, each = self.dimensions, rows * new
        t, d, layers = sizes.source_positions, sizes.d_model, sizes.decoder_layers
        seen = pairs(length + new, None) - pairs(length, None) + new * t
        # Query and output of both attentions, and a feed-forward four times as wide.
        keys_values, linear = layers * 2 * d * d, layers * 12 * d * d
        return Work(
            keys_values=2 * each * keys_values,
            linear=2 * each * linear,
            attention=2 * 2 * rows * layers * d * seen,
            head=2 * rows * asked * sizes.vocab_size * d,
            weights=self._step_weights,
            matrices=keys_values + linear,
            table=sizes.vocab_size * d,
            columns=layers * 11 * d,
            held=rows * layers * 2 * d * length,
            written=each * layers * 2 * d,
            cross=inputs * layers * 2 * d * t,
        )

    @property
    @override
    def input_positions(self) -> int:
        return self.dimensions.source_positions

    @property
    @override
    def key_size(self) -> int:
        return self.dimensions.d_model

    @cached_property
    def _step_weights(self) -> int:
        looked_up = self._count("decoder.positions")
        return self._count("decoder.") - self._cross_weights - looked_up

    @cached_property
    def _cross_weights(self) -> int:
        return self._count("decoder.", "cross_attention.key_value")

    def _count(self, start: str, part: str = "") -> int:
        """Return the number of weights in tensors named `start`... that contain `part`."""
        shapes = names.tensor_shapes(self.dimensions)
        return sum(
            prod(shape) for name, shape in shapes.items() if name.startswith(start) and part in name
        )
