"""The least that a T5's work can be, for `kvcast.bench.cost`.

Counts products and bytes from the model's dimensions and from how the bundle stores its weights.
Attention is computed in fp32 over fp32 caches and charged as that. Norms, activations, biases of
positions and softmax are not counted. Knows nothing of clocks.
"""

from dataclasses import dataclass

from kvcast.bench.cost import Cost
from kvcast.bench.precision import products, weight_bytes
from kvcast.spec.t5 import T5Dimensions

_NUMBER = 4  # bytes of one in a cache


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Costs of a model whose bundle is quantised as `quantize` says: none, int8 or int4."""

    dimensions: T5Dimensions
    quantize: str

    def encode(self, *, inputs: int, source: int) -> Cost:
        """Count sources of equal length: the encoder, and the decoder's cross keys and values.

        Their products are int8 in an int4 bundle too. Tokens' rows of the table are not counted.
        """
        sizes = self.dimensions
        layer = 4 * self._mixed * sizes.width + self._feed_forward
        layers = sizes.encoder_layers * layer
        attention = 2 * 2 * sizes.encoder_layers * self._mixed * inputs * source * source
        stored = "int8" if self.quantize == "int4" else self.quantize
        return (
            products(self.quantize, 2 * inputs * source * layers)
            + Cost(bytes=weight_bytes(stored, layers, 0, sizes.width), fp32=attention)
            + self.cross_keys(inputs=inputs, source=source)
        )

    def cross_keys(self, *, inputs: int, source: int) -> Cost:
        """Count the cross keys and values of all layers, which `encode` makes once."""
        sizes = self.dimensions
        weights = sizes.decoder_layers * 2 * self._mixed * sizes.width
        stored = "int8" if self.quantize == "int4" else self.quantize
        return products(self.quantize, 2 * inputs * source * weights) + Cost(
            bytes=weight_bytes(stored, weights, 0, sizes.width)
        )

    def decode(self, *, rows: int, new: int, held: int, inputs: int, source: int) -> Cost:
        """Count `new` tokens for each of `rows` targets that hold `held` tokens each.

        The last of each row's meets the head. Weights are read once for all rows, and an input's
        cross cache once for all its rows.
        """
        sizes = self.dimensions
        matrices = sizes.decoder_layers * (6 * self._mixed * sizes.width + self._feed_forward)
        head = sizes.vocab_size * sizes.width
        seen = sum(held + i + 1 for i in range(new)) + new * source
        caches = 2 * (rows * (held + new) + inputs * source)
        layers = sizes.decoder_layers * self._mixed
        return (
            products(self.quantize, 2 * rows * (new * matrices + head))
            + Cost(bytes=weight_bytes(self.quantize, matrices, head, sizes.width))
            + Cost(fp32=2 * 2 * layers * rows * seen, bytes=_NUMBER * layers * caches)
        )

    @property
    def _mixed(self) -> int:
        return self.dimensions.heads * self.dimensions.head_dim

    @property
    def _feed_forward(self) -> int:
        sizes = self.dimensions
        return (3 if sizes.gated else 2) * sizes.width * sizes.inner
