"""Moonshine's encoders: over samples, and over frames with windowed attention.

The encoder over frames can stream. `listen` takes the next samples and returns the encoded
positions that later audio cannot change; `finish` returns the last positions, whose windows extend
past the end. Both take the state that `listen` returned: the last frames of convolutions, keys and
values of every layer's window, and the hidden states whose windows were not complete.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvcast.families.blocks import project_cross_caches
from kvcast.families.programs import FINISH, LISTEN, NEXT, Argument, StreamedSource
from kvcast.families.stacks import SOURCE_LENGTHS
from kvcast.spec.program import Constant, Node, Program, ProgramWriter

if TYPE_CHECKING:
    from kvcast.families.moonshine import MoonshineDimensions

_EPSILON, _FRAME_EPSILON = 1e-5, 1e-6  # of layer norms and the norm of a recording, and of frames
_SAMPLES, _FRAMES, _DONE = Node("samples"), Node("frames"), Node("done")
ANGLES = ("cosines", "sines")
"""Names of tables of angles, for both stacks."""

# Convolutions over samples: lengths and strides.
_LENGTHS, _STRIDES = (127, 7, 3), (64, 3, 2)
STRIDE = 384
"""Samples from one position over samples to the next: the product of strides."""
REACH = 895
"""Samples that such a position is computed from."""
# Convolutions over frames: the length and the stride of both.
_FRAME_LENGTH, _FRAME_STRIDE = 5, 2
FRAMES_EACH = 4
"""Frames that become a position."""
_BEFORE = _FRAME_LENGTH - 1
_ALL = 1 << 62


def normed_frames(samples: int) -> int:
    """Results of the first convolution over samples."""
    return (max(samples, REACH) - _LENGTHS[0]) // _STRIDES[0] + 1


def sources(dimensions: "MoonshineDimensions") -> Sequence[Argument]:
    if dimensions.frame:
        shape = ("batch", "source", dimensions.position_samples)
        return [Argument(name="samples", shape=shape, dtype="float32")]
    return [
        Argument(name="samples", shape=("batch", "samples"), dtype="float32"),
        Argument(name="frames", shape=("batch",), dtype="int32", example=(30, 20)),
    ]


def encode(write: ProgramWriter, dimensions: "MoonshineDimensions") -> Program:
    """Write `encode`, over [batch, samples] or frames [batch, positions, samples of one]."""
    if dimensions.frame:
        x = _embed_frames(write, dimensions)
        for number in (1, 2):
            x = _halve(write, x, number, [_BEFORE, 0], dimensions)
        count = write.size(x, 1)
        for i in range(dimensions.encoder_layers):
            qkv = write.chunk(_project(write, x, i, dimensions), 3)
            x = _attend_in_window(write, x, qkv, i, dimensions, SOURCE_LENGTHS)
        positions = write.step("arange", count, dtype="int64")
    else:
        x = _convolve(write, dimensions)
        for i in range(dimensions.encoder_layers):
            qkv = write.chunk(_project(write, x, i, dimensions), 3)
            x = _feed_forward(write, x, _attend_to_all(write, qkv, dimensions), i, dimensions)
        positions = None
    return write.program(**_project_cross_caches(write, x, positions, dimensions))


def _convolve(write: ProgramWriter, dimensions: "MoonshineDimensions") -> Node:
    """[batch, samples] to [batch, positions, width]."""
    width = dimensions.encoder_width
    first, second, third = _STRIDES
    shape = width, 1, _LENGTHS[0]
    x, conv = write.step("unsqueeze", _SAMPLES, 1), "encoder.conv1"
    x = write.conv1d(x, conv, shape, stride=first, padding=0, bias=False, activation="tanh")
    gain, bias = (write.tensor(f"encoder.sound_norm.{part}", width) for part in ("weight", "bias"))
    x = write.step("group_norm", write.step("transpose", x, 1, 2), gain, bias, _EPSILON, _FRAMES)
    x = write.step("transpose", x, 1, 2)
    shape = 2 * width, width, _LENGTHS[1]
    x = write.conv1d(x, "encoder.conv2", shape, stride=second, padding=0, activation="gelu")
    shape = width, 2 * width, _LENGTHS[2]
    x = write.conv1d(x, "encoder.conv3", shape, stride=third, padding=0, activation="gelu")
    return write.step("transpose", x, 1, 2)


def _embed_frames(write: ProgramWriter, dimensions: "MoonshineDimensions") -> Node:
    """[batch, positions, samples of one] to frames [batch, 4 * positions, width]."""
    frames = write.step("unflatten", _SAMPLES, 2, [FRAMES_EACH, dimensions.frame])
    gain, bias = Constant("frame_gain"), Constant("frame_bias")
    flat = write.step("flatten", frames, 1, 2)
    x = write.step("layer_norm", flat, gain, bias, _FRAME_EPSILON)
    x = write.step("asinh", write.step("mul", x, write.tensor("encoder.compression", 1)))
    shape = dimensions.encoder_width, dimensions.frame
    return write.linear(x, "encoder.frames", shape, activation="silu")


def _halve(
    write: ProgramWriter,
    x: Node,
    number: int,
    padding: int | list[int],
    dimensions: "MoonshineDimensions",
) -> Node:
    """Convolve frames [batch, n, width] with stride 2."""
    epilogue: dict[str, Any] = {"activation": "silu"} if number == 1 else {}
    width = dimensions.encoder_width
    channels = (2 * width, width) if number == 1 else (width, 2 * width)
    x = write.conv1d(
        write.step("transpose", x, 1, 2),
        f"encoder.conv{number}",
        (*channels, _FRAME_LENGTH),
        stride=_FRAME_STRIDE,
        padding=padding,
        **epilogue,
    )
    return write.step("transpose", x, 1, 2)


def _project(write: ProgramWriter, x: Node, layer: int, dimensions: "MoonshineDimensions") -> Node:
    name, width = f"encoder.layers.{layer}.attention", dimensions.encoder_width
    normed, bias = norm(write, x, f"{name}_norm", width), dimensions.encoder_attention_bias
    return write.linear(normed, f"{name}.qkv", (3 * _attention_width(dimensions), width), bias=bias)


def _attention_width(dimensions: "MoonshineDimensions") -> int:
    return dimensions.encoder_heads * dimensions.encoder_head_dim


def _attend_to_all(
    write: ProgramWriter, qkv: Sequence[Node], dimensions: "MoonshineDimensions"
) -> Node:
    heads, scale = dimensions.encoder_heads, dimensions.encoder_head_dim**-0.5
    angles = {name: Constant(name) for name in ANGLES}
    return write.step("encoder_attention", *qkv, heads, scale, SOURCE_LENGTHS, **angles)


def _attend_in_window(
    write: ProgramWriter,
    x: Node,
    qkv: Sequence[Node],
    layer: int,
    dimensions: "MoonshineDimensions",
    lengths: Node | None = None,
    following: int = 0,
) -> Node:
    heads, scale = dimensions.encoder_heads, dimensions.encoder_head_dim**-0.5
    window = dimensions.windows[layer]
    mixed = write.step("window_attention", *qkv, heads, scale, *window, lengths, following)
    return _feed_forward(write, x, mixed, layer, dimensions)


def _feed_forward(
    write: ProgramWriter, x: Node, mixed: Node, layer: int, dimensions: "MoonshineDimensions"
) -> Node:
    width, up = dimensions.encoder_width, (dimensions.encoder_inner, dimensions.encoder_width)
    bias = dimensions.encoder_attention_bias and bool(dimensions.frame)
    out, shape = f"encoder.layers.{layer}.attention.out", (width, _attention_width(dimensions))
    x = write.linear(mixed, out, shape, bias=bias, residual=x)
    name, activation = f"encoder.layers.{layer}.feed_forward", dimensions.encoder_activation
    normed = norm(write, x, f"{name}_norm", width)
    inner = write.linear(normed, f"{name}.up", up, bias=True, activation=activation)
    return write.linear(inner, f"{name}.down", up[::-1], bias=True, residual=x)


def _project_cross_caches(
    write: ProgramWriter, x: Node, positions: Node | None, dimensions: "MoonshineDimensions"
) -> Mapping[str, Node]:
    width, encoded = dimensions.width, dimensions.encoder_width
    x = norm(write, x, "encoder.norm", encoded)
    if positions is not None:
        shape = dimensions.source_positions, encoded
        x = write.step("add", x, write.embedding("decoder.source_positions", positions, shape))
    if width != encoded:
        x = write.linear(x, "decoder.source", (width, encoded))
    heads, bias = dimensions.heads, dimensions.attention_bias
    sizes = dimensions.decoder_layers, (2 * heads * dimensions.head_dim, width), heads
    return project_cross_caches(write, x, *sizes, bias=bias)


def norm(write: ProgramWriter, x: Node, name: str, width: int) -> Node:
    zeros = f"{name.partition('.')[0]}_no_bias"
    return write.layer_norm(x, name, width, _EPSILON, zeros=zeros)


def _left(dimensions: "MoonshineDimensions") -> dict[str, tuple[int, int]]:
    """State of `listen`: [positions, width] of each part; zeros for convolutions, empty windows."""
    width = dimensions.encoder_width
    mixed = dimensions.encoder_heads * dimensions.encoder_head_dim
    parts = {"first_frames": (_BEFORE, width), "second_frames": (_BEFORE, 2 * width)}
    for i, (_, after) in enumerate(dimensions.windows):
        parts |= {f"key_{i}": (0, mixed), f"value_{i}": (0, mixed)}
        parts |= {f"pending_{i}": (0, width), f"query_{i}": (0, mixed)} if after else {}
    return parts


def write_streamed_source(dimensions: "MoonshineDimensions") -> StreamedSource:
    parts = _left(dimensions)
    windows = [name for name in parts if not name.endswith("_frames")]
    writers = {
        LISTEN: ProgramWriter([_SAMPLES.name, _DONE.name, *parts]),
        FINISH: ProgramWriter([_DONE.name, *windows]),
    }
    programs = {
        LISTEN: _listen(writers[LISTEN], dimensions),
        FINISH: _finish(writers[FINISH], dimensions),
    }
    return StreamedSource(programs=programs, left=parts)


def _listen(write: ProgramWriter, dimensions: "MoonshineDimensions") -> Program:
    """Write `listen`: enough samples that each layer has a complete window."""
    kept: dict[str, Node] = {}
    x = _embed_frames(write, dimensions)
    for number, name in ((1, "first_frames"), (2, "second_frames")):
        frames = _join(write, name, x)
        kept[name] = write.step("slice", frames, 1, -_BEFORE, _ALL)
        x = _halve(write, frames, number, 0, dimensions)
    for i, (before, after) in enumerate(dimensions.windows):
        query, key, value = write.chunk(_project(write, x, i, dimensions), 3)
        keys, values = _join(write, f"key_{i}", key), _join(write, f"value_{i}", value)
        for name, whole in ((f"key_{i}", keys), (f"value_{i}", values)):
            # Of no window before: a slice of none from the end would be all.
            first = -(before + after) if before + after else _ALL
            kept[name] = write.step("slice", whole, 1, first, _ALL)
        if after:
            x, query = (_join(write, f"{name}_{i}", y) for name, y in _both(x, query))
            for name, whole in _both(x, query):
                kept[f"{name}_{i}"] = write.step("slice", whole, 1, -after, _ALL)
            x, query = (write.step("slice", y, 1, 0, -after) for y in (x, query))
        x = _attend_in_window(write, x, (query, keys, values), i, dimensions, following=after)
    positions = write.step("positions", x, _DONE)
    left_over = {f"{NEXT}{name}": node for name, node in kept.items()}
    return write.program(**_project_cross_caches(write, x, positions, dimensions), **left_over)


def _finish(write: ProgramWriter, dimensions: "MoonshineDimensions") -> Program:
    """Write `finish`: the pending positions' windows end with the recording."""
    x: Node | None = None  # there are none before the first layer that looks ahead
    for i, (_, after) in enumerate(dimensions.windows):
        keys, values = Node(f"key_{i}"), Node(f"value_{i}")
        hidden, query = (Node(f"{name}_{i}") for name in ("pending", "query"))
        if x is not None:
            new_query, key, value = write.chunk(_project(write, x, i, dimensions), 3)
            keys, values = _join(write, keys.name, key), _join(write, values.name, value)
            hidden = _join(write, hidden.name, x) if after else x
            query = _join(write, query.name, new_query) if after else new_query
        elif not after:
            continue
        x = _attend_in_window(write, hidden, (query, keys, values), i, dimensions)
    if x is None:
        return write.program()
    return write.program(
        **_project_cross_caches(write, x, write.step("positions", x, _DONE), dimensions)
    )


def _join(write: ProgramWriter, name: str, new: Node) -> Node:
    return write.step("cat", [Node(name), new], 1)


def _both(hidden: Node, query: Node) -> tuple[tuple[str, Node], tuple[str, Node]]:
    return ("pending", hidden), ("query", query)
