"""The modules of a Conformer's layer that its relatives share: two feed-forwards, a convolution.

Canonical tensors are [out, in], as in torch's Linear, kernels [positions, 1, channels]; of a
convolution's first projection, gates are the first half. Norms of batches are part of kernels, and
the half of each feed-forward that counts is part of its last matrix. Knows no attention.
"""

from kvcast.errors import KvcastError
from kvcast.families.blocks import with_biases
from kvcast.spec.program import Node, ProgramWriter

EPSILON = 1e-5
"""Of layer norms."""

_LONGEST_KERNEL = 1023
_NORMS = (
    "feed_forward_norm",
    "self_attention_norm",
    "convolution_norm",
    "last_feed_forward_norm",
    "norm",
)


def require_kernel(length: int) -> None:
    """Raise KvcastError for a convolution's length that is even, or larger than any model's."""
    if length % 2 == 0 or length > _LONGEST_KERNEL:
        raise KvcastError(f"a kernel of {length} positions is not possible: odd ones are")


def module_shapes(
    layer: str, width: int, inner: int, channels: int, kernel: int
) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a layer by canonical name, but those inside of its attention.

    Args:
        layer: what names begin with.
        width: size of a hidden state.
        inner: inner width of a feed-forward.
        channels: of the convolution.
        kernel: its length.

    """
    linears = {
        "feed_forward.up": (inner, width),
        "feed_forward.down": (width, inner),
        "convolution.in": (2 * channels, width),
        "convolution.out": (width, channels),
        "last_feed_forward.up": (inner, width),
        "last_feed_forward.down": (width, inner),
    }
    shapes = {
        **with_biases({**linears, **dict.fromkeys(_NORMS, (width,))}),
        "convolution.kernel": (kernel, 1, channels),
        "convolution.shift": (channels,),
    }
    return {f"{layer}.{name}": shape for name, shape in shapes.items()}


def fed(write: ProgramWriter, x: Node, name: str, activation: str) -> Node:
    """Add a feed-forward of its norm to a hidden state [batch, t, width]."""
    normed = write.layer_norm(x, f"{name}_norm", EPSILON)
    inner = write.linear(normed, f"{name}.up", bias=True, activation=activation)
    return write.linear(inner, f"{name}.down", bias=True, residual=x)


def convolved(write: ProgramWriter, x: Node, name: str, activation: str) -> Node:
    """Add a convolution of each channel over positions to a hidden state [batch, t, width]."""
    normed = write.layer_norm(x, f"{name}_norm", EPSILON)
    gated = write.linear(normed, f"{name}.in", bias=True, gate="sigmoid")
    apart = write.step("unsqueeze", gated, 2)
    mixed = write.channel_convolution(apart, name, stride=1, activation=activation)
    flat = write.step("flatten", mixed, 2, 3)
    return write.linear(flat, f"{name}.out", bias=True, residual=x)
