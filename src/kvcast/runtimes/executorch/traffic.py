"""The traffic of calls on ExecuTorch, from the instructions of a `.pte` file.

A cache is an argument that stays in the caller's memory: `llama::update_cache` writes new positions
there. It is copied if anything but attention or a view takes it, such as `view_copy`, `index_put`
or a delegate, which copies its arguments.

The file has no names of layers, but each cache belongs to one. A layer begins after the operator
whose result goes into its attention and is added to that later: the residual. `encode`, whose
layers have no caches, is one row. A call takes one row, so several read weights as often.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.families.programs import ENCODED
from kvcast.runtimes.executorch.methods import quiet
from kvcast.runtimes.opening import naming
from kvcast.runtimes.traffic import (
    FIXED_SIZE,
    INPUT,
    OUTPUT,
    CacheTensor,
    CallSizes,
    ProgramTraffic,
    Tally,
    TrafficReader,
    caches_of,
)

with quiet():
    from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary
    from executorch.exir.schema import DelegateCall, KernelCall, Tensor, TensorList

_UPDATES = ("llama::update_cache", "llama::update_cache_with_indices")
_ATTENTION = "llama::custom_sdpa"
_MASK = 4  # its argument; null where it goes by positions alone
_PRODUCT = "aten::bmm"
_VIEWS = ("executorch_prim::et_view",)
_NO_CONTENT = ("aten::sym_size",)
_LOOKUP = "aten::embedding"
_SELECTIONS = ("aten::index", "aten::index_select")
_NAMES = re.compile(rb"[0-9a-f]{64}")  # of data that a delegate reads from the file
_ITEMS = {"FLOAT": 4, "HALF": 2, "BFLOAT16": 2, "DOUBLE": 8, "CHAR": 1, "BYTE": 1, "QINT8": 1}
"""Bytes of the numbers that weights and caches have; others are no weights."""


class ExecutorchTraffic(TrafficReader):
    @override
    def bundle(
        self, folder: Path, manifest: Manifest, sizes: CallSizes
    ) -> Sequence[ProgramTraffic]:
        path = folder / manifest.graph("decode").file
        with naming(path):
            file = deserialize_pte_binary(path.read_bytes())
            plans = {plan.name: plan for plan in file.program.execution_plan}
            return [
                _Method(file, plans[name], name, graph, manifest, sizes).counted()
                for name, graph in manifest.graphs.items()
            ]


@dataclass(frozen=True)
class _Call:
    """An instruction: its operator, argument values by index, and data."""

    operator: str
    values: Sequence[int]
    data: Mapping[str, int]


class _Method:
    def __init__(
        self,
        file: PTEFile,
        plan: Any,
        name: str,
        graph: Graph,
        manifest: Manifest,
        sizes: CallSizes,
    ) -> None:
        self._file, self._plan, self._sizes = file, plan, sizes
        self._calls = list(self._instructions())
        caches = caches_of(manifest.cache, sizes)
        given = dict(zip(graph.inputs, plan.inputs, strict=True))
        results = dict(zip(graph.outputs, plan.outputs, strict=True))
        self._own = {value: key for key, value in given.items() if key in caches}
        self._given = set(plan.inputs)
        self._made = self._makes()
        self._logits = results.get("logits")
        self._filled = {key: value for key, value in results.items() if key in caches}
        self._caches = {
            key: self._laid_out(caches[key], value)
            for key, value in (*given.items(), *results.items())
            if key in caches
        }
        weights = {key for call in self._calls for key in call.data}
        self._tally = Tally(name, weights, self._caches, self._filled, by_number=True)

    def counted(self) -> ProgramTraffic:
        starts = self._starts()
        for i, call in enumerate(self._calls):
            if i in starts:
                self._tally.enter(starts[i])
            self._tally.operator(call.operator)
            for name, size in call.data.items():
                self._tally.weight(name, size * self._sizes.rows)
            self._count_caches(call)
        for key, value in self._filled.items():
            size = self._bytes(key, value)
            self._tally.cache(key, "result", size, written=size)
        return self._tally.traffic()

    def _instructions(self) -> Iterator[_Call]:
        for chain in self._plan.chains:
            for instruction in chain.instructions:
                match instruction.instr_args:
                    case KernelCall(op_index=i, args=given):
                        operator, values = self._plan.operators[i].name, self._each(given)
                        yield _Call(operator, values, self._constants(operator, values))
                    case DelegateCall(delegate_index=i, args=given):
                        delegate, values = self._plan.delegates[i], self._each(given)
                        data = self._constants(delegate.id, values) | self._named(delegate)
                        yield _Call(delegate.id, values, data)

    def _each(self, values: Sequence[int]) -> list[int]:
        lists = (self._plan.values[value].val for value in values)
        inside = (item for part in lists if isinstance(part, TensorList) for item in part.items)
        return [*values, *inside]

    def _constants(self, operator: str, values: Sequence[int]) -> dict[str, int]:
        read: dict[str, int] = {}
        if operator in _SELECTIONS:  # of rotary angles and the like
            return read
        for value in set(values) - set(self._plan.inputs):
            tensor = self._plan.values[value].val
            if isinstance(tensor, Tensor) and tensor.data_buffer_idx and tensor.sizes:
                size = prod(tensor.sizes) * _item(tensor)
                if operator == _LOOKUP:  # one row of a table for each token
                    size = size // tensor.sizes[0] * self._sizes.new
                read[f"buffer {tensor.data_buffer_idx}"] = size
        return read

    def _named(self, delegate: Any) -> dict[str, int]:
        blob = self._file.program.backend_delegate_data[delegate.processed.index].data
        named = self._file.named_data
        if named is None:
            return {}
        keys = {key.decode() for key in _NAMES.findall(bytes(blob))} & named.pte_data.keys()
        return {key: len(named.buffers[named.pte_data[key].buffer_index]) for key in keys}

    def _starts(self) -> dict[int, str]:
        if not any(key.startswith("past_") for key in self._caches):
            return {0: "encode"}
        layers: dict[str, list[int]] = {}
        for i, call in enumerate(self._calls):
            for value in call.values:
                if (key := self._own.get(value, "")).startswith("past_"):
                    layers.setdefault(key.rpartition("_")[2], []).append(i)
        starts = {0: INPUT}
        for number, touching in layers.items():
            # A cache may be read long before its layer.
            writing = [i for i in touching if self._calls[i].operator in _UPDATES] or touching
            starts[self._residual(writing[0], touching[-1])] = f"decoder layer {number}"
        starts[self._head()] = OUTPUT
        return starts

    def _residual(self, first: int, last: int) -> int:
        """Return the instruction after the one that returns an attention's residual.

        The residual is the attention's input, read again later, maybe only at requested positions.
        """
        shape = self._hidden()
        later = {value for call in self._calls[last + 1 :] for value in call.values}
        wanted = set(self._calls[first].values)
        for i in range(first - 1, -1, -1):
            made = self._made[i]
            if made & wanted:
                # Of parts of one value none is the residual.
                whole = "split" not in self._calls[i].operator
                if whole and any(self._sizes_of(value) == shape for value in made & later & wanted):
                    return i + 1
                wanted |= set(self._calls[i].values)
            elif made & later:
                later |= set(self._calls[i].values)
        return first

    def _head(self) -> int:
        """Return the last norm before the logits' product, or that product."""
        products = [i for i, call in enumerate(self._calls) if call.data]
        wanted = {self._logits}
        for i in range(len(self._calls) - 1, -1, -1):
            if self._made[i] & wanted:
                if "norm" in self._calls[i].operator:
                    return i
                wanted |= set(self._calls[i].values)
        return products[-1]

    def _makes(self) -> list[set[int]]:
        """Return the tensors that each instruction computes, as the first to have them."""
        known, makes = set(self._given), []
        for call in self._calls:
            makes.append({value for value in set(call.values) - known if self._is_made(value)})
            known.update(call.values)
        return makes

    def _is_made(self, value: int) -> bool:
        tensor = self._plan.values[value].val
        return isinstance(tensor, Tensor) and not tensor.data_buffer_idx

    def _hidden(self) -> list[int]:
        """Return the shape of hidden states, from the token embeddings."""
        lookups = (call for call in self._calls if call.operator == _LOOKUP)
        return self._sizes_of(next(lookups).values[-1])

    def _sizes_of(self, value: int) -> list[int]:
        return list(self._plan.values[value].val.sizes)

    def _laid_out(self, cache: CacheTensor, value: int) -> CacheTensor:
        """Return a cache [rows, heads, slots, d]; a ring has the file's slots."""
        if cache.kind != "ring":
            return cache
        rows, heads, _, width = cache.shape
        slots = self._plan.values[value].val.sizes[1]
        return CacheTensor(kind=cache.kind, shape=(rows, heads, slots, width), dtype=cache.dtype)

    def _bytes(self, name: str, value: int) -> int:
        return prod(self._caches[name].shape) * _item(self._plan.values[value].val)

    def _count_caches(self, call: _Call) -> None:
        if call.operator in _NO_CONTENT:
            return
        held = [value for value in dict.fromkeys(call.values) if value in self._own]
        if call.operator in _VIEWS and held:
            self._own |= {
                value: self._own[held[0]]
                for value in call.values
                if isinstance(self._plan.values[value].val, Tensor)
            }
            return
        for value in held:
            self._count_cache(call, self._own[value], value)

    def _count_cache(self, call: _Call, name: str, value: int) -> None:
        size, cache = self._bytes(name, value), self._caches[name]
        slots = cache.shape[2] if cache.kind not in ENCODED else 1
        read = written = copied = 0
        if call.operator in _UPDATES:
            written = size // slots * min(slots, self._sizes.new)
        elif call.operator == _ATTENTION:
            mask = self._plan.values[call.values[_MASK]].val
            read = size if isinstance(mask, Tensor) else size // slots * self._sizes.length
        elif call.operator == _PRODUCT or cache.kind in ENCODED:
            read = size
        elif call.operator in _SELECTIONS and cache.kind in FIXED_SIZE:
            selected = self._plan.values[call.values[-1]].val
            read = min(size, prod(selected.sizes) * _item(selected))
        else:
            copied = size
        self._tally.cache(name, call.operator, size, read=read, written=written, copied=copied)


def _item(tensor: Any) -> int:
    return _ITEMS.get(tensor.scalar_type.name, 0)
