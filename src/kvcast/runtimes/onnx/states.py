"""Short convolutions and delta nets, as ONNX Runtime's operators.

What a cache holds afterwards depends on all that was read of it, so that past and present may be
bound to the same buffer. Functions take the writer and an operation's arguments. Knows no model.

Letters in shapes: r rows, s new positions, c slots, w channels, l length of a convolution, h heads
of values, g heads of keys, k and v sizes of a head.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from kvcast.runtimes.onnx.writing import GraphWriter, Shape, broadcast, dims, number
from kvcast.spec.program import Constant

_FLOAT, _INT64, _BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL
_END = np.iinfo(np.int64).max
_EPSILON = 1e-6  # of the lengths of queries and keys


def short_convolution(
    write: GraphWriter,
    x: ir.Value,
    kernel: Constant,
    bias: Constant | None,
    past: ir.Value,
    lengths: ir.Value,
) -> ir.Value:
    """Convolve new inputs and those before them, and write the new ones into the ring."""
    factors = write.array(kernel.name)
    length, (rows, _, _, width) = len(factors), dims(past)
    held = write.node("Squeeze", [past, write.integers(1)], _FLOAT, [rows, *dims(past)[2:]])
    count = _column(write, write.cast(lengths, _INT64), 1)
    before = _with(write, "Add", count, write.integers(*range(1 - length, 0)))
    places = _with(write, "Mod", before, write.size(past, 2))
    read = _taken(write, held, places)
    given = [_at_least(write, before, 0), read, write.number(0.0)]
    read = write.node("Where", given, _FLOAT, dims(read))
    inputs = write.node("Concat", [read, x], _FLOAT, [rows, "read", width], axis=1)
    mixed = None if bias is None else write.constant(bias.name)
    for i in range(length):
        span = write.integers(i), write.integers(i + 1 - length or _END), write.integers(1)
        part = write.node("Slice", [inputs, *span], _FLOAT, dims(x))
        factor = write.constant(f"{kernel.name}.{i}", np.ascontiguousarray(factors[i]))
        product = _with(write, "Mul", part, factor)
        mixed = product if mixed is None else _with(write, "Add", product, mixed)
    if mixed is None:
        raise ValueError("a convolution has no positions")
    write.changed[past.name or ""] = _turned(write, held, inputs, count, write.size(x, 1), length)
    return mixed


def _turned(
    write: GraphWriter,
    held: ir.Value,
    inputs: ir.Value,
    count: ir.Value,
    new: ir.Value,
    length: int,
) -> ir.Value:
    """Return the ring [r, 1, c, w] of `held` [r, c, w] after `new` more of `inputs`."""
    rows, slots, width = dims(held)
    last = _with(write, "Sub", _with(write, "Add", count, new), write.integers(1))
    size = write.scalar(write.size(held, 1))
    ends = write.number(0, _INT64), size, write.number(1, _INT64)
    each = write.node("Range", ends, _INT64, [slots])
    # How long ago the newest position of a slot was.
    ago = _with(write, "Mod", _with(write, "Sub", last, each), size)
    newest = _with(write, "Sub", _with(write, "Sub", last, ago), count)
    places = _with(write, "Add", newest, write.integers(length - 1))
    taken = _taken(write, inputs, _with(write, "Max", places, write.integers(0)))
    ring = write.node("Where", [_at_least(write, newest, 0), taken, held], _FLOAT, dims(held))
    return write.node("Unsqueeze", [ring, write.integers(1)], _FLOAT, [rows, 1, slots, width])


def delta_rule(
    write: GraphWriter,
    x: ir.Value,
    share: ir.Value,
    step: ir.Value,
    decay: Constant,
    bias: Constant,
    state: ir.Value,
    lengths: ir.Value,
    key_heads: int,
) -> ir.Value:
    """Rewrite matrices by new positions, one after the other, and read them at each."""
    heads, key_dim, value_dim = map(number, dims(state)[1:])
    keys = key_heads * key_dim
    rows, new, _ = dims(x)
    widths = [keys, keys, heads * value_dim]
    parts = [(_FLOAT, [rows, new, width]) for width in widths]
    query, key, value = write.nodes("Split", [x, write.integers(*widths)], parts, axis=2)
    query, key = (_unit_heads(write, part, heads, key_dim) for part in (query, key))
    query = _with(write, "Mul", query, write.number(key_dim**-0.5))
    factors = write.constant(f"{decay.name}.factor", -np.exp(write.array(decay.name)))
    steps = _with(write, "Add", step, write.constant(bias.name))
    steps = _with(write, "Mul", write.node("Softplus", [steps], _FLOAT, dims(step)), factors)
    each = [
        (query, 1, key_dim),
        (key, 1, key_dim),
        (key, key_dim, 1),
        (value, 1, value_dim),
        (write.node("Exp", [steps], _FLOAT, dims(step)), 1, 1),
        (write.node("Sigmoid", [share], _FLOAT, dims(share)), 1, 1),
    ]
    scanned = [_by_head(write, part, heads, *sizes) for part, *sizes in each]
    is_there = _column(write, write.cast(lengths, _BOOL), 1, 2, 3)
    matrix = write.node("Where", [is_there, state, write.number(0.0)], _FLOAT, dims(state))
    mixed_shape = [rows, new, heads, 1, value_dim]
    after, mixed = write.nodes(
        "Scan",
        [matrix, *scanned],
        [(_FLOAT, dims(state)), (_FLOAT, mixed_shape)],
        body=_position(dims(state), [sizes for _, *sizes in each]),
        num_scan_inputs=len(scanned),
        scan_input_axes=[1] * len(scanned),
        scan_output_axes=[1],
    )
    write.changed[state.name or ""] = after
    return write.reshaped(mixed, [0, 0, heads * value_dim])


def _position(state: Shape, each: Sequence[Sequence[int]]) -> ir.Graph:
    """Return what a position does: matrices before it to those after it, and its results."""
    rows, heads, key_dim, value_dim = state

    def value(name: str, *sizes: int | str) -> ir.Value:
        shape = ir.Shape([rows, heads, *sizes])
        return ir.Value(name=name, type=ir.TensorType(_FLOAT), shape=shape)

    before = value("before", key_dim, value_dim)
    names = ("query", "key", "key_column", "value", "kept", "share")
    scanned = [value(name, *sizes) for name, sizes in zip(names, each, strict=True)]
    query, key, key_column, wanted, kept, share = scanned
    nodes: list[ir.Node] = []

    def node(operator: str, *given: ir.Value) -> ir.Value:
        nodes.append(ir.node(operator, given))
        nodes[-1].outputs[0].name = f"position_{len(nodes)}"  # none of the graph's around it
        return nodes[-1].outputs[0]

    decayed = node("Mul", before, kept)
    added = node("Mul", node("Sub", wanted, node("MatMul", key, decayed)), share)
    after = node("Add", decayed, node("Mul", key_column, added))
    results = [after, node("MatMul", query, after)]
    for result, name, sizes in zip(
        results, ("after", "mixed"), ((key_dim, value_dim), (1, value_dim)), strict=True
    ):
        result.name, result.type = name, ir.TensorType(_FLOAT)
        result.shape = ir.Shape([rows, heads, *sizes])
    return ir.Graph([before, *scanned], results, nodes=nodes, name="position")


def _unit_heads(write: GraphWriter, flat: ir.Value, heads: int, size: int) -> ir.Value:
    """[r, s, g * k] to [r, s, h * k], with heads of length 1, repeated for the heads of values."""
    groups = number(dims(flat)[2]) // size
    split = write.reshaped(flat, [0, 0, groups, 1, size])
    squares = _with(write, "Mul", split, split)
    shape = [*dims(split)[:-1], 1]
    summed = write.node("ReduceSum", [squares, write.integers(-1)], _FLOAT, shape, keepdims=1)
    summed = _with(write, "Add", summed, write.number(_EPSILON))
    lengths = write.node("Sqrt", [summed], _FLOAT, shape)
    unit = _with(write, "Div", split, lengths)
    if heads > groups:
        repeats = [unit] * (heads // groups)
        shape = [*dims(split)[:3], heads // groups, size]
        unit = write.node("Concat", repeats, _FLOAT, shape, axis=3)
    return write.reshaped(unit, [0, 0, heads * size])


def _by_head(write: GraphWriter, x: ir.Value, heads: int, *sizes: int) -> ir.Value:
    """[r, s, h * n * m] to [r, s, h, n, m]."""
    return write.reshaped(x, [0, 0, heads, *sizes])


def _with(write: GraphWriter, operator: str, x: ir.Value, other: ir.Value) -> ir.Value:
    """Apply an operator of two arrays that broadcast together."""
    shape = broadcast(dims(x), dims(other))
    return write.node(operator, [x, other], x.dtype, shape)


def _at_least(write: GraphWriter, x: ir.Value, least: int) -> ir.Value:
    """Tell where [r, c] are at least a number, [r, c, 1]."""
    given = [x, write.number(least, _INT64)]
    return _column(write, write.node("GreaterOrEqual", given, _BOOL, dims(x)), 2)


def _taken(write: GraphWriter, x: ir.Value, places: ir.Value) -> ir.Value:
    """Take [r, c, w] from x [r, n, w] at places [r, c] of each row."""
    shape = [*dims(places), dims(x)[2]]
    return write.node("GatherND", [x, _column(write, places, 2)], x.dtype, shape, batch_dims=1)


def _column(write: GraphWriter, x: ir.Value, *axes: int) -> ir.Value:
    """Insert axes of one number."""
    shape = dims(x)
    for axis in axes:
        shape.insert(axis, 1)
    return write.node("Unsqueeze", [x, write.integers(*axes)], x.dtype, shape)
