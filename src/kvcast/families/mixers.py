"""Decoder layers that mix positions without attention.

Short convolutions (LFM2) multiply inputs by a gate, convolve each channel causally, and multiply by
another gate. Gated delta nets (Qwen 3.5, Kimi Linear) and selective state spaces (Mamba-2, Granite
4) rewrite a matrix per head, the state, with every token; their queries, keys and values are
convolved first, and their results are normed and gated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families.blocks import LENGTHS
from kvcast.families.programs import CacheLayers
from kvcast.spec.program import Constant, Node, ProgramWriter
from kvcast.spec.sizes import require_one_of, require_positive

_LONGEST_CONVOLUTION, _LARGEST_HEAD = 1024, 4096


@dataclass(frozen=True, kw_only=True)
class StateSizes:
    key_heads: int
    value_heads: int  # number of heads of values, and of states; a multiple of `key_heads`
    key_dim: int  # size of a head of queries and keys
    value_dim: int
    convolution: int  # length of the convolution, its own position included

    def __post_init__(self) -> None:
        names = ("key_heads", "value_heads", "key_dim", "value_dim", "convolution")
        require_positive(**{name: getattr(self, name) for name in names})
        if self.value_heads % self.key_heads:
            raise KvcastError(
                f"{self.value_heads} heads of values are not a multiple of {self.key_heads} of keys"
            )
        if self.convolution > _LONGEST_CONVOLUTION:
            raise KvcastError(f"a convolution of {self.convolution} positions is not possible")
        if max(self.key_dim, self.value_dim) > _LARGEST_HEAD:
            raise KvcastError("heads of a state are larger than any model's")

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        return 2 * self.keys + self.values

    def _of_heads(self, write: ProgramWriter, layer: str, *names: str) -> list[Constant]:
        return [write.tensor(f"{layer}.{name}", self.value_heads) for name in names]

    def cache(self) -> CacheLayers:
        return CacheLayers(
            kind="state",
            layers=1,
            heads=self.value_heads,
            capacity=self.key_dim,
            head_dim=self.value_dim,
            length=self.convolution,
            channels=self.channels,
        )


@dataclass(frozen=True, kw_only=True)
class DeltaNet(StateSizes):
    products: ClassVar[int] = 3
    """Products of a position with each number of a matrix."""

    most: float = 1.0  # of the shares of values that are added: 2 where states may turn over
    norm_eps: float | None = None  # of the norm of results; None: the model's
    by_channel: bool = False  # whether decay is per key channel (Kimi), not per head
    rank: int = 0  # of the projections to gates and to steps of decays; 0: they are whole
    least: float = 0.0  # bound of decays' logarithms, by a sigmoid (Ling 3); 0: by a softplus
    gate: str = "silu"  # activation of gates

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("most", "norm_eps"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise KvcastError(f"{name} must be a finite number above 0")
        if self.rank:
            require_positive(rank=self.rank)
        if self.rank > _LARGEST_HEAD:
            raise KvcastError("a projection's rank is larger than any model's")
        if not -math.inf < self.least <= 0:
            raise KvcastError("the bound of decays must be a finite number below 0, or 0")
        require_one_of("the activation of gates", self.gate, ("silu", "sigmoid"))

    @property
    def steps(self) -> int:
        """Return the number of decays of a position."""
        return self.value_heads * (self.key_dim if self.by_channel else 1)

    @property
    def projected(self) -> tuple[int, ...]:
        """Convolved channels, gate, shares and steps."""
        rank = self.rank
        return self.channels, rank or self.values, self.value_heads, rank or self.steps

    @property
    def parts(self) -> tuple[int, ...]:
        """The same, channels as queries, keys and values."""
        return self.keys, self.keys, self.values, *self.projected[1:]

    def mix(self, write: ProgramWriter, normed: Node, i: int, width: int, epsilon: float) -> Node:
        """[rows, new, width], before the last projection."""
        layer = f"decoder.layers.{i}.delta"
        projected = write.linear(normed, f"{layer}.input", (sum(self.projected), width))
        x, gate, share, step = write.split(projected, self.projected)
        if self.rank:
            gate = write.linear(gate, f"{layer}.gate", (self.values, self.rank))
            step = write.linear(step, f"{layer}.step", (self.steps, self.rank))
        inputs, state = Node(f"past_inputs_{i}"), Node(f"past_state_{i}")
        kernel = write.tensor(f"{layer}.kernel", self.convolution, self.channels)
        convolved = x, kernel, None, inputs, LENGTHS
        x = write.step("short_convolution", *convolved, activation="silu")
        [decay] = self._of_heads(write, layer, "decay")
        bias = write.tensor(f"{layer}.step_bias", self.steps)
        bounds = {"most": (self.most, 1.0), "least": (self.least, 0.0)}
        options = {name: value for name, (value, usual) in bounds.items() if value != usual}
        given = x, share, step, decay, bias, state, LENGTHS, self.key_heads
        x = write.step("delta_rule", *given, **options)
        heads = write.step("unflatten", x, -1, [-1, self.value_dim])
        epsilon = epsilon if self.norm_eps is None else self.norm_eps
        normed = write.rms_norm(heads, f"{layer}.norm", self.value_dim, epsilon)
        heads = write.step("flatten", normed, -2)
        return write.step("gated", gate, heads, activation=self.gate)


_ONES = "state_space_ones"
NORM_PLACES = ("behind", "before", "none")


@dataclass(frozen=True, kw_only=True)
class StateSpace(StateSizes):
    products: ClassVar[int] = 2
    """Products of a position with each number of a matrix."""

    norm_eps: float  # of the norm of results, grouped by heads of keys
    norm: str = "behind"  # of NORM_PLACES: where that norm is, by the gate
    bias: bool = False  # whether the first and the last projection have biases
    convolution_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.norm_eps < math.inf:
            raise KvcastError("norm_eps must be a finite number above 0")
        require_one_of("norm", self.norm, NORM_PLACES)

    @property
    def projected(self) -> tuple[int, ...]:
        """Convolved channels, gate and steps."""
        return self.channels, self.values, self.value_heads

    @property
    def normed(self) -> int:
        return self.values // self.key_heads

    def constants(self) -> dict[str, NDArray[np.float32]]:
        """Return the gain of norms of parts, whose weights are of the whole."""
        parts = self.key_heads > 1 and self.norm != "none"
        return {_ONES: np.ones(self.normed, np.float32)} if parts else {}

    def mamba_order(self) -> tuple[list[int], list[int]]:
        """Return the order of channels and of the first projection's rows.

        Mamba's order is gate, values, keys, queries, steps; the middle three are convolved.
        """
        values, keys = self.values, self.keys
        steps = range(values + self.channels, sum(self.projected))
        order = [
            *range(values + keys, self.channels),
            *range(values, values + keys),
            *range(values),
        ]
        return order, [*(values + i for i in order), *range(values), *steps]

    def mix(self, write: ProgramWriter, normed: Node, i: int, width: int) -> Node:
        """[rows, new, width], before the last projection."""
        layer = f"decoder.layers.{i}.state_space"
        shape = sum(self.projected), width
        projected = write.linear(normed, f"{layer}.in", shape, bias=self.bias)
        x, gate, step = write.split(projected, self.projected)
        inputs, state = Node(f"past_inputs_{i}"), Node(f"past_state_{i}")
        kernel = write.tensor(f"{layer}.kernel", self.convolution, self.channels)
        biased = self.convolution_bias
        bias = write.tensor(f"{layer}.kernel_bias", self.channels) if biased else None
        given = x, kernel, bias, inputs, LENGTHS
        x = write.step("short_convolution", *given, activation="silu")
        of_heads = self._of_heads(write, layer, "decay", "step_bias", "skip")
        x = write.step("selective_scan", x, step, *of_heads, state, LENGTHS, self.key_heads)
        x = self._norm(write, x, layer) if self.norm == "before" else x
        x = write.step("gated", gate, x, activation="silu")
        return self._norm(write, x, layer) if self.norm == "behind" else x

    def _norm(self, write: ProgramWriter, x: Node, layer: str) -> Node:
        if self.key_heads == 1:
            return write.rms_norm(x, f"{layer}.norm", self.values, self.norm_eps)
        parts = write.step("unflatten", x, -1, [-1, self.normed])
        parts = write.step("rms_norm", parts, Constant(_ONES), self.norm_eps)
        weight = write.tensor(f"{layer}.norm.weight", self.values)
        return write.step("mul", write.step("flatten", parts, -2), weight)


ATTENTION, CONVOLUTION, DELTA, STATE_SPACE = MIXERS = (
    "attention",
    "convolution",
    "delta",
    "state_space",
)
"""How positions of a layer are mixed."""


class ConvolvingSizes(Protocol):
    @property
    def width(self) -> int:
        """Number of channels."""

    @property
    def windows(self) -> Sequence[int | None]:
        """How many positions attention of each layer sees; None: all."""

    @property
    def mixers(self) -> Sequence[str]:
        """Each layer's mixer, one of MIXERS; empty: all are attention."""

    @property
    def delta(self) -> DeltaNet | None:
        """Sizes of layers with delta nets."""

    @property
    def state_space(self) -> StateSpace | None:
        """Sizes of layers with state spaces."""

    @property
    def convolution(self) -> int:
        """Length of a convolution."""

    @property
    def convolution_bias(self) -> bool:
        """Whether convolutions and their projections have biases."""


def check_mixers(sizes: ConvolvingSizes) -> None:
    if len(sizes.mixers) not in (0, len(sizes.windows)):
        raise KvcastError(f"{len(sizes.mixers)} mixers are not one for each layer")
    for mixer, window in zip(sizes.mixers, sizes.windows, strict=False):
        require_one_of("a layer's mixer", mixer, MIXERS)
        if window and mixer != ATTENTION:
            raise KvcastError("only attention has windows")
    for mixer, sizes_of_it in ((DELTA, sizes.delta), (STATE_SPACE, sizes.state_space)):
        if (mixer in sizes.mixers) != (sizes_of_it is not None):
            raise KvcastError("layers with states have sizes, and others have none")
    if CONVOLUTION not in sizes.mixers:
        if sizes.convolution or sizes.convolution_bias:
            raise KvcastError("there is no layer with a convolution")
    elif not 1 <= sizes.convolution <= _LONGEST_CONVOLUTION:
        raise KvcastError(f"a convolution of {sizes.convolution} positions is not possible")


def inputs_cache(sizes: ConvolvingSizes) -> CacheLayers:
    return CacheLayers(
        kind="inputs", layers=1, heads=1, head_dim=sizes.width, capacity=sizes.convolution
    )


def write_convolution(write: ProgramWriter, normed: Node, sizes: ConvolvingSizes, i: int) -> Node:
    """[rows, new, width], before the last projection."""
    layer, biased, width = f"decoder.layers.{i}.convolution", sizes.convolution_bias, sizes.width
    projected = write.linear(normed, f"{layer}.input", (3 * width, width), bias=biased)
    before, after, x = write.split(projected, [width] * 3)
    gated = write.step("mul", before, x)
    kernel = write.tensor(f"{layer}.kernel", sizes.convolution, width)
    bias = write.tensor(f"{layer}.bias", width) if biased else None
    past = Node(f"past_inputs_{i}")
    mixed = write.step("short_convolution", gated, kernel, bias, past, LENGTHS)
    return write.step("mul", after, mixed)
