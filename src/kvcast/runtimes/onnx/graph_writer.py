"""Writes ONNX graphs node by node, and fuses operators: a step spends its time starting them.

A value's shape has sizes and names of dynamic sizes. Equal nodes are emitted once.

Fusion makes a decoder-only layer ten operators: one GroupQueryAttention, fed by one packed product,
rotates, writes and attends; norms take the additions before them. Results do not change.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from kvcast.families.programs import Argument, CacheArgument, ProgramSignature

CONTRIB = "com.microsoft"
OPSET = 21
_IR_VERSION = 10  # the newest that ONNX Runtime reads with this opset
TRANSPOSED = ".transposed"  # ends the name of a weight [inputs, outputs]

T = TypeVar("T")
Dim = int | str
Shape = Sequence[Dim]


class Matrix(Protocol):
    """A matrix [outputs, inputs] of a program, in some form."""

    def product(self, write: "GraphWriter", x: ir.Value, bias: ir.Value | None) -> ir.Value:
        """[..., inputs] to [..., outputs]."""

    def lookup(self, write: "GraphWriter", ids: ir.Value) -> ir.Value:
        """Rows [...] to [..., inputs]."""


class GraphWriter:
    """A graph so far; `changed` are written inputs and additional results of operations."""

    def __init__(
        self,
        signature: ProgramSignature,
        constants: Mapping[str, NDArray[Any]],
        matrices: Mapping[str, Matrix],
    ) -> None:
        self.inputs = {
            value.name or "": value
            for argument in signature.arguments
            for value in _inputs(argument)
        }
        self._graph = ir.Graph(
            list(self.inputs.values()),
            [],
            nodes=[],
            opset_imports={"": OPSET, CONTRIB: 1},
            name="program",
        )
        self._constants, self._matrices = constants, matrices
        self._outputs: dict[Any, Sequence[ir.Value]] = {}
        # By the name of a size, the first input that has it, and its axis.
        self._sources = {
            name: (given, axis)
            for given in reversed(self.inputs.values())
            for axis, name in enumerate(dims(given))
        }
        self._dims: dict[ir.Value, Dim] = {}
        self._shared: dict[str, Any] = {}
        self.changed: dict[str, ir.Value] = {}

    def model(self, outputs: Mapping[str, ir.Value]) -> ir.Model:
        for name, value in outputs.items():
            if value.name in self.inputs or value in self._graph.outputs:
                value = self.node("Identity", [value], value.dtype, dims(value))
            value.name = name
            self._graph.outputs.append(value)
        return ir.Model(self._graph, ir_version=_IR_VERSION, producer_name="kvcast")

    def nodes(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        results: Sequence[tuple[ir.DataType | None, Shape]],
        domain: str = "",
        **attributes: Any,
    ) -> Sequence[ir.Value]:
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        key = (operator, *map(id, inputs), str(sorted(attributes.items())), len(results))
        if key not in self._outputs:
            node = ir.node(operator, inputs, attributes, domain=domain, num_outputs=len(results))
            for value, (dtype, shape) in zip(node.outputs, results, strict=True):
                value.type, value.shape = ir.TensorType(dtype or ir.DataType.FLOAT), ir.Shape(shape)
            self._graph.append(node)
            self._outputs[key] = node.outputs
        return self._outputs[key]

    def node(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType | None,
        shape: Shape,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        return self.nodes(operator, inputs, [(dtype, shape)], domain, **attributes)[0]

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return a cached value by name; all layers share it."""
        if name not in self._shared:
            self._shared[name] = make()
        made: T = self._shared[name]
        return made

    def array(self, name: str) -> NDArray[np.generic]:
        return self._constants[name]

    def matrix(self, name: str) -> Matrix:
        return self._matrices[name]

    def constant(self, name: str, array: NDArray[np.generic] | None = None) -> ir.Value:
        """Return a constant of the program or, under a new name, another array."""
        held = self._graph.initializers.get(name)
        if held is not None:
            return held
        content = self.array(name) if array is None else array
        value = ir.Value(
            name=name,
            const_value=ir.tensor(content, name=name),
            shape=ir.Shape(content.shape),
            type=ir.TensorType(ir.DataType.from_numpy(content.dtype)),
        )
        self._graph.register_initializer(value)
        return value

    def transposed(self, name: str) -> ir.Value:
        """Return a matrix [outputs, inputs] of the program as [inputs, outputs]."""
        return self.constant(name + TRANSPOSED, np.ascontiguousarray(self.array(name).T))

    def number(self, number: float, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        name = f"number_{dtype.name.lower()}_{number}"
        return self.constant(name, np.array(number, dtype.numpy()))

    def integers(self, *numbers: int) -> ir.Value:
        name = "_".join(map(str, ("integers", *numbers)))
        return self.constant(name, np.array(numbers, np.int64))

    def size(self, x: ir.Value, axis: int) -> ir.Value:
        """Return the size of an axis, int64 [1]; layers share the sizes that have a name."""
        size = dims(x)[axis]
        if isinstance(size, int):
            value = self.integers(size)
        else:
            source, axis = self._sources.get(size, (x, axis % len(dims(x))))
            value = self.node("Shape", [source], ir.DataType.INT64, [1], start=axis, end=axis + 1)
        self._dims[value] = size
        return value

    def dim(self, size: ir.Value) -> Dim:
        return self._dims[size]

    def is_size(self, value: Any) -> bool:
        """Return whether a value is a size, which takes the dtype of the other operands."""
        return value in self._dims

    def reshaped(self, x: ir.Value, sizes: Sequence[int | ir.Value]) -> ir.Value:
        """Return x in another shape: integers, sizes, 0 for the same axis of x, and one -1."""
        shape = [
            self._dims[size] if isinstance(size, ir.Value) else size or dims(x)[axis]
            for axis, size in enumerate(sizes)
        ]
        if -1 in shape:
            shape[shape.index(-1)] = _rest(dims(x), [size for size in shape if size != -1])
        if all(isinstance(size, int) for size in sizes):
            target = self.integers(*sizes)  # type: ignore[arg-type]
        else:
            parts = [size if isinstance(size, ir.Value) else self.integers(size) for size in sizes]
            target = self.node("Concat", parts, ir.DataType.INT64, [len(sizes)], axis=0)
        return self.node("Reshape", [x, target], x.dtype, shape)

    def arithmetic(
        self, operator: str, *operands: ir.Value, dtype: ir.DataType | None = None
    ) -> ir.Value:
        """Broadcast operands through an elementwise operator; without a dtype, into theirs."""
        shape = broadcast(*map(dims, operands))
        return self.node(operator, operands, dtype or operands[0].dtype, shape)

    def unsqueezed(self, x: ir.Value, *axes: int) -> ir.Value:
        """Return x with axes of size 1 at these indices of the result, in ascending order."""
        shape = dims(x)
        for axis in axes:
            shape.insert(axis, 1)
        return self.node("Unsqueeze", [x, self.integers(*axes)], x.dtype, shape)

    def scalar(self, size: ir.Value) -> ir.Value:
        return self.node("Squeeze", [size], size.dtype, [])

    def transposed_axes(self, x: ir.Value, first: int, second: int) -> ir.Value:
        shape, order = dims(x), list(range(len(dims(x))))
        order[first], order[second] = order[second], order[first]
        return self.node("Transpose", [x], x.dtype, [shape[axis] for axis in order], perm=order)

    def folded(self, query: ir.Value, key: ir.Value) -> ir.Value:
        """Return queries [rows, new, d] as [batch, rows / batch * new, d], to share keys."""
        return self.reshaped(query, [self.size(key, 0), -1, number(dims(query)[2])])

    def unfolded(self, mixed: ir.Value, query: ir.Value) -> ir.Value:
        return self.reshaped(mixed, [self.size(query, axis) for axis in range(3)])

    def cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        return x if x.dtype == dtype else self.node("Cast", [x], dtype, dims(x), to=dtype.value)


def dims(value: ir.Value) -> list[Dim]:
    if value.shape is None:
        raise TypeError(f"the axes of {value.name} are not known")
    return [size if isinstance(size, int) else str(size.value) for size in value.shape]


def number(size: Dim) -> int:
    if isinstance(size, str):
        raise TypeError(f"{size} is no number")
    return size


def broadcast(*shapes: Shape) -> list[Dim]:
    together: list[Dim] = [1] * max(map(len, shapes))
    for shape in shapes:
        for axis, size in enumerate(shape, len(together) - len(shape)):
            if size != 1 and (together[axis] == 1 or isinstance(size, int)):
                together[axis] = size
    return together


def _rest(shape: Shape, others: Shape) -> Dim:
    """Return the size that completes the others to a shape's element count."""
    left, named = list(shape), [size for size in others if isinstance(size, str)]
    for size in named:
        if size in left:
            left.remove(size)
    numbers = [size for size in left if isinstance(size, int)]
    names = [size for size in left if isinstance(size, str)]
    count = int(np.prod(numbers)) // int(np.prod([n for n in others if isinstance(n, int)]))
    if not names:
        return count
    return "*".join(names if count == 1 else [*names, str(count)])


def _inputs(argument: Argument | CacheArgument) -> list[ir.Value]:
    if isinstance(argument, Argument):
        dtype = ir.DataType.from_numpy(np.dtype(argument.dtype))
        return [
            ir.Value(name=argument.name, type=ir.TensorType(dtype), shape=ir.Shape(argument.shape))
        ]
    described = zip(argument.names, argument.dtypes, argument.shapes, strict=True)
    return [
        ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype))),
            shape=ir.Shape(shape),
        )
        for name, dtype, shape in described
    ]


def fuse(model: ir.Model) -> None:
    for node in list(model.graph):
        if node.op_type == "GroupQueryAttention":
            _take_packed(model.graph, node)
        elif node.op_type == "SimplifiedLayerNormalization":
            _take_residual(model.graph, node)


def _take_packed(graph: ir.Graph, node: ir.Node) -> None:
    query, key, value = node.inputs[:3]
    split = query.producer() if query is not None else None
    if split is None or split.op_type != "Split" or tuple(split.outputs) != (query, key, value):
        return
    node.replace_input_with(0, split.inputs[0])
    node.replace_input_with(1, None)
    node.replace_input_with(2, None)
    graph.remove(split, safe=True)


def _take_residual(graph: ir.Graph, norm: ir.Node) -> None:
    """Fuse a norm with the addition before it; the fused operator also returns the sum."""
    total = norm.inputs[0]
    add = total.producer() if total is not None else None
    if total is None or add is None or add.op_type != "Add":
        return
    if not all(_is_hidden(value) for value in add.inputs):
        return
    fused = ir.node(
        "SkipSimplifiedLayerNormalization",
        [*add.inputs, norm.inputs[1]],
        {"epsilon": norm.attributes["epsilon"].as_float()},
        domain=CONTRIB,
        num_outputs=4,
    )
    graph.insert_before(norm, fused)
    for old, new in ((norm.outputs[0], fused.outputs[0]), (total, fused.outputs[3])):
        new.name, new.shape, new.type = old.name, old.shape, old.type
        ir.convenience.replace_all_uses_with(old, new)
        old.name = None
    for spare in fused.outputs[1:3]:
        spare.name = ""
    graph.remove([norm, add], safe=True)


def _is_hidden(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is None
