"""Layers of decoders whose memory is a matrix that each token rewrites: delta nets (Qwen 3.5).

Queries, keys and values are convolved with those before, as the inputs of
`kvcast.families.convolutions` are; the result of each head is normed and multiplied by a gate.
Knows no other layers.
"""

from dataclasses import dataclass

from kvcast.errors import KvcastError
from kvcast.families.blocks import LENGTHS
from kvcast.families.caches import CacheLayers
from kvcast.spec.program import Constant, Node
from kvcast.spec.sizes import require_positive
from kvcast.spec.writer import ProgramWriter

_LONGEST_CONVOLUTION, _LARGEST_HEAD = 1024, 4096


@dataclass(frozen=True, kw_only=True)
class DeltaNet:
    """Sizes of such layers.

    Attributes:
        key_heads: number of heads of queries and keys.
        value_heads: number of heads of values, and of matrices; a multiple.
        key_dim: size of a head of queries and keys.
        value_dim: size of a head of values.
        convolution: length of the convolution, its own position included.

    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: int

    def __post_init__(self) -> None:
        require_positive(**vars(self))
        if self.value_heads % self.key_heads:
            raise KvcastError(
                f"{self.value_heads} heads of values are not a multiple of {self.key_heads} of keys"
            )
        if self.convolution > _LONGEST_CONVOLUTION:
            raise KvcastError(f"a convolution of {self.convolution} positions is not possible")
        if max(self.key_dim, self.value_dim) > _LARGEST_HEAD:
            raise KvcastError("a delta net's heads are larger than any model's")

    @property
    def keys(self) -> int:
        """Size of a position's keys, and of its queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Size of a position's values."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Number of channels that are convolved: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def projected(self) -> tuple[int, ...]:
        """Parts of the first projection: what is convolved, the gate, shares and steps."""
        return self.channels, self.values, self.value_heads, self.value_heads

    def shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Return the tensors of a layer, but for norms around it and the feed-forward."""
        return {
            "delta.in.weight": (sum(self.projected), width),
            "delta.kernel": (self.convolution, self.channels),
            "delta.decay": (self.value_heads,),
            "delta.step_bias": (self.value_heads,),
            "delta.norm.weight": (self.value_dim,),
            "delta.out.weight": (width, self.values),
        }

    def cache(self) -> CacheLayers:
        """Describe the cache of a layer."""
        return CacheLayers(
            kind="state",
            layers=1,
            heads=self.value_heads,
            capacity=self.key_dim,
            head_dim=self.value_dim,
            length=self.convolution,
            channels=self.channels,
        )

    def mixed(self, write: ProgramWriter, normed: Node, i: int, epsilon: float) -> Node:
        """Mix the positions of layer i, [rows, new, width], before its last projection."""
        layer = f"decoder.layers.{i}.delta"
        projected = write.linear(normed, f"{layer}.in")
        x, gate, share, step = write.split(projected, self.projected)
        inputs, state = Node(f"past_inputs_{i}"), Node(f"past_state_{i}")
        kernel = Constant(f"{layer}.kernel")
        given = x, kernel, None, inputs, LENGTHS
        x = write.step("short_convolution", *given, activation="silu")
        gates = share, step, Constant(f"{layer}.decay"), Constant(f"{layer}.step_bias")
        x = write.step("delta_rule", x, *gates, state, LENGTHS, self.key_heads)
        heads = write.step("unflatten", x, -1, [-1, self.value_dim])
        heads = write.step("flatten", write.rms_norm(heads, f"{layer}.norm", epsilon), -2)
        return write.step("gated", gate, heads, activation="silu")
