"""Layers of decoders whose positions are mixed by a short convolution instead of attention (LFM2).

The inputs of each channel are multiplied by a gate, convolved with those before, and multiplied by
another gate. Knows sizes by the names of `kvcast.families.decoder_dimensions.DecoderDimensions`.
"""

from collections.abc import Sequence
from typing import Protocol

from kvcast.errors import KvcastError
from kvcast.families.blocks import LENGTHS
from kvcast.families.caches import CacheLayers
from kvcast.families.delta_nets import DeltaNet
from kvcast.families.state_spaces import StateSpace
from kvcast.spec.program import Constant, Node, ProgramWriter
from kvcast.spec.sizes import require_one_of

ATTENTION, CONVOLUTION, DELTA, STATE_SPACE = MIXERS = (
    "attention",
    "convolution",
    "delta",
    "state_space",
)
"""How positions of a layer are mixed."""
_LONGEST = 1024


class ConvolvingSizes(Protocol):
    """The dimensions that determine convolutions."""

    @property
    def width(self) -> int:
        """Number of channels."""

    @property
    def windows(self) -> Sequence[int | None]:
        """How many positions attention of each layer sees; None: all."""

    @property
    def post_norms(self) -> bool:
        """Whether layers have norms after as well as before attention."""

    @property
    def mixers(self) -> Sequence[str]:
        """Of each layer one of MIXERS; empty: all are attention."""

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


def check(sizes: ConvolvingSizes) -> None:
    """Raise KvcastError for dimensions that contradict one another."""
    if len(sizes.mixers) not in (0, len(sizes.windows)):
        raise KvcastError(f"{len(sizes.mixers)} mixers are not one for each layer")
    for mixer, window in zip(sizes.mixers, sizes.windows, strict=False):
        require_one_of("a layer's mixer", mixer, MIXERS)
        if window and mixer != ATTENTION:
            raise KvcastError("only attention has windows")
    for mixer, sizes_of_it in ((DELTA, sizes.delta), (STATE_SPACE, sizes.state_space)):
        if (mixer in sizes.mixers) != (sizes_of_it is not None):
            raise KvcastError("layers with states have sizes, and others have none")
    if sizes.post_norms and set(sizes.mixers) - {ATTENTION}:
        raise KvcastError("only attention has norms after it")
    if CONVOLUTION not in sizes.mixers:
        if sizes.convolution or sizes.convolution_bias:
            raise KvcastError("there is no layer with a convolution")
    elif not 1 <= sizes.convolution <= _LONGEST:
        raise KvcastError(f"a convolution of {sizes.convolution} positions is not possible")


def shapes(sizes: ConvolvingSizes) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a layer with a convolution, but for norms and the feed-forward."""
    width = sizes.width
    matrices: dict[str, tuple[int, ...]] = {
        "convolution.input.weight": (3 * width, width),
        "convolution.kernel": (sizes.convolution, width),
        "convolution.out.weight": (width, width),
    }
    if not sizes.convolution_bias:
        return matrices
    return matrices | {
        "convolution.input.bias": (3 * width,),
        "convolution.bias": (width,),
        "convolution.out.bias": (width,),
    }


def inputs_cache(sizes: ConvolvingSizes) -> CacheLayers:
    """Describe the cache of a layer with a convolution."""
    return CacheLayers(
        kind="inputs", layers=1, heads=1, head_dim=sizes.width, capacity=sizes.convolution
    )


def convolved(write: ProgramWriter, normed: Node, sizes: ConvolvingSizes, i: int) -> Node:
    """Mix the positions of a layer, [rows, new, width], before its last projection."""
    layer, biased = f"decoder.layers.{i}.convolution", sizes.convolution_bias
    projected = write.linear(normed, f"{layer}.input", bias=biased)
    before, after, x = write.split(projected, [sizes.width] * 3)
    gated = write.step("mul", before, x)
    kernel, bias = Constant(f"{layer}.kernel"), Constant(f"{layer}.bias") if biased else None
    past = Node(f"past_inputs_{i}")
    mixed = write.step("short_convolution", gated, kernel, bias, past, LENGTHS)
    return write.step("mul", after, mixed)
