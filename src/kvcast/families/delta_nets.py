"""Layers with gated delta nets (Qwen 3.5).

A matrix of each head decays, and is then corrected so that it gives a position's value for its key;
the result of each head is normed and multiplied by a gate. Knows no other layers.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvcast.families.blocks import LENGTHS
from kvcast.families.states import StateSizes
from kvcast.spec.program import Constant, Node, ProgramWriter


@dataclass(frozen=True, kw_only=True)
class DeltaNet(StateSizes):
    """Sizes of such layers."""

    products: ClassVar[int] = 3
    """Products of a position with each number of a matrix."""

    @property
    def projected(self) -> tuple[int, ...]:
        """Parts of the first projection: what is convolved, the gate, shares and steps."""
        return self.channels, self.values, self.value_heads, self.value_heads

    def shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Return the tensors of a layer, but for norms around it and the feed-forward."""
        return {
            "delta.input.weight": (sum(self.projected), width),
            "delta.kernel": (self.convolution, self.channels),
            "delta.decay": (self.value_heads,),
            "delta.step_bias": (self.value_heads,),
            "delta.norm.weight": (self.value_dim,),
            "delta.out.weight": (width, self.values),
        }

    def mixed(self, write: ProgramWriter, normed: Node, i: int, epsilon: float) -> Node:
        """Mix the positions of layer i, [rows, new, width], before its last projection."""
        layer = f"decoder.layers.{i}.delta"
        projected = write.linear(normed, f"{layer}.input")
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
