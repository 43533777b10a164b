"""The least that a Whisper's work can be, for `kvcast.bench.cost`.

Counts products and bytes from the model's dimensions and from how the bundle stores its weights.
What runs in fp32 (attention, convolutions) is charged at the
fp32 rate: the floor is that of this arithmetic, and another arithmetic would have another. Norms,
activations, softmax and the log-mel are not counted. Knows nothing of clocks.
"""

from dataclasses import dataclass

from kvcast.bench.cost import Cost
from kvcast.spec.whisper import WhisperDimensions

_TABLE_BLOCK = 128
_INT4_BLOCK = 32
_SCALE = 4  # bytes


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Costs of a model whose bundle is quantised as `quantize` says: none, int8 or int4."""

    dimensions: WhisperDimensions
    quantize: str

    def encode(self) -> Cost:
        """Count one window: convolutions, layers, and the cross keys and values of the decoder."""
        sizes = self.dimensions
        t, d, layers = sizes.source_positions, sizes.d_model, sizes.encoder_layers
        convolutions = 2 * 3 * (2 * t * sizes.n_mels * d + t * d * d)
        attention = layers * 2 * 2 * t * t * d
        weights = layers * 12 * d * d + sizes.decoder_layers * 2 * d * d
        linear = Cost(bytes=weights) if self._is_quantized else Cost(bytes=4 * weights)
        return linear + self._products(2 * t * weights) + Cost(fp32=convolutions + attention)

    def decode(self, *, rows: int, new: int, length: int, asked: int = 1) -> Cost:
        """Count `new` tokens for each of `rows` beams of a window that hold `length` tokens each.

        `asked` positions a row meet the head. Weights and cross caches are read once for all rows.
        """
        sizes = self.dimensions
        d, layers, t = sizes.d_model, sizes.decoder_layers, sizes.source_positions
        matrices, head = layers * 14 * d * d, sizes.vocab_size * d
        held = length + new
        attention = layers * 2 * 2 * d * rows * new * (t + held)
        self_caches = layers * 2 * 4 * d * rows * held
        cross_caches = layers * 2 * d * t * (1 if self._is_quantized else 4)
        read = Cost(bytes=self._weight_bytes(matrices, head) + self_caches + cross_caches)
        products = self._products(2 * rows * (new * matrices + asked * head))
        return read + products + Cost(fp32=attention)

    @property
    def _is_quantized(self) -> bool:
        return self.quantize != "none"

    def _products(self, operations: float) -> Cost:
        return Cost(int8=operations) if self._is_quantized else Cost(fp32=operations)

    def _weight_bytes(self, matrices: int, head: int) -> float:
        """Return the bytes of the decoder's matrices and its head, scales included."""
        d, layers = self.dimensions.d_model, self.dimensions.decoder_layers
        if self.quantize == "none":
            return 4 * (matrices + head)
        head_scales = _SCALE * head / _TABLE_BLOCK
        if self.quantize == "int8":
            return matrices + _SCALE * layers * 11 * d + head + head_scales
        return matrices / 2 + _SCALE * matrices / _INT4_BLOCK + head / 2 + head_scales
