"""The least that a decoder-only model's work can be, for `kvcast.bench.cost`.

Counts products and bytes from the model's dimensions and from how the bundle stores its weights.
Attention is computed in fp32 over an fp32 cache and charged as that. Norms, activations, rotation
and softmax are not counted. Knows nothing of clocks.
"""

from dataclasses import dataclass

from kvcast.bench.cost import Cost
from kvcast.bench.precision import products, weight_bytes
from kvcast.spec.decoder import DecoderDimensions


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Costs of a model whose bundle is quantised as `quantize` says: none, int8 or int4."""

    dimensions: DecoderDimensions
    quantize: str

    def decode(self, *, rows: int, new: int, held: int) -> Cost:
        """Count `new` tokens for each of `rows` texts that hold `held` tokens each.

        The last of each row's meets the head. Weights are read once for all rows.
        """
        sizes = self.dimensions
        head = sizes.vocab_size * sizes.width
        read = self._matrices(min(sizes.experts, rows * new * sizes.experts_per_token))
        used = self._matrices(sizes.experts_per_token)
        return (
            products(self.quantize, 2 * rows * (new * used + head))
            + Cost(bytes=weight_bytes(self.quantize, read, head, sizes.width))
            + self._attention(rows=rows, new=new, held=held)
        )

    def _attention(self, *, rows: int, new: int, held: int) -> Cost:
        """Count scores and their use, and the cache that the first to the last query see."""
        sizes, cost = self.dimensions, Cost()
        for window in sizes.windows:
            seen = sum(min(held + i + 1, window or held + new) for i in range(new))
            span = min(held, window - 1 if window else held) + new
            cost += Cost(
                fp32=2 * 2 * sizes.heads * sizes.head_dim * rows * seen,
                bytes=2 * 4 * sizes.kv_heads * sizes.head_dim * rows * span,
            )
        return cost

    def _matrices(self, experts: int) -> int:
        """Return the weights of all layers, with so many experts of each."""
        sizes = self.dimensions
        mixed, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        attention = sizes.width * (2 * mixed + 2 * keys)
        feed_forward = 3 * sizes.width * sizes.inner
        router = sizes.width * sizes.experts
        return sizes.layers * (attention + router + max(1, experts) * feed_forward)
