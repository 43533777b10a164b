"""Builds the instructions of one call, and lays out its memory.

Sizes and outer addresses are known. Storages without an address are laid out in an arena once all
instructions are emitted; storages that are not live at the same time share memory.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native.library import Format, rounded_bytes
from kvcast.runtimes.native.opcodes import (
    LAYOUTS,
    STRUCTS,
    Address,
    Dtype,
    Element,
    Instruction,
    Operation,
    Storage,
    Word,
    Words,
    bits,
    padded,
)
from kvcast.runtimes.native.values import NOTHING, Lines, Value, lines_of

_DIMS = 4
_ALIGNMENT = 64


@dataclass(frozen=True)
class Matrix:
    format: Format
    outputs: int
    inputs: int
    tiles: NDArray[np.uint8]

    @property
    def words(self) -> list[Word]:
        return STRUCTS["Matrix"].words(
            format=int(self.format),
            outputs=self.outputs,
            inputs=self.inputs,
            tiles=self.tiles.ctypes.data,
        )


@dataclass(frozen=True)
class Joined:
    """Matrices of the same inputs whose outputs are concatenated, in several formats."""

    parts: Sequence[Matrix]

    @property
    def outputs(self) -> int:
        return sum(part.outputs for part in self.parts)

    @property
    def inputs(self) -> int:
        return self.parts[0].inputs


@dataclass(frozen=True)
class Experts:
    """Matrices of one format and shape, of which a token uses a few."""

    matrices: Sequence[Matrix]
    addresses: NDArray[np.int64]

    @classmethod
    def of(cls, matrices: Sequence[Matrix]) -> Self:
        """Join matrices; raises ValueError if formats or shapes differ."""
        if len({(matrix.format, matrix.outputs, matrix.inputs) for matrix in matrices}) != 1:
            raise ValueError("an expert does not fit the others")
        addresses = [matrix.tiles.ctypes.data for matrix in matrices]
        return cls(matrices, np.array(addresses, np.int64))

    @property
    def words(self) -> list[Word]:
        first = self.matrices[0]
        return STRUCTS["Stack"].words(
            format=int(first.format),
            outputs=first.outputs,
            inputs=first.inputs,
            tiles=self.addresses.ctypes.data,
        )


@dataclass(frozen=True)
class Plan:
    words: NDArray[np.int64]  # addresses in the arena are relative to 0 until a call relocates them
    in_arena: NDArray[np.int64]
    arena: int
    # addresses of the call's arrays, and the words that hold them
    arguments: Sequence[tuple[int, NDArray[np.int64]]]
    kept: Sequence[Any]  # other arrays that the plan keeps alive

    def of(self, arrays: Sequence[NDArray[Any]]) -> "Plan":
        """Return the plan of the same call with other arrays of equal sizes and strides."""
        words, arguments = self.words.copy(), []
        for (address, places), array in zip(self.arguments, arrays, strict=True):
            words[places] += array.ctypes.data - address
            arguments.append((array.ctypes.data, places))
        return replace(self, words=words, arguments=arguments, kept=(*self.kept, *arrays))


@dataclass
class _Result:
    """An instruction that can return its result as int8, too, or only."""

    instruction: Instruction
    rows: int
    width: int


@dataclass
class Builder:
    """Instructions so far; `exact`: encoder attention in fp32; `prompt`: prefill self-attention."""

    exact: bool = True
    prompt: bool = False
    instructions: list[Instruction] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    _arguments: list[Storage] = field(default_factory=list)
    _lies_in: dict[Storage, Storage] = field(default_factory=dict)
    _rounded: dict[tuple[Storage, int, int, int, int], Storage] = field(default_factory=dict)
    _results: dict[Storage, _Result] = field(default_factory=dict)

    def emit(self, code: Operation, /, **fields: Words) -> None:
        self.instructions.append(Instruction(code, LAYOUTS[code].words(**fields)))

    def outer(self, array: NDArray[Any]) -> Value:
        self.kept.append(array)
        return Value.of(array)

    def argument(self, array: NDArray[Any]) -> Value:
        """Return an array of the call as a value; see `Plan.of`."""
        value = Value.of(array)
        self._arguments.append(value.storage)
        return value

    def place_in(self, storage: Storage, wanted: Storage) -> None:
        """Place a storage of the arena in an argument's memory instead."""
        storage.address = wanted.address
        self._lies_in[storage] = wanted

    def may_be_rounded(self, value: Value, rows: int, width: int) -> None:
        """Record that the last instruction can return its result [rows, width] as int8, too."""
        self._results[value.storage] = _Result(self.instructions[-1], rows, width)

    def rounded(self, lines: Lines) -> Word:
        storage, offset = lines.value.storage, lines.value.offset
        key = (storage, offset, lines.rows, lines.width, lines.stride)
        if key not in self._rounded:
            to = self._rounded[key] = Storage(rounded_bytes(lines.rows, lines.width))
            result = self._results.get(storage)
            alike = result is not None and (result.rows, result.width) == key[2:4]
            if result is not None and alike and lines.value.fills_storage:
                result.instruction.replace("rounded_out", Address(to))
            else:
                self.emit(
                    Operation.ROUND,
                    x=lines.value.address,
                    stride=lines.stride,
                    rows=lines.rows,
                    width=lines.width,
                    rounded_out=Address(to),
                )
        return Address(self._rounded[key])

    def lines(self, value: Value) -> Lines:
        """Return a value as lines of floats, copied if need be."""
        if value.dtype == Dtype.F32 and (lines := lines_of(value)) is not None:
            return lines
        copied = lines_of(self.copied(value, Dtype.F32))
        if copied is None:
            raise AssertionError("a contiguous value is made of lines")
        return copied

    def flattened(self, value: Value, first: int, last: int) -> Value:
        joined = value.flattened(first, last)
        if joined is None:
            joined = self.copied(value, value.dtype).flattened(first, last)
        if joined is None:
            raise AssertionError("a contiguous value can be flattened")
        return joined

    def copied(self, value: Value, dtype: Dtype) -> Value:
        out = Value.fresh(value.sizes, dtype)
        self.elements(Element.COPY, out, value)
        return out

    def contiguous(self, value: Value, dtype: Dtype) -> Value:
        if value.is_contiguous and dtype == value.dtype:
            return value
        return self.copied(value, dtype)

    def elements(self, operation: Element, out: Value, *inputs: Value) -> None:
        """Compute `out` elementwise; inputs are broadcast."""
        repeated = [out.strides, *(value.broadcast(out.sizes) for value in inputs)]
        sizes, strides = _joined(out.sizes, repeated)
        if len(sizes) > _DIMS:
            raise ValueError(f"an elementwise operation over {len(sizes)} axes")
        first, *others = [
            _array(value, steps) for value, steps in zip((out, *inputs), strides, strict=True)
        ]
        self.emit(
            Operation.ELEMENTS,
            operation=int(operation),
            sizes=padded(sizes, _DIMS, 1),
            out=first,
            inputs=[len(others), *itertools.chain.from_iterable(others)],
        )

    def plan(self) -> Plan:
        self._drop_unread_floats()
        places, size = _laid_out(self.instructions)
        words: list[int] = []
        in_arena: list[int] = []
        of_arguments: dict[Storage, list[int]] = {storage: [] for storage in self._arguments}
        for instruction in self.instructions:
            words += [int(instruction.operation), len(instruction.words)]
            for word in instruction.words:
                if isinstance(word, int):
                    words.append(word)
                elif isinstance(word, float):
                    words.append(bits(word))
                elif word.storage.address is not None:
                    storage = self._lies_in.get(word.storage, word.storage)
                    of_arguments.get(storage, []).append(len(words))
                    words.append(word.storage.address + word.offset)
                else:
                    in_arena.append(len(words))
                    words.append(places[word.storage] + word.offset)
        return Plan(
            words=np.array(words, np.int64),
            in_arena=np.array(in_arena, np.int64),
            arena=size,
            arguments=[
                (storage.address or NOTHING, np.array(of_arguments[storage], np.int64))
                for storage in self._arguments
            ],
            kept=tuple(self.kept),
        )

    def _drop_unread_floats(self) -> None:
        readers: dict[Storage, int] = {}
        for instruction in self.instructions:
            for storage in instruction.storages():
                readers[storage] = readers.get(storage, 0) + 1
        for storage, result in self._results.items():
            is_rounded = result.instruction.word("rounded_out") != NOTHING
            if is_rounded and readers.get(storage) == 1 and storage.address is None:
                result.instruction.replace("out", NOTHING)


def _array(value: Value, strides: Sequence[int]) -> list[Word]:
    steps = padded(strides, _DIMS, 0)
    return STRUCTS["Array"].words(data=value.address, dtype=int(value.dtype), strides=steps)


def _joined(
    sizes: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    kept_sizes: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(sizes):
        if size == 1:
            continue
        steps = [each[axis] for each in strides]
        if kept_sizes and all(
            before[-1] == step * size for before, step in zip(kept, steps, strict=True)
        ):
            kept_sizes[-1] *= size
            for before, step in zip(kept, steps, strict=True):
                before[-1] = step
        else:
            kept_sizes.append(size)
            for before, step in zip(kept, steps, strict=True):
                before.append(step)
    return kept_sizes, kept


def _laid_out(instructions: Sequence[Instruction]) -> tuple[dict[Storage, int], int]:
    """Place every storage without an address in the arena; return places and total bytes."""
    last: dict[Storage, int] = {}
    in_arena = [
        [storage for storage in instruction.storages() if storage.address is None]
        for instruction in instructions
    ]
    for i, storages in enumerate(in_arena):
        for storage in storages:
            last[storage] = i
    places: dict[Storage, int] = {}
    free: list[tuple[int, int]] = []  # first and end
    end = 0
    ending: dict[int, list[Storage]] = {}
    for storage, i in last.items():
        ending.setdefault(i, []).append(storage)
    for i, storages in enumerate(in_arena):
        for storage in storages:
            if storage in places:
                continue
            size = -(-max(storage.size, 1) // _ALIGNMENT) * _ALIGNMENT
            fitting = [gap for gap in free if gap[1] - gap[0] >= size]
            if fitting:
                first, stop = min(fitting, key=lambda gap: gap[1] - gap[0])
                free.remove((first, stop))
                if stop - first > size:
                    free.append((first + size, stop))
                places[storage] = first
            else:
                places[storage] = end
                end += size
        for storage in ending.get(i, ()):
            size = -(-max(storage.size, 1) // _ALIGNMENT) * _ALIGNMENT
            free = _freed(free, places[storage], places[storage] + size)
    return places, end


def _freed(free: list[tuple[int, int]], first: int, stop: int) -> list[tuple[int, int]]:
    joined = []
    for gap in free:
        if gap[1] == first:
            first = gap[0]
        elif gap[0] == stop:
            stop = gap[1]
        else:
            joined.append(gap)
    return [*joined, (first, stop)]
