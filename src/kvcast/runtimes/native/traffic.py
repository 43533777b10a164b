"""The traffic of calls on kvcast's interpreter, from the addresses in a call's plan.

A cache is in place if attention has its address, and copied if an elementwise instruction reads its
whole size.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.checkpoints.base import Checkpoint
from kvcast.families.programs import ProgramSignature
from kvcast.runtimes.bound import LOGITS
from kvcast.runtimes.native.bundles import open_bundle, open_checkpoint
from kvcast.runtimes.native.interpreter import Interpreter
from kvcast.runtimes.native.library import TILE
from kvcast.runtimes.native.opcodes import SCALE_BYTES, SCHEMA, Dtype, Operation
from kvcast.runtimes.native.plan_builder import Experts, Joined, Matrix, Plan
from kvcast.runtimes.native.values import NOTHING
from kvcast.runtimes.traffic import (
    CacheTensor,
    CallSizes,
    ProgramTraffic,
    Tally,
    TrafficReader,
    caches_of,
    probed_shapes,
    shapes_of,
)
from kvcast.spec.program import Constant
from kvcast.spec.runtimes import BundlePrecision
from kvcast.spec.stored_matrices import FileRows

_DECODE = "decode"
_TABLES = ("cosines", "sines")  # of which a call reads a few rows
_WRITTEN = ("out", "to", "rounded_out")  # fields that results go to


class NativeTraffic(TrafficReader):
    @override
    def bundle(
        self, folder: Path, manifest: Manifest, sizes: CallSizes
    ) -> Sequence[ProgramTraffic]:
        return _programs(manifest, open_bundle(folder, manifest, 1), sizes)

    @override
    def checkpoint(
        self, checkpoint: Checkpoint, precision: BundlePrecision, sizes: CallSizes
    ) -> Sequence[ProgramTraffic]:
        return _programs(*open_checkpoint(checkpoint, precision, 1), sizes)


def _programs(
    manifest: Manifest, interpreter: Interpreter, sizes: CallSizes
) -> list[ProgramTraffic]:
    family, dimensions = manifest.model()
    tensors, probed = family.tensor_shapes(dimensions), probed_shapes(family, dimensions)
    caches = caches_of(manifest.cache, sizes)
    constants = list(_constants(interpreter.constants))
    programs = []
    for name, signature in family.programs(dimensions).items():
        arrays = _arrays(signature, caches, shapes_of(signature, sizes, probed))
        results = _results(interpreter, name, arrays, caches)
        held = {key: part for key, part in {**arrays, **results}.items() if key in caches}
        call = interpreter.call(name, arrays, results)
        tally = Tally(name, tensors, caches, filled=results.keys() & caches.keys())
        counter = _Counter(tally, sizes, constants, held, set(results))
        for instruction in listed(call.plan):
            counter.count(instruction)
        programs.append(counter.tally.traffic())
    return programs


def _arrays(
    signature: ProgramSignature,
    caches: Mapping[str, CacheTensor],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, NDArray[Any]]:
    dtypes = {argument.name: argument.dtype for argument in signature.arguments}
    return {
        name: _empty(caches[name]) if name in caches else np.zeros(shapes[name], dtypes[name])
        for name in signature.inputs
    }


def _empty(cache: CacheTensor) -> NDArray[Any]:
    *others, width = cache.shape
    line = width + (SCALE_BYTES if cache.dtype == "int8" else 0)
    return np.zeros((*others, line), cache.dtype)


def _results(
    interpreter: Interpreter,
    name: str,
    arrays: Mapping[str, NDArray[Any]],
    caches: Mapping[str, CacheTensor],
) -> dict[str, NDArray[Any]]:
    """Return arrays for a call's results; for `decode` only logits."""
    sizes = interpreter.sizes(name, arrays)
    wanted = [LOGITS] if name == _DECODE and LOGITS in sizes else list(sizes)
    return {
        key: _empty(CacheTensor(kind=caches[key].kind, shape=sizes[key], dtype=caches[key].dtype))
        if key in caches
        else np.zeros(sizes[key], np.float32)
        for key in wanted
    }


@dataclass(frozen=True)
class _Part:
    """The memory of a constant, of which a table has several rows."""

    name: str
    first: int
    size: int
    rows: int = 1


def _constants(constants: Mapping[Constant, Any]) -> Iterator[_Part]:
    for constant, packed in constants.items():
        yield from _parts(constant.name, packed)


def _parts(name: str, packed: Any) -> Iterator[_Part]:
    match packed:
        case Matrix():
            rows = -(-packed.outputs // TILE) * TILE
            yield _Part(name, packed.tiles.ctypes.data, packed.tiles.nbytes, rows)
        case Joined(parts=parts):
            for i, part in enumerate(parts):
                tiles = part.tiles
                yield _Part(f"{name}.{i}", tiles.ctypes.data, tiles.nbytes, part.outputs)
        case Experts():
            size = sum(matrix.tiles.nbytes for matrix in packed.matrices)
            yield _Part(name, packed.addresses.ctypes.data, size, len(packed.matrices))
        case FileRows():
            yield _Part(name, packed.addresses.ctypes.data, packed.nbytes, len(packed))
        case np.ndarray():
            yield _Part(name, packed.ctypes.data, packed.nbytes, len(packed) if packed.ndim else 1)


@dataclass(frozen=True)
class Listed:
    """An instruction; an address is None if null or in the arena, a float a double's bits."""

    operation: Operation
    fields: Mapping[str, Any]

    def addresses(self) -> Iterator[tuple[str, int]]:
        for name, value in self.fields.items():
            yield from _addresses(name, value)


class _Counter:
    def __init__(
        self,
        tally: Tally,
        sizes: CallSizes,
        constants: Sequence[_Part],
        caches: Mapping[str, NDArray[Any]],
        results: set[str],
    ) -> None:
        self.tally = tally
        self._sizes = sizes
        self._constants = {part.first: part for part in constants}
        self._caches = sorted((part.ctypes.data, name) for name, part in caches.items())
        self._arrays = caches
        self._results = results
        self._filled: set[str] = set()

    def count(self, instruction: Listed) -> None:
        found = [
            (field, self._constants[address])
            for field, address in instruction.addresses()
            if address in self._constants and field not in _TABLES
        ]
        operator = instruction.operation.name.lower()
        self.tally.operator(operator, (part.name for _, part in found))
        for field, part in found:
            share = _SHARES.get((instruction.operation, field), _whole)
            self.tally.weight(part.name, min(part.size, share(instruction.fields, part)))
        for field, address in instruction.addresses():
            if (name := self._cache_at(address)) is not None:
                self._count_cache(instruction, field, name, operator)

    def _cache_at(self, address: int) -> str | None:
        i = bisect_right(self._caches, (address, "~")) - 1
        if i < 0:
            return None
        first, name = self._caches[i]
        return name if address < first + max(1, self._arrays[name].nbytes) else None

    def _count_cache(self, instruction: Listed, field: str, name: str, by: str) -> None:
        array, fields = self._arrays[name], instruction.fields
        size = array.nbytes
        if name in self._results:
            if name not in self._filled:
                self._filled.add(name)
                self.tally.cache(name, by, size, written=size)
            return
        rows, heads, slots = array.shape[:3]
        line = rows * heads * size // array.size * array.shape[3] if array.size else 0
        sizes, read, written, copied = self._sizes, 0, 0, 0
        match instruction.operation:
            case Operation.SELF_ATTENTION if field.startswith("cross_"):
                read = fields["cross_positions"] * line
            case Operation.SELF_ATTENTION:
                read = min(slots, sizes.seen(fields["window"])) * line
                if fields["offsets"] is None:
                    written = min(slots, sizes.new) * line
            case Operation.LATENT_ATTENTION if fields["most"]:
                read = min(sizes.length, fields["most"] - 1) * line
                written = sizes.new * line if _writes(fields) else 0
            case Operation.LATENT_ATTENTION | Operation.EXPANDED_ATTENTION:
                read = sizes.length * line
                written = sizes.new * line if _writes(fields) else 0
            case Operation.SELECT_POSITIONS:
                read, written = sizes.length * line, sizes.new * line
            case Operation.SHORT_CONVOLUTION:
                read = sizes.seen(fields["length"]) * line
                written = min(slots, sizes.new) * line
            case Operation.CROSS_ATTENTION:
                read = fields["positions"] * line
            case Operation.REWRITE_STATES | Operation.GATED_RECURRENCE:
                read, written = size if sizes.length else 0, size
            case Operation.ELEMENTS | Operation.GATHER if field.startswith(_WRITTEN):
                written = _count(fields) * array.itemsize
            case Operation.ELEMENTS | Operation.GATHER:
                read = _count(fields) * array.itemsize
                copied, read = (read, 0) if read >= size else (0, read)
            case _:
                copied = size  # an instruction that was not made for caches
        self.tally.cache(name, by, size, read=read, written=written, copied=copied)


def _writes(fields: Mapping[str, Any]) -> bool:
    """Return whether there are new latents; the cache may be an earlier layer's."""
    return bool(fields["held"]["latent"]["stride"])


def _count(fields: Mapping[str, Any]) -> int:
    return prod(fields["sizes"])


def _whole(_: Mapping[str, Any], part: _Part) -> int:
    return part.size


def _chosen_experts(fields: Mapping[str, Any], part: _Part) -> int:
    """Return the bytes of the most experts that the tokens can choose."""
    chosen: int = min(part.rows, fields["tokens"] * fields["each"])
    return part.size // part.rows * chosen


def _looked_up(fields: Mapping[str, Any], part: _Part) -> int:
    count: int = fields["count"]
    return part.size // part.rows * count


_SHARES = {
    (Operation.EMBEDDING, "table.tiles"): _looked_up,
    (Operation.FILE_EMBEDDING, "rows"): _looked_up,
    (Operation.GATHER, "x"): lambda fields, _: _count(fields) * Dtype.F32.size,
    (Operation.MIXTURE, "gate_up.tiles"): _chosen_experts,
    (Operation.MIXTURE, "down.tiles"): _chosen_experts,
    (Operation.MIXTURE, "gate_up_bias"): _chosen_experts,
    (Operation.MIXTURE, "down_bias"): _chosen_experts,
}
"""How much of a constant an instruction reads, where that is not all of it."""


_ARRAYS = "Arrays"
_LISTS = {"Dims": 4, "Axes": 3}


def listed(plan: Plan) -> Iterator[Listed]:
    words: list[int] = plan.words.tolist()
    arena = set(plan.in_arena.tolist())
    first = 0
    while first < len(words):
        operation, count = Operation(words[first]), words[first + 1]
        reader = _Reader(words, first + 2, arena)
        fields = {name: reader.field(kind) for name, kind in SCHEMA.instructions[operation.name]}
        first += 2 + count
        if reader.at != first:
            raise AssertionError(f"{operation.name} has other words than instructions.def says")
        yield Listed(operation, fields)


class _Reader:
    def __init__(self, words: list[int], at: int, arena: set[int]) -> None:
        self.at = at
        self._words = words
        self._arena = arena

    def field(self, kind: str) -> Any:
        if kind in SCHEMA.structs:
            return {name: self.field(member) for name, member in SCHEMA.structs[kind]}
        if kind == _ARRAYS:
            return [self.field("Array") for _ in range(self._word())]
        if kind in _LISTS:
            return [self._word() for _ in range(_LISTS[kind])]
        if not kind.endswith("*"):
            return self._word()
        there = self.at not in self._arena
        address = self._word()
        return Place(address) if there and address != NOTHING else None

    def _word(self) -> int:
        self.at += 1
        return self._words[self.at - 1]


class Place(int):
    """An address range outside the arena."""


def _addresses(name: str, value: Any) -> Iterator[tuple[str, int]]:
    match value:
        case Place():
            yield name, value
        case Mapping():
            for member, part in value.items():
                yield from _addresses(f"{name}.{member}", part)
        case list():
            for part in value:
                yield from _addresses(name, part)
