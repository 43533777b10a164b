"""Traffic of an ONNX decoder's step on its caches, from the graph and from a profile.

A cache is an input `past…` and an output `present…`; the nodes between decide. Where a graph has
branches (`If`), a step takes the one for a filled cache.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import onnx_ir as ir

from kvcast.bundle.manifest import stays_inside
from kvcast.errors import InputOutputError, KvcastError, in_one_line
from kvcast.spec.runtimes import BundlePrecision
from kvcast.verification.foreign.base import How, Movement

_SHARING = ("GroupQueryAttention", "Attention", "MultiHeadAttention", "TensorScatter")
"""Operators that write new entries where the past lies, if the caller gives both one buffer."""
_SAME = ("Identity", "Cast")
_PRODUCTS = (
    *("MatMul", "Gemm", "Conv", "MatMulNBits", "MatMulInteger", "QLinearMatMul"),
    *("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "FusedMatMul"),
)
_WIDTHS: Mapping[ir.DataType, str] = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
}
_OF_INTEGERS = (
    *("MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QLinearMatMul"),
    *("QGemm", "ConvInteger"),
)
_FOUR = 4
_LEAST = 256
"""Bytes of a tensor that counts as a weight."""

_ENCODED, _PAST, _NEW = 1, 2, 4
"""What a value depends on: the encoder's output, caches, tokens and positions."""


@dataclass(frozen=True)
class CacheEnd:
    """A cache's input and output; None where the graph leaves a size open."""

    past: str
    present: str
    heads: int | None
    head_dim: int | None
    crossed: bool


class DecoderGraph:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._graph = _read(path).graph

    @property
    def inputs(self) -> Sequence[str]:
        return [value.name or "" for value in self._graph.inputs]

    @cached_property
    def caches(self) -> Sequence[CacheEnd]:
        """The caches among the inputs, in the graph's order; constant ones have no output."""
        given = {value.name for value in self._graph.outputs}
        caches = []
        for value in self._graph.inputs:
            name = value.name or ""
            if not name.startswith("past"):
                continue
            present = name.replace("past_key_values", "present", 1)
            sizes = [size if isinstance(size, int) else None for size in value.shape or ()]
            if len(sizes) != 4:
                raise KvcastError(
                    f"{self.path}: {name} has {len(sizes)} dimensions; caches of [rows, heads, "
                    "positions, size] are read"
                )
            caches.append(
                CacheEnd(
                    past=name,
                    present=present if present in given else "",
                    heads=sizes[1],
                    head_dim=sizes[3],
                    crossed=".encoder." in name,
                )
            )
        return caches

    def ways(self, *, shared: bool) -> Mapping[str, tuple[How, str]]:
        """Return how a step updates each cache, and the operator, by its input's name.

        `shared`: past and present are bound to one buffer.
        """
        outputs = {value.name: value for value in self._graph.outputs}
        ways: dict[str, tuple[How, str]] = {}
        for end in self.caches:
            made = self._maker(outputs[end.present]) if end.present else None
            if made is None:
                ways[end.past] = "kept", ""
            elif made.op_type == "Constant":
                # A placeholder: optimum's decoders give cross caches in the first call alone.
                ways[end.past] = "kept", ""
            else:
                in_place = shared and made.op_type in _SHARING
                ways[end.past] = ("in place" if in_place else "copied"), made.op_type
        return ways

    def copies(self, *, shared: bool, sizes: Mapping[str, tuple[int, int]]) -> Sequence[Movement]:
        """Return the whole caches that a step copies, by operator.

        `sizes`: values of a position of each cache, and bytes of a value, by its input's name.
        """
        found: dict[str, list[int]] = {}
        crossed = {end.past for end in self.caches if end.crossed}
        for name, (how, operator) in self.ways(shared=shared).items():
            if how == "copied" and name not in crossed:
                count, size = sizes[name]
                found.setdefault(operator, []).append(count * size)
        return [
            Movement(operator=operator, count=len(each), fixed=sum(each), per_position=sum(each))
            for operator, each in found.items()
        ]

    def recomputed(self) -> Mapping[str, int]:
        """Count products of a step that depend on the encoder's output alone."""
        found: Counter[str] = Counter()
        origins: dict[ir.Value | None, int] = {
            value: _origin(value.name or "") for value in self._graph.inputs
        }
        for node in self._step_nodes(self._graph, origins):
            if node.op_type in _PRODUCTS and origins.get(node.outputs[0]) == _ENCODED:
                found[node.op_type] += 1
        return dict(found)

    @property
    def branches(self) -> int:
        return sum(node.op_type == "If" for node in _all_nodes(self._graph))

    def weights(self) -> Iterator[tuple[tuple[str, tuple[int, ...]], int, Any]]:
        """Yield dtype and shape, bytes and the tensor of each weight."""
        for tensor in _tensors(self._graph):
            if tensor.nbytes >= _LEAST:
                yield (tensor.dtype.name, tuple(tensor.shape.numpy())), tensor.nbytes, tensor

    def precision(self) -> BundlePrecision:
        nodes = list(_all_nodes(self._graph))
        operators = {node.op_type for node in nodes}
        if "MatMulNBits" in operators:
            least = min(_bits(node) for node in nodes if node.op_type == "MatMulNBits")
            return BundlePrecision(quantize="int8" if least > _FOUR else "int4")
        if not operators.isdisjoint(_OF_INTEGERS):
            return BundlePrecision(quantize="int8")
        floats: Counter[str] = Counter()
        for _, size, tensor in self.weights():
            if tensor.dtype in _WIDTHS:
                floats[_WIDTHS[tensor.dtype]] += size
        dtype = floats.most_common(1)[0][0] if floats else "fp32"
        return BundlePrecision(quantize="none", dtype=dtype, cache=dtype)

    def _maker(self, value: ir.Value) -> ir.Node | None:
        """Return the operator that computes a value in a step; None for an input."""
        while (node := value.producer()) is not None:
            if node.op_type == "If":
                value = _step_branch(node).outputs[node.outputs.index(value)]
            elif node.op_type in _SAME and node.inputs[0] is not None:
                value = node.inputs[0]
            else:
                return node
        return None

    def _step_nodes(
        self, graph: ir.Graph, origins: dict[ir.Value | None, int]
    ) -> Iterator[ir.Node]:
        """Yield the operators of a step, in order, and record the origins of their results."""
        for node in graph:
            if node.op_type == "If":
                branch = _step_branch(node)
                yield from self._step_nodes(branch, origins)
                for outer, inner in zip(node.outputs, branch.outputs, strict=True):
                    origins[outer] = origins.get(inner, 0)
                continue
            origin = 0
            for value in node.inputs:
                origin |= origins.get(value, 0)
            for value in node.outputs:
                origins[value] = origin
            yield node


def _read(path: Path) -> ir.Model:
    try:
        model = ir.load(path)
    except OSError as error:
        raise InputOutputError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:
        raise KvcastError(f"{path} is no ONNX graph: {in_one_line(error)}") from None
    for tensor in _tensors(model.graph):
        if isinstance(tensor, ir.ExternalTensor):
            _check_external(path, tensor)
    return model


def _check_external(path: Path, tensor: ir.ExternalTensor) -> None:
    location = str(tensor.location)
    file = path.parent / location
    if not stays_inside(location) or not file.resolve().is_relative_to(path.parent.resolve()):
        raise KvcastError(f"{path}: {tensor.name} lies outside of the folder: {location!r}")
    if not file.is_file():
        raise KvcastError(f"{path}: there is no {location}, which has its weights: fetch it too")
    wanted = prod(tensor.shape.numpy()) * tensor.dtype.itemsize
    if (tensor.offset or 0) + wanted > file.stat().st_size + 1:
        raise InputOutputError(f"{file} ends before {tensor.name}: fetch it again")


def _tensors(graph: ir.Graph) -> Iterator[Any]:
    for value in graph.initializers.values():
        if value.const_value is not None:
            yield value.const_value
    for node in _all_nodes(graph):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR:
                yield attribute.as_tensor()
            elif attribute.type == ir.AttributeType.GRAPH:
                for value in attribute.as_graph().initializers.values():
                    if value.const_value is not None:
                        yield value.const_value


def _all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    return iter(ir.traversal.RecursiveGraphIterator(graph))


def _step_branch(node: ir.Node) -> ir.Graph:
    """Return the branch of an `If` for a filled cache."""
    return node.attributes["then_branch"].as_graph()


def _bits(node: ir.Node) -> int:
    return node.attributes["bits"].as_int() if "bits" in node.attributes else _FOUR


def _origin(name: str) -> int:
    if name == "encoder_hidden_states":
        return _ENCODED
    return _PAST if name.startswith("past") else _NEW


_COPYING = (
    *("Concat", "Expand", "Transpose", "Gather", "GatherND", "GatherElements", "Slice", "Split"),
    *("Tile", "Where", "Cast", "Pad", "ScatterND", "ScatterElements"),
)
"""Operators that only move numbers; the result of a `Reshape` lies where its input does."""
_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
}


def movements(
    profile: Callable[[int], Path],
    lengths: tuple[int, int],
    least: int,
    also: Collection[str] = (),
) -> Sequence[Movement]:
    """Return the bytes written by operators that only move data, if as large as a cache's tensor.

    `profile` runs a step over a number of positions; `lengths` are two of these; `least` is bytes a
    position; `also` names further operators, whose results contain caches.
    """
    few, many = (_output_bytes(profile(length)) for length in lengths)
    found: dict[str, list[tuple[int, int]]] = {}
    for name, (operator, more) in many.items():
        if operator not in (*_COPYING, *also) or name not in few:
            continue
        slope = (more - few[name][1]) // (lengths[1] - lengths[0])
        if slope >= least:
            found.setdefault(operator, []).append((more - slope * lengths[1], slope))
    return [
        Movement(
            operator=operator,
            count=len(each),
            fixed=sum(fixed for fixed, _ in each),
            per_position=sum(slope for _, slope in each),
        )
        for operator, each in sorted(found.items())
    ]


def _output_bytes(path: Path) -> Mapping[str, tuple[str, int]]:
    written: dict[str, tuple[str, int]] = {}
    for event in json.loads(path.read_text(encoding="utf-8")):
        name, about = str(event.get("name", "")), event.get("args") or {}
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            results = about.get("output_type_shape") or []
            written[name] = about.get("op_name", ""), sum(map(_bytes, results))
    return written


def _bytes(result: Mapping[str, Any]) -> int:
    return sum(_BYTES.get(dtype, 0) * prod(shape) for dtype, shape in result.items())
