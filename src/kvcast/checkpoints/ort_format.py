"""Reads models in ONNX Runtime's own format (.ort): the nodes of a graph and their constants.

A file is a flatbuffer with identifier ORTM, of the schema onnxruntime/core/flatbuffers/schema/
ort.fbs. In a flatbuffer all is little-endian. A table begins with the signed distance back to its
vtable: u16 sizes of the vtable and of the table, then a u16 for each field, its place in the table,
or 0 where the file leaves it out. Strings, vectors and tables are u32 distances forward; strings
and vectors begin with a u32 count. Every place and count is checked against the file before it is
used.
"""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import map_file
from kvcast.errors import InputOutputError, KvcastError

IDENTIFIER = b"ORTM"
_VERSIONS = ("4", "5", "6")
_FLOAT, _UINT8, _INT8, _INT32, _INT64, _FLOAT16 = 1, 2, 3, 6, 7, 10
_DTYPES: Mapping[int, np.dtype[np.generic]] = {
    _FLOAT: np.dtype("<f4"),
    _UINT8: np.dtype("u1"),
    _INT8: np.dtype("i1"),
    _INT32: np.dtype("<i4"),
    _INT64: np.dtype("<i8"),
    _FLOAT16: np.dtype("<f2"),
}
_MOST_AXES, _MOST_DEPTH, _MOST_NODES = 8, 8, 1 << 20
# Fields of the schema's tables, by number.
_SESSION_VERSION, _SESSION_MODEL = 0, 1
_MODEL_GRAPH = 7
_GRAPH_CONSTANTS, _GRAPH_VALUES, _GRAPH_NODES = 0, 1, 2
_NODE_NAME, _NODE_OP, _NODE_INPUTS, _NODE_ATTRIBUTES = 0, 5, 8, 10
_ATTRIBUTE_GRAPH = 7
_TENSOR_NAME, _TENSOR_SHAPE, _TENSOR_TYPE, _TENSOR_BYTES = 0, 2, 3, 4
_VALUE_NAME, _VALUE_TYPE = 0, 2
_TYPE_VALUE, _TENSOR_TYPE_SHAPE, _SHAPE_AXES, _AXIS_SIZE, _SIZE_NUMBER = 2, 1, 0, 0, 1


@dataclass(frozen=True, kw_only=True)
class Constant:
    """An initializer. `values` are a view of the mapped file; None: of a type that is not read."""

    name: str
    values: NDArray[np.generic] | None


@dataclass(frozen=True, kw_only=True)
class OrtNode:
    """`constants`: of each input; None for what is computed."""

    name: str
    op: str
    constants: Sequence[Constant | None]


@dataclass(frozen=True, kw_only=True)
class OrtModel:
    """`nodes`: of all branches. `shapes`: of values with known types; 0 for a size without one."""

    nodes: Sequence[OrtNode]
    constants: Mapping[str, Constant]  # of the outermost graph
    shapes: Mapping[str, tuple[int, ...]]


def read_ort(path: Path) -> OrtModel:
    """Read a model; raises InputOutputError for damage, KvcastError for an unknown version."""
    file = _File(path)
    if file.bytes(4, 4).tobytes() != IDENTIFIER:
        raise file.error("it does not begin as a model of ONNX Runtime")
    session = _Table(file, file.follow(0))
    version = session.text(_SESSION_VERSION)
    if version not in _VERSIONS:
        raise KvcastError(f"{path} has version {version[:20]!r} of ONNX Runtime's format")
    graph = session.table(_SESSION_MODEL).table(_MODEL_GRAPH)
    constants = _constants(graph)
    return OrtModel(
        nodes=list(_Walk().nodes(graph, {}, 0)), constants=constants, shapes=_shapes(graph)
    )


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = map_file(path)

    def error(self, reason: str) -> InputOutputError:
        return InputOutputError(f"{self._path} is damaged: {reason}; fetch it again")

    def bytes(self, at: int, count: int) -> NDArray[np.uint8]:
        if not 0 <= at <= at + count <= len(self._data):
            raise self.error("it ends within a table")
        return self._data[at : at + count]

    def number(self, at: int, layout: str) -> int:
        packed = struct.Struct(f"<{layout}")
        (number,) = packed.unpack(self.bytes(at, packed.size).tobytes())
        return int(number)

    def follow(self, at: int) -> int:
        return at + self.number(at, "I")

    def vector(self, at: int, each: int) -> tuple[int, int]:
        """Return the place of a vector's first element, and their number."""
        first = self.follow(at) + 4
        count = self.number(first - 4, "I")
        self.bytes(first, count * each)
        return first, count


class _Table:
    def __init__(self, file: _File, at: int) -> None:
        self.file, self._at = file, at
        self._vtable = at - file.number(at, "i")
        self._size = file.number(self._vtable, "H")

    def _place(self, field: int) -> int | None:
        slot = 4 + 2 * field
        if slot + 2 > self._size:
            return None
        distance = self.file.number(self._vtable + slot, "H")
        return self._at + distance if distance else None

    def number(self, field: int, layout: str) -> int:
        place = self._place(field)
        return 0 if place is None else self.file.number(place, layout)

    def find(self, field: int) -> "_Table | None":
        place = self._place(field)
        return None if place is None else _Table(self.file, self.file.follow(place))

    def table(self, field: int) -> "_Table":
        table = self.find(field)
        if table is None:
            raise self.file.error("it lacks a part of its model")
        return table

    def text(self, field: int) -> str:
        place = self._place(field)
        return "" if place is None else self._text(place)

    def texts(self, field: int) -> list[str]:
        return [self._text(place) for place in self._places(field)]

    def tables(self, field: int) -> Iterator["_Table"]:
        for place in self._places(field):
            yield _Table(self.file, self.file.follow(place))

    def array(self, field: int, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        place = self._place(field)
        if place is None:
            return np.empty(0, dtype)
        first, count = self.file.vector(place, dtype.itemsize)
        return self.file.bytes(first, count * dtype.itemsize).view(dtype)

    def _places(self, field: int) -> range:
        place = self._place(field)
        if place is None:
            return range(0)
        first, count = self.file.vector(place, 4)
        return range(first, first + 4 * count, 4)

    def _text(self, place: int) -> str:
        first, count = self.file.vector(place, 1)
        text = self.file.bytes(first, count).tobytes().decode(errors="replace")
        # Names end up in messages: no line breaks or terminal codes.
        if not text.isprintable():
            raise self.file.error("a name is not text")
        return text


class _Walk:
    """Goes through graphs, whose number of nodes is bounded: damage may make them repeat."""

    def __init__(self) -> None:
        self._count = 0

    def nodes(self, graph: _Table, outer: Mapping[str, Constant], depth: int) -> Iterator[OrtNode]:
        if depth > _MOST_DEPTH:
            raise graph.file.error("its graphs are nested too deeply")
        known = {**outer, **_constants(graph)}
        for node in graph.tables(_GRAPH_NODES):
            self._count += 1
            if self._count > _MOST_NODES:
                raise graph.file.error("it has too many nodes")
            yield OrtNode(
                name=node.text(_NODE_NAME),
                op=node.text(_NODE_OP),
                constants=[known.get(name) for name in node.texts(_NODE_INPUTS)],
            )
            for attribute in node.tables(_NODE_ATTRIBUTES):
                branch = attribute.find(_ATTRIBUTE_GRAPH)
                if branch is not None:
                    yield from self.nodes(branch, known, depth + 1)


def _constants(graph: _Table) -> dict[str, Constant]:
    constants = (_constant(tensor) for tensor in graph.tables(_GRAPH_CONSTANTS))
    return {constant.name: constant for constant in constants}


def _constant(tensor: _Table) -> Constant:
    name = tensor.text(_TENSOR_NAME)
    dtype = _DTYPES.get(tensor.number(_TENSOR_TYPE, "i"))
    if dtype is None:
        return Constant(name=name, values=None)
    shape = [int(size) for size in tensor.array(_TENSOR_SHAPE, np.dtype("<i8"))]
    raw = tensor.array(_TENSOR_BYTES, np.dtype("u1"))
    if len(shape) > _MOST_AXES or min(shape, default=0) < 0:
        raise tensor.file.error(f"constant {name} has shape {shape[:_MOST_AXES]}")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise tensor.file.error(f"constant {name} has {len(raw)} bytes for shape {shape}")
    return Constant(name=name, values=raw.view(dtype).reshape(shape))


def _shapes(graph: _Table) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for value in graph.tables(_GRAPH_VALUES):
        found: _Table | None = value
        for field in (_VALUE_TYPE, _TYPE_VALUE, _TENSOR_TYPE_SHAPE):
            found = found and found.find(field)
        if found is not None:
            sizes = [axis.find(_AXIS_SIZE) for axis in found.tables(_SHAPE_AXES)]
            shapes[value.text(_VALUE_NAME)] = tuple(
                size.number(_SIZE_NUMBER, "q") if size else 0 for size in sizes
            )
    return shapes
