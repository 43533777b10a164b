"""Layers with selective state spaces: Mamba-2 (Granite 4).

A matrix of each head decays, and a value is added to it for its key, by a step that is the
position's own; queries, keys and values are those that Mamba names C, B and x. The result is
multiplied by a gate and normed. Knows no other layers.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families.blocks import LENGTHS
from kvcast.families.states import StateSizes
from kvcast.spec.program import Constant, Node, ProgramWriter

_ONES = "state_space_ones"


@dataclass(frozen=True, kw_only=True)
class StateSpace(StateSizes):
    """Sizes of such layers.

    Attributes:
        norm_eps: of the norm of results, of which each head of keys has a part of its own.
        bias: whether the first and the last projection have biases.
        convolution_bias: whether convolutions have biases.

    """

    products: ClassVar[int] = 2
    """Products of a position with each number of a matrix."""

    norm_eps: float
    bias: bool = False
    convolution_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.norm_eps < math.inf:
            raise KvcastError("norm_eps must be a finite number above 0")

    @property
    def projected(self) -> tuple[int, ...]:
        """Parts of the first projection: what is convolved, the gate, and steps."""
        return self.channels, self.values, self.value_heads

    @property
    def normed(self) -> int:
        """Size of a part that is normed alone."""
        return self.values // self.key_heads

    def shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Return the tensors of a layer, but for norms around it and the feed-forward."""
        projected = sum(self.projected)
        shapes: dict[str, tuple[int, ...]] = {
            "state_space.in.weight": (projected, width),
            "state_space.kernel": (self.convolution, self.channels),
            "state_space.decay": (self.value_heads,),
            "state_space.step_bias": (self.value_heads,),
            "state_space.skip": (self.value_heads,),
            "state_space.norm.weight": (self.values,),
            "state_space.out.weight": (width, self.values),
        }
        if self.convolution_bias:
            shapes["state_space.kernel_bias"] = (self.channels,)
        if self.bias:
            shapes |= {"state_space.in.bias": (projected,), "state_space.out.bias": (width,)}
        return shapes

    def constants(self) -> dict[str, NDArray[np.float32]]:
        """Return the gain of norms of parts, whose weights are of the whole."""
        return {_ONES: np.ones(self.normed, np.float32)} if self.key_heads > 1 else {}

    def mamba_order(self) -> tuple[list[int], list[int]]:
        """Return which of Mamba's channels, and of its first projection's rows, come in our order.

        Mamba has a gate, values, keys, queries and steps; what is convolved are the middle ones.
        """
        values, keys = self.values, self.keys
        steps = range(values + self.channels, sum(self.projected))
        order = [
            *range(values + keys, self.channels),
            *range(values, values + keys),
            *range(values),
        ]
        return order, [*(values + i for i in order), *range(values), *steps]

    def mixed(self, write: ProgramWriter, normed: Node, i: int) -> Node:
        """Mix the positions of layer i, [rows, new, width], before its last projection."""
        layer = f"decoder.layers.{i}.state_space"
        projected = write.linear(normed, f"{layer}.in", bias=self.bias)
        x, gate, step = write.split(projected, self.projected)
        inputs, state = Node(f"past_inputs_{i}"), Node(f"past_state_{i}")
        bias = Constant(f"{layer}.kernel_bias") if self.convolution_bias else None
        given = x, Constant(f"{layer}.kernel"), bias, inputs, LENGTHS
        x = write.step("short_convolution", *given, activation="silu")
        gates = (Constant(f"{layer}.{name}") for name in ("decay", "step_bias", "skip"))
        x = write.step("selective_scan", x, step, *gates, state, LENGTHS, self.key_heads)
        return self._normed(write, write.step("gated", gate, x, activation="silu"), layer)

    def _normed(self, write: ProgramWriter, x: Node, layer: str) -> Node:
        if self.key_heads == 1:
            return write.rms_norm(x, f"{layer}.norm", self.norm_eps)
        parts = write.step("unflatten", x, -1, [-1, self.normed])
        parts = write.step("rms_norm", parts, Constant(_ONES), self.norm_eps)
        return write.step("mul", write.step("flatten", parts, -2), Constant(f"{layer}.norm.weight"))
