"""Lists a model's weights: their types in the files and their formats in memory.

Formats in memory are read from the packed constants.
"""

import mmap
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.runtimes.native.library import Format
from kvcast.runtimes.native.plan_builder import Experts, Joined, Matrix
from kvcast.runtimes.native.weights import keeps
from kvcast.spec.program import Constant
from kvcast.spec.stored_matrices import Encoding, FileRows

PartsOf = Callable[[str], Sequence[StoredTensor]]
"""Return the tensors of the files that an array is made of, by its name."""

_MAPPED = "read from the file"
_FLOATS = {"float16": "F16", "float32": "F32"}


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Tensors with the same type in the files and the same format in memory.

    Attributes:
        stored: types of the tensors in the files; empty for computed tensors, and for bundles.
        kept: whether memory has the files' values or codes, without rounding.
        tensors: number of tensors under kvcast's names: query, key and value are one.

    """

    stored: str
    held: str
    kept: bool
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
    return Holding(
        stored=", ".join(types),
        held=held,
        kept=not formats or (len(own) == len(types) and keeps(own, formats)),
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


def _types(part: StoredTensor) -> Set[str]:
    return part.kinds or {_spelled(part.read())}


def _stored_bytes(part: StoredTensor) -> int:
    return part.nbytes or part.read().nbytes


def _held(packed: Any) -> tuple[str, int, set[Format]]:
    """Describe a packed constant; return its bytes in memory, and the formats of a matrix."""
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
    """Return the name of an array's type, as files call it."""
    dtype = str(array.dtype)
    return _FLOATS.get(dtype, dtype)


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)
