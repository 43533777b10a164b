"""Lists a model's weights: how its files hold them, and what of them lies in memory.

What is in memory is read from what was packed. Knows no program's meaning.
"""

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvcast.checkpoints.base import StoredTensor
from kvcast.runtimes.native.building import Experts, Joined, Matrix
from kvcast.spec.file_rows import FileRows
from kvcast.spec.program import Constant

PartsOf = Callable[[str], Sequence[StoredTensor]]
"""Return the tensors of the files that an array is made of, by its name."""

_MAPPED = "read from the file"
_FLOATS = {"float16": "F16", "float32": "F32"}


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Tensors that the files hold alike, and that memory holds alike.

    Attributes:
        stored: types of the tensors in the files; empty for what is computed, and for bundles.
        held: how they lie in memory.
        tensors: how many the files have.
        stored_bytes: their bytes in the files.
        held_bytes: their bytes in memory.

    """

    stored: str
    held: str
    tensors: int
    stored_bytes: int
    held_bytes: int


def inventory(constants: Mapping[Constant, Any], parts_of: PartsOf) -> list[Holding]:
    """List what a program's packed constants were made of, the largest in memory first."""
    holdings: dict[tuple[str, str], Holding] = {}
    for constant, packed in constants.items():
        holding = _holding(constant, packed, parts_of)
        key = holding.stored, holding.held
        holdings[key] = _sum(holdings[key], holding) if key in holdings else holding
    return sorted(holdings.values(), key=lambda holding: -holding.held_bytes)


def _holding(constant: Constant, packed: Any, parts_of: PartsOf) -> Holding:
    parts = parts_of(constant.name)
    biases = () if constant.bias is None else parts_of(constant.bias)
    types = dict.fromkeys(name for part in parts for name in _types(part))
    held, held_bytes = _held(packed)
    return Holding(
        stored=", ".join(sorted(types)),
        held=held,
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


def _types(part: StoredTensor) -> list[str]:
    if part.rows is not None:
        return [encoding.name for encoding in part.rows().kinds()]
    dtype = str(part.read().dtype)
    return [_FLOATS.get(dtype, dtype)]


def _stored_bytes(part: StoredTensor) -> int:
    return part.rows().nbytes if part.rows is not None else part.read().nbytes


def _held(packed: Any) -> tuple[str, int]:
    """Describe a packed constant, and return its bytes in memory."""
    if isinstance(packed, Matrix):
        return packed.format.name.replace("_", " "), packed.tiles.nbytes
    if isinstance(packed, Joined):
        parts = [_held(matrix) for matrix in packed.parts]
        names = dict.fromkeys(name for name, _ in parts)
        return " and ".join(names), sum(size for _, size in parts)
    if isinstance(packed, Experts):
        parts = [_held(matrix) for matrix in packed.matrices]
        return parts[0][0], sum(size for _, size in parts)
    if isinstance(packed, FileRows):
        size = sum(0 if _is_mapped(owner) else owner.nbytes for owner in packed.owners)
        return ("F32", size) if size else (_MAPPED, 0)
    if _is_mapped(packed):
        return _MAPPED, 0
    dtype = str(packed.dtype)
    return _FLOATS.get(dtype, dtype), packed.nbytes


def _is_mapped(array: Any) -> bool:
    """Tell whether an array's memory is a file's."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)
