"""The constants of programs, packed for a machine: from a bundle's file, or from a checkpoint.

A bundle has matrices as exported: codes and scales, or floats. A checkpoint's are read in place
from its mapped files, one by one, by the kernels that pack them: a file's codes are kept if a
kernel supports them, and other values are quantized. `inventory` lists types in files and memory.
"""

import mmap
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.runtimes.native.library import Format, Machine
from kvcast.runtimes.native.matrices import (
    CODES,
    LEAST,
    SCALES,
    Kind,
    coded_tensors,
    kinds_by,
    packed_experts,
    packed_matrix,
    roles_of,
)
from kvcast.runtimes.native.opcodes import SCHEMA, check_members
from kvcast.runtimes.native.plan_builder import Experts, Joined, Matrix
from kvcast.spec.program import Constant, Program
from kvcast.spec.runtimes import OWN, BundlePrecision, OnPhase, ignore_phase
from kvcast.spec.stored_matrices import (
    BLOCK,
    FLOATS,
    FOUR_BITS,
    BlocksOf,
    CodedMatrix,
    Encoding,
    FileRows,
    RowsOf,
    no_blocks,
)

if TYPE_CHECKING:
    from kvcast.checkpoints.base import StoredTensor

check_members(Encoding, SCHEMA.enums["Encoding"])


class Weights(Protocol):
    """A model's constants by name, each computed on access and not cached."""

    def matrix(self, machine: Machine, constant: Constant) -> Matrix | Joined:
        """Pack a matrix with its bias."""

    def convolution(self, machine: Machine, constant: Constant) -> Matrix:
        """Pack a matrix [outputs, size * channels], channels innermost, with its bias."""

    def experts(self, machine: Machine, constant: Constant) -> Experts:
        """Pack a matrix for each expert."""

    def table(self, constant: Constant) -> Any:
        """Return a table whose rows are looked up but never multiplied."""

    def array(self, name: str) -> NDArray[Any]:
        """Return a constant that is not packed."""


_MAKERS: Mapping[str, Callable[[Weights, Machine, Constant], Any]] = {
    # In this order: a table that is multiplied with is a matrix.
    "embedding": lambda weights, _, constant: weights.table(constant),
    "linear": lambda weights, machine, constant: weights.matrix(machine, constant),
    "conv1d": lambda weights, machine, constant: weights.convolution(machine, constant),
    "conv2d": lambda weights, machine, constant: weights.convolution(machine, constant),
    "mixture_of_experts": lambda weights, machine, constant: weights.experts(machine, constant),
    "latent_attention": lambda weights, machine, constant: weights.experts(machine, constant),
}
"""How the constants of an operation are made."""


def packed_constants(
    machine: Machine,
    programs: Sequence[Program],
    weights: Weights,
    on_phase: OnPhase = ignore_phase,
) -> dict[Constant, Any]:
    makers = {
        name: make
        for operation, make in _MAKERS.items()
        for program in programs
        for name in program.matrices(operation)
    }
    constants = dict.fromkeys(c for program in programs for c in program.constants())
    packed = {}
    for number, constant in enumerate(constants, 1):
        on_phase(f"packing {number} of {len(constants)} tensors")
        make = makers.get(constant.name)
        packed[constant] = (
            weights.array(constant.name) if make is None else make(weights, machine, constant)
        )
    return packed


class BundleWeights(Weights):
    """The tensors of a bundle's mapped file; `rows_of` locates a (large) table's rows in it."""

    def __init__(self, path: Path, rows_of: RowsOf = lambda _: None) -> None:
        from safetensors import safe_open

        self._rows_of = rows_of
        self._file = safe_open(path, framework="numpy")
        self._names = set(self._file.keys())  # type: ignore[no-untyped-call]

    @override
    def array(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(f"no {name}")
        array: NDArray[Any] = self._file.get_tensor(name)  # type: ignore[no-untyped-call]
        return array

    @override
    def matrix(self, machine: Machine, constant: Constant) -> Matrix:
        return packed_matrix(machine, self._parts(constant), constant.name, constant.bias)

    @override
    def convolution(self, machine: Machine, constant: Constant) -> Matrix:
        return self.matrix(machine, constant)

    @override
    def experts(self, machine: Machine, constant: Constant) -> Experts:
        return packed_experts(machine, self._parts(constant), constant.name)

    @override
    def table(self, constant: Constant) -> FileRows | NDArray[Any]:
        rows = self._rows_of(constant.name)
        return self.array(constant.name) if rows is None else rows

    def _parts(self, constant: Constant) -> dict[str, NDArray[Any]]:
        names = [constant.name + part for part in ("", CODES, SCALES, LEAST)]
        names += [] if constant.bias is None else [constant.bias]
        return {name: self.array(name) for name in names if name in self._names}


class CheckpointWeights(Weights):
    def __init__(
        self,
        programs: Mapping[str, Program],
        tensors: Mapping[str, NDArray[Any]],
        shapes: Mapping[str, tuple[int, ...]],
        rows_of: RowsOf,
        constants: Mapping[str, NDArray[Any]],
        precision: BundlePrecision,
        blocks_of: BlocksOf = no_blocks,
    ) -> None:
        self._tensors = tensors
        self._shapes = shapes
        self._rows_of = rows_of
        self._blocks_of = blocks_of
        self._constants = constants
        self._own = precision.quantize == OWN
        roles = {name: roles_of(program) for name, program in programs.items()}
        self._kinds = kinds_by(roles, precision)

    @override
    def array(self, name: str) -> NDArray[Any]:
        if name in self._constants:
            return self._constants[name]
        return np.ascontiguousarray(self._tensors[name], np.float32)

    @override
    def matrix(self, machine: Machine, constant: Constant) -> Matrix | Joined:
        if (coded := self._coded(constant.name)) is not None:
            tensors = coded_tensors(constant.name, coded)
            if constant.bias is not None:
                tensors[constant.bias] = self.array(constant.bias)
            return packed_matrix(machine, tensors, constant.name, constant.bias)
        rows = self._rows(constant.name)
        if not self._own or rows.kinds() <= FLOATS:
            return self._packed(machine, constant, rows)
        bias = None if constant.bias is None else self.array(constant.bias)
        parts = [
            self._tiles(
                machine,
                self._format(constant.name, rows.part(run)),
                rows.part(run),
                None if bias is None else bias[run],
            )
            for run in rows.runs()
        ]
        return parts[0] if len(parts) == 1 else Joined(parts)

    @override
    def convolution(self, machine: Machine, constant: Constant) -> Matrix:
        windows = np.moveaxis(self._tensors[constant.name], 1, -1)
        rows = FileRows.of_floats(windows.reshape(len(windows), -1))
        return self._packed(machine, constant, rows)

    @override
    def experts(self, machine: Machine, constant: Constant) -> Experts:
        derived = self._constants.get(constant.name)
        shape = self._shapes[constant.name] if derived is None else derived.shape
        rows, (count, each, _) = self._rows(constant.name), shape
        parts = [rows.part(slice(i * each, (i + 1) * each)) for i in range(count)]
        format_ = self._format(constant.name, rows)
        return Experts.of([self._tiles(machine, format_, part, None) for part in parts])

    @override
    def table(self, constant: Constant) -> FileRows:
        rows = self._rows(constant.name)
        return rows if rows.factors is None else FileRows.of_floats(self._tensors[constant.name])

    def _coded(self, name: str) -> CodedMatrix | None:
        """Return a matrix's codes, if they are to be kept and are no rows of a file."""
        if self._kinds.get(name, Kind.EXACT) is Kind.EXACT or self._rows_of(name) is not None:
            return None
        return self._blocks_of(name)

    def _rows(self, name: str) -> FileRows:
        rows = self._rows_of(name)
        if rows is not None:
            return rows
        array = self._constants[name] if name in self._constants else self._tensors[name]
        return FileRows.of_floats(array.reshape(prod(array.shape[:-1]), array.shape[-1]))

    def _packed(self, machine: Machine, constant: Constant, rows: FileRows) -> Matrix:
        bias = None if constant.bias is None else self.array(constant.bias)
        return self._tiles(machine, self._format(constant.name, rows), rows, bias)

    def _tiles(
        self, machine: Machine, format_: Format, rows: FileRows, bias: NDArray[np.float32] | None
    ) -> Matrix:
        tiles = machine.pack_rows(format_, rows, bias, own=self._own)
        rows.release()
        return Matrix(format_, len(rows), rows.width, tiles)

    def _format(self, name: str, rows: FileRows) -> Format:
        kind = self._kinds.get(name, Kind.EXACT)
        return format_of(kind, rows.kinds(), rows.width, own=self._own)


_OWN_FORMATS: Mapping[Encoding, Format] = {
    **{Encoding.Q4_0: Format.INT4_TABLE, Encoding.IQ4_NL: Format.INT4_TABLE},
    **{Encoding.MXFP4: Format.INT4_TABLE, Encoding.Q4_1: Format.INT4_MIN},
    **{Encoding.Q5_0: Format.INT6_BLOCK, Encoding.Q8_0: Format.INT8_BLOCK},
    **{Encoding.TQ1_0: Format.INT4_TABLE, Encoding.TQ2_0: Format.INT4_TABLE},
    **{Encoding.NVFP4: Format.INT4_TABLE_FINE, Encoding.Q4_K: Format.INT4_LARGE},
    **dict.fromkeys((Encoding.IQ1_S, Encoding.IQ1_M), Format.INT4_TABLE_LARGE),
    **dict.fromkeys((Encoding.IQ2_XXS, Encoding.IQ2_XS, Encoding.IQ2_S), Format.INT4_TABLE_LARGE),
    **dict.fromkeys((Encoding.IQ3_XXS, Encoding.IQ3_S, Encoding.IQ4_XS), Format.INT4_TABLE_LARGE),
    **{Encoding.Q3_K: Format.INT6_LARGE, Encoding.Q6_K: Format.INT6_LARGE},
    **{Encoding.Q2_K: Format.INT8_LARGE_MIN, Encoding.Q5_K: Format.INT6_LARGE_MIN},
    **{Encoding.INT4_ZERO_POINT: Format.INT4_ZERO_POINT, Encoding.NF4: Format.INT4_TABLE},
    Encoding.F8_E4M3: Format.INT8_BLOCK,
}
"""The formats that hold encodings' own codes."""

_ROUNDED = frozenset({Encoding.NF4, Encoding.F8_E4M3})
"""Encodings whose numbers that format rounds to int8."""


def format_of(kind: Kind, encodings: Set[Encoding], width: int, *, own: bool = False) -> Format:
    """Choose the format of a matrix from the encodings of its rows.

    With `own`, a file's codes are kept in any format that holds them. Otherwise 8-bit codes are
    always kept, and 4-bit codes in a 4-bit matrix. Others become int8 in blocks.
    """
    if kind is Kind.EXACT:
        return Format.F32
    if own and len(encodings) == 1 and not encodings.isdisjoint(_OWN_FORMATS):
        return _OWN_FORMATS[min(encodings)]
    if width % BLOCK:
        return Format.INT8
    if kind in (Kind.INT4, Kind.TABLE) and encodings <= FOUR_BITS:
        return Format.INT4_MIN
    if kind is Kind.INT4 and encodings <= FLOATS:
        return Format.INT4_MIN
    if kind is Kind.INT8 and encodings <= FLOATS | FOUR_BITS:
        return Format.INT8
    return Format.INT8_BLOCK


def keeps(encodings: Set[Encoding], formats: Set[Format]) -> bool:
    if formats == {Format.F32}:
        return True
    return encodings.isdisjoint(_ROUNDED) and all(
        _OWN_FORMATS.get(kind) in formats for kind in encodings
    )


PartsOf: TypeAlias = "Callable[[str], Sequence[StoredTensor]]"
"""Return the tensors of the files that an array is made of, by its name."""

_MAPPED = "read from the file"
_FLOATS = {"float16": "F16", "float32": "F32"}


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Tensors with the same type in the files and the same format in memory."""

    stored: str  # types in the files; empty for computed tensors, and for bundles
    held: str
    kept: bool  # memory has the files' values or codes, without rounding
    tensors: int
    stored_bytes: int
    held_bytes: int


def inventory(constants: Mapping[Constant, Any], parts_of: PartsOf) -> list[Holding]:
    """List the sources of a program's packed constants, largest in memory first."""
    holdings: dict[tuple[str, str], Holding] = {}
    for constant, packed in constants.items():
        holding = _holding(constant, packed, parts_of)
        key = holding.stored, holding.held
        holdings[key] = _sum(holdings[key], holding) if key in holdings else holding
    return sorted(holdings.values(), key=lambda holding: -holding.held_bytes)


def _holding(constant: Constant, packed: Any, parts_of: PartsOf) -> Holding:
    parts = parts_of(constant.name)
    biases = () if constant.bias is None else parts_of(constant.bias)
    types = sorted({name for part in parts for name in _types(part)})
    held, held_bytes, formats = _held(packed)
    own = {Encoding[name] for name in types if name in Encoding.__members__}
    has_scales_of_outputs = all(part.blocks and not part.rows for part in parts)
    return Holding(
        stored=", ".join(types),
        held=held,
        kept=not formats
        or (len(own) == len(types) and keeps(own, formats))
        or (has_scales_of_outputs and formats == {Format.INT8}),
        tensors=len(parts) + len(biases),
        stored_bytes=sum(map(_stored_bytes, (*parts, *biases))),
        held_bytes=held_bytes,
    )


def _sum(left: Holding, right: Holding) -> Holding:
    return replace(
        left,
        tensors=left.tensors + right.tensors,
        stored_bytes=left.stored_bytes + right.stored_bytes,
        held_bytes=left.held_bytes + right.held_bytes,
    )


def _types(part: "StoredTensor") -> Set[str]:
    return part.kinds or {_spelled(part.read())}


def _stored_bytes(part: "StoredTensor") -> int:
    return part.nbytes or part.read().nbytes


def _held(packed: Any) -> tuple[str, int, set[Format]]:
    matrices: Sequence[Matrix] = ()
    match packed:
        case Matrix():
            matrices = [packed]
        case Joined(parts=parts) | Experts(matrices=parts):
            matrices = parts
        case FileRows():
            size = sum(0 if _is_mapped(owner) else owner.nbytes for owner in packed.owners)
            return ("F32" if size else _MAPPED), size, set()
    if not matrices:
        return (
            (_MAPPED, 0, set()) if _is_mapped(packed) else (_spelled(packed), packed.nbytes, set())
        )
    formats = dict.fromkeys(matrix.format for matrix in matrices)
    names = " and ".join(format_.name.replace("_", " ") for format_ in formats)
    return names, sum(matrix.tiles.nbytes for matrix in matrices), set(formats)


def _spelled(array: NDArray[Any]) -> str:
    dtype = str(array.dtype)
    return _FLOATS.get(dtype, dtype)


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)
