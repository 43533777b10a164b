"""The types that checkpoint readers share: lazily read tensors, checkpoints, readers."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import InputMissingError, InputOutputError, KvcastError
from kvcast.families.base import Family
from kvcast.families.table import family_with
from kvcast.spec.runtimes import OWN, BundlePrecision
from kvcast.spec.stored_matrices import FLOATS, CodedMatrix, Encoding, FileRows, joined_rows

# NumPy dtype of each kind; bfloat16, which NumPy lacks, is read as its bits.
_KINDS: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "int8": np.dtype("i1"),
    "int16": np.dtype("<i2"),
    "int32": np.dtype("<i4"),
}
_POINTER = b"version https://git-lfs.github.com/spec/"
_ENCODINGS: Mapping[str, Encoding] = {
    "float32": Encoding.F32,
    "float16": Encoding.F16,
    "bfloat16": Encoding.BF16,
}
_FLOATS = frozenset(kind.name for kind in FLOATS)


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor with a known shape, whose values are read on demand.

    `blocks` reads a matrix's codes of up to 8 bits, `rows` locates its rows in the file (codes with
    a scale for each output are none). `kinds` and `nbytes` are of the file's values, which `read`
    may widen; computed tensors have none.
    `problem`: why its values cannot be read; empty if they can.
    """

    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]
    problem: str = ""
    blocks: Callable[[], CodedMatrix] | None = None
    rows: Callable[[], FileRows] | None = None
    kinds: frozenset[str] = frozenset()
    nbytes: int = 0


def tensor_from_bytes(
    raw: NDArray[np.uint8], kind: str, shape: tuple[int, ...], label: str
) -> StoredTensor:
    """Little-endian values; raises InputOutputError, naming `label`, if their size does not fit."""
    dtype = _KINDS[kind]
    if raw.nbytes != math.prod(shape) * dtype.itemsize:
        raise InputOutputError(f"{label} is damaged: {raw.nbytes} bytes do not make {kind} {shape}")

    def read() -> NDArray[Any]:
        # Files do not align their tensors; torch and BLAS need aligned memory.
        values: NDArray[Any] = np.require(raw.view(dtype).reshape(shape), requirements="A")
        if kind == "bfloat16":
            # bfloat16 is the upper half of a float32, so widening is exact.
            return np.left_shift(values.astype(np.uint32), np.uint32(16)).view(np.float32)
        return values

    def rows() -> FileRows:
        return FileRows.of(raw, math.prod(shape[:-1]), shape[-1], _ENCODINGS[kind])

    is_matrix = kind in _ENCODINGS and len(shape) > 1
    return StoredTensor(
        shape=shape,
        read=read,
        rows=rows if is_matrix else None,
        kinds=frozenset({_ENCODINGS[kind].name if kind in _ENCODINGS else kind}),
        nbytes=raw.nbytes,
    )


def one_by_one(stacked: StoredTensor) -> list[StoredTensor]:
    """Return the tensors along the first axis of a file's, each of which is read alone."""
    count, *rest = stacked.shape
    shape = tuple(rest)
    if stacked.rows is None:
        return [
            replace(
                stacked,
                shape=shape,
                read=partial(lambda number: stacked.read()[number], number),
                nbytes=stacked.nbytes // count,
            )
            for number in range(count)
        ]
    (raw,) = stacked.rows().owners
    (kind,) = (kind for kind, encoding in _ENCODINGS.items() if encoding.name in stacked.kinds)
    return [tensor_from_bytes(part, kind, shape, "a part") for part in np.split(raw, count)]


class LazyTensors(Mapping[str, NDArray[Any]]):
    """Maps canonical names to arrays, which are read on every lookup and not kept.

    Arrays may be read-only views of a mapped file. `unused`: names of tensors outside the model.
    """

    def __init__(
        self, parts: Mapping[str, Sequence[StoredTensor]], unused: Sequence[str] = ()
    ) -> None:
        self._parts = dict(parts)
        self.unused = tuple(unused)

    def __getitem__(self, name: str) -> NDArray[Any]:
        arrays = [part.read() for part in self._parts[name]]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def only(self, names: Iterable[str]) -> Self:
        return type(self)({name: self._parts[name] for name in names})

    def beside(self, unused: Sequence[str]) -> Self:
        return type(self)(self._parts, unused)

    def parts_of(self, name: str) -> Sequence[StoredTensor]:
        return self._parts.get(name, ())

    def has_codes(self) -> bool:
        parts = (part for parts in self._parts.values() for part in parts)
        return any(part.rows is not None and part.kinds - _FLOATS for part in parts)

    def blocks_of(self, name: str) -> CodedMatrix | None:
        """Return a matrix's own codes; None if the file has none."""
        parts = self._parts.get(name, ())
        read = parts[0].blocks if len(parts) == 1 else None
        return None if read is None else read()

    def rows_of(self, name: str) -> FileRows | None:
        """Return the location of a matrix's rows; None if files do not have them unchanged."""
        parts = self._parts.get(name, ())
        reads = [part.rows for part in parts if part.rows is not None]
        return (
            joined_rows([read() for read in reads]) if reads and len(reads) == len(parts) else None
        )


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    dimensions: Any
    tensors: LazyTensors  # canonical name to float16 or float32 array, as the family lists them
    text: Mapping[str, bytes]  # the tokenizer's files by name, which bundles contain unchanged
    source: str
    # any of `suppress_tokens`, `begin_suppress_tokens`, `language_tokens` (lists of ids) and
    # `alignment_heads` (list of [layer, head]) that the files specify
    generation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> Family:
        return family_with(self.dimensions)

    def resolve_precision(self, precision: BundlePrecision) -> BundlePrecision:
        """Resolve a precision for these files: int8 if `OWN` finds no codes to keep."""
        keeps = precision.quantize != OWN or self.tensors.has_codes()
        return precision if keeps else replace(precision, quantize="int8")


@dataclass(frozen=True, kw_only=True)
class CheckpointReader:
    """One format. `files` lists everything that `read` depends on, so their hash identifies it.

    It raises InputMissingError if a file is missing. `types`: model types by their family's class
    of dimensions. `adapter_layout`: of adapters that `read` merges; None: none.
    """

    name: str
    detect: Callable[[Path], bool]
    files: Callable[[Path], Sequence[Path]]
    read: Callable[..., Checkpoint]
    types: Mapping[type[Any], Sequence[str]]
    adapter_layout: str | None = None


def require_file(path: Path, advice: str) -> Path:
    """InputMissingError, ending in `advice`, for a missing file."""
    if not path.is_file():
        raise InputMissingError(f"no {path.name} in {path.parent}: {advice}")
    return path


def unreadable_tensor(shape: tuple[int, ...], problem: str) -> StoredTensor:
    """Return a tensor whose first use raises KvcastError."""

    def read() -> NDArray[Any]:
        raise KvcastError(problem)

    return StoredTensor(shape=shape, read=read, problem=problem)


def read_file(path: Path) -> bytes:
    content = path.read_bytes()
    _refuse_pointer(path, content[: len(_POINTER)])
    return content


def _refuse_pointer(path: Path, beginning: bytes) -> None:
    if beginning == _POINTER:
        raise InputOutputError(
            f"{path} is a Git LFS pointer, not the file itself: run git lfs pull in its repository"
        )


def map_file(path: Path) -> NDArray[np.uint8]:
    if path.stat().st_size == 0:
        raise InputOutputError(f"{path} is empty: fetch it again")
    content = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    _refuse_pointer(path, content[: len(_POINTER)].tobytes())
    return content


def read_json(path: Path) -> Any:
    """InputOutputError for a file that contains anything else."""
    try:
        return json.loads(read_file(path))
    except (ValueError, RecursionError):
        raise InputOutputError(f"{path} is not valid JSON: fetch it again") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """InputOutputError for a file that contains anything else."""
    fields = read_json(path)
    if not isinstance(fields, dict):
        raise InputOutputError(f"{path} is not a JSON object: fetch it again")
    return fields


def generation_settings(
    fields: Mapping[str, Any], names: Mapping[str, str], label: str
) -> dict[str, Any]:
    """Pick settings, by the names in the file; InputOutputError for other than ids or int pairs."""
    settings = {}
    for canonical, name in names.items():
        value = fields.get(name)
        if value is None:
            continue
        if not _is_list_of_integers(value):
            raise InputOutputError(f"{label} is damaged: {name} is not a list of whole numbers")
        settings[canonical] = value
    return settings


def _is_list_of_integers(value: object) -> bool:
    """Integers, or pairs of integers."""
    if not isinstance(value, list):
        return False
    pairs = [item for item in value if isinstance(item, list) and len(item) == 2]
    flat = [number for pair in pairs for number in pair] if pairs else value
    return len(pairs) in (0, len(value)) and all(type(number) is int for number in flat)
