"""The traffic of calls on ONNX Runtime, from the nodes of a bundle's graphs.

A cache is in place if past and present are one buffer and the node that returns present only writes
new positions; any other node that returns present, or reads it and is no attention or view, copies.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

import onnx_ir as ir
from typing_extensions import override

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.families.programs import ENCODED
from kvcast.runtimes.opening import naming
from kvcast.runtimes.traffic import (
    FIXED_SIZE,
    CacheTensor,
    CallSizes,
    ProgramTraffic,
    Tally,
    TrafficReader,
    caches_of,
)

_SPARE = 128  # slots of a ring past its window
_NO_CONTENT = frozenset({"Shape", "Size"})
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_LOOKUPS = frozenset({"Gather", "GatherBlockQuantized"})
_PARTS = frozenset({"Gather", "GatherND", "GatherElements", "Slice"})
_ATTENTION = frozenset(
    {"GroupQueryAttention", "MultiHeadAttention", "DecoderMaskedMultiHeadAttention", "Attention"}
)
_UPDATES = frozenset({"GroupQueryAttention", "ScatterND", "ScatterElements", "TensorScatter"})
"""Nodes that write new positions alone where input and output are one buffer."""


class OnnxTraffic(TrafficReader):
    @override
    def bundle(
        self, folder: Path, manifest: Manifest, sizes: CallSizes
    ) -> Sequence[ProgramTraffic]:
        family, dimensions = manifest.model()
        caches = caches_of(manifest.cache, sizes, spare=_SPARE)
        tensors = family.tensor_shapes(dimensions)
        programs = []
        for name, described in manifest.graphs.items():
            with naming(folder / described.file):
                graph = ir.load(folder / described.file).graph
                tally = Tally(name, tensors, caches, caches.keys() & set(described.outputs))
                programs.append(_Counter(tally, graph, described, caches, sizes).counted())
        return programs


class _Counter:
    def __init__(
        self,
        tally: Tally,
        graph: ir.Graph,
        described: Graph,
        caches: Mapping[str, CacheTensor],
        sizes: CallSizes,
    ) -> None:
        self._tally = tally
        self._graph = graph
        self._aliases = described.aliases
        self._caches = caches
        self._sizes = sizes
        self._results = {value.name: value for value in graph.outputs}
        # The constant or the cache that a value is, or is a view of.
        self._origins: dict[ir.Value, str] = {
            value: value.name or ""
            for value in (*graph.initializers.values(), *graph.inputs)
            if value.name in graph.initializers or value.name in caches
        }
        self._arrays = {value.name or "": value for value in self._origins}

    def counted(self) -> ProgramTraffic:
        self._count_nodes(self._graph)
        return self._tally.traffic()

    def _count_nodes(self, nodes: Iterator[ir.Node] | ir.Graph) -> None:
        for node in nodes:
            self._count(node)
            for branch in _taken(node, self._sizes):
                self._count_nodes(branch)

    def _count(self, node: ir.Node) -> None:
        origins = [self._origins.get(value) if value else None for value in node.inputs]
        constants = [name for name in origins if name and name not in self._caches]
        self._tally.operator(node.op_type, () if node.op_type in _NO_CONTENT else constants)
        if node.op_type in _NO_CONTENT:
            return
        first = origins[0] if origins else None
        if node.op_type in _VIEWS and first and not self._is_result(node):
            self._origins[node.outputs[0]] = first
            return
        for i, (name, value) in enumerate(zip(origins, node.inputs, strict=True)):
            if name is None or value is None:
                continue
            if name in self._caches:
                self._count_cache(node, name, value)
            else:
                self._tally.weight(name, self._weight(node, i, self._arrays[name]))
        for value in node.outputs:
            self._count_result(node, value)

    def _is_result(self, node: ir.Node) -> bool:
        return any(value.name in self._results for value in node.outputs)

    def _weight(self, node: ir.Node, place: int, constant: ir.Value) -> int:
        size = constant.const_value.nbytes if constant.const_value is not None else 0
        if node.op_type in _LOOKUPS and place != 1:
            axis = node.attributes.get_int("axis", 0)
            rows = (constant.shape or ir.Shape([1]))[axis if node.op_type == "Gather" else 0]
            looked_up = self._elements(node.inputs[1])
            return min(size, size // max(1, int(rows)) * looked_up)  # type: ignore[arg-type]
        if node.op_type == "MoE" and place > 1:
            experts = int(constant.shape[0])  # type: ignore[index,arg-type]
            chosen = self._elements(node.inputs[1]) // experts * node.attributes.get_int("k", 1)
            return size // experts * min(experts, chosen)
        return size

    def _count_cache(self, node: ir.Node, name: str, value: ir.Value) -> None:
        size, cache = self._bytes(name), self._caches[name]
        is_own = name.startswith("past_")
        read = copied = 0
        if node.op_type in _ATTENTION:
            slots = cache.shape[2]
            window = node.attributes.get_int("local_window_size", 0)
            seen = min(slots, self._sizes.seen(window if window > 0 else None))
            read = size // slots * seen if is_own else size
        elif node.op_type in _UPDATES or cache.kind in FIXED_SIZE:
            read = size if cache.kind in FIXED_SIZE and self._sizes.length else 0
        elif node.op_type in _PARTS:
            read = min(size, self._elements(node.outputs[0]) * _item(value))
        else:
            copied = size
        self._tally.cache(name, node.op_type, size, read=read, copied=copied)

    def _count_result(self, node: ir.Node, value: ir.Value) -> None:
        name = value.name or ""
        if name in self._caches and name in self._results:  # of `encode`
            size = prod(self._caches[name].shape) * _item(value)
            self._tally.cache(name, node.op_type, size, written=size)
            return
        before = self._aliases.get(name, name.replace("present_", "past_", 1))
        if name not in self._results or before not in self._caches:
            return
        size, cache = self._bytes(before), self._caches[before]
        in_place = name in self._aliases and node.op_type in _UPDATES
        written = copied = 0
        if cache.kind in FIXED_SIZE:
            written = size
        elif not in_place:
            copied = size
        elif cache.kind not in ENCODED:
            slots = cache.shape[2]
            written = size // slots * min(slots, self._sizes.new)
        self._tally.cache(before, node.op_type, size, written=written, copied=copied)

    def _bytes(self, cache: str) -> int:
        return prod(self._caches[cache].shape) * _item(self._arrays[cache])

    def _elements(self, value: ir.Value | None) -> int:
        """Return a value's element count; sizes without a known name count as one."""
        if value is None or value.shape is None:
            return 1
        return prod(_size(str(getattr(dim, "value", dim)), self._sizes) for dim in value.shape)


def _item(value: ir.Value) -> int:
    return 1 if value.dtype is None else max(1, int(value.dtype.itemsize))


def _size(dim: str, sizes: CallSizes) -> int:
    """Return a size: an integer, a name, or a product of these."""
    named = {
        "rows": sizes.rows,
        "batch": sizes.rows,
        "new": sizes.new,
        "source": sizes.source or 1,
        "capacity": sizes.length + sizes.new,
    }
    return prod(int(part) if part.isdecimal() else named.get(part, 1) for part in dim.split("*"))


def _taken(node: ir.Node, sizes: CallSizes) -> Iterator[ir.Graph]:
    """Yield the branches that a call takes (by the number of queries); both if undecidable."""
    if node.op_type != "If":
        return
    branches = {name: node.attributes[name].as_graph() for name in ("then_branch", "else_branch")}
    condition = node.inputs[0].producer() if node.inputs[0] is not None else None
    few = None
    if condition is not None and condition.op_type == "Greater" and condition.inputs[1] is not None:
        few = condition.inputs[1].const_value
    if few is None:
        yield from branches.values()
        return
    # Each row has its own input, so an input has as many queries as a row.
    yield branches["then_branch" if sizes.new > int(few.numpy().item()) else "else_branch"]
