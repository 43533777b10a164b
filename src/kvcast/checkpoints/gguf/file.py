"""Parses the container of GGUF files: a header of named values, then tensors, mostly quantized.

The layout, little-endian, from ggml's docs/gguf.md; a string is a u64 length, then bytes:

    "GGUF", u32 version (2 or 3), u64 number of tensors, u64 number of values
    each value: string name, u32 type, then itself; an array: u32 type, u64 count, its items
    each tensor: string name, u32 rank, u64 x rank axes (fastest first), u32 type, u64 offset
    padding to the alignment, where offsets start

The gguf library's reader is not used because it trusts the header's counts and lengths, and makes
several arrays for each token of a vocabulary. Here, they are checked against the file before
anything is allocated. `dequantize.py` reads arrays, `reader.py` models; kernels read rows in place.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor, tensor_from_bytes
from kvcast.checkpoints.cursor import FileCursor
from kvcast.checkpoints.gguf.dequantize import dequantize, read_blocks
from kvcast.errors import InputOutputError, KvcastError
from kvcast.spec.stored_matrices import (
    BLOCKS,
    PREQUANTIZED,
    CodedMatrix,
    Encoding,
    FileRows,
    rounded,
)

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SPLIT, _SPLIT_NUMBER, _SPLIT_TENSORS = "split.count", "split.no", "split.tensors.count"
_MAX_RANK = 4
_MATRIX = 2
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS: Mapping[int, str] = {
    **{0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "?"},
    **{10: "<u8", 11: "<i8", 12: "<f8"},
}
# A value: an empty name, its type, one byte. A tensor: an empty name, no axes, type, offset.
_SMALLEST_VALUE = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 4 + 8
_KINDS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# ggml's other types, which are not read.
_OTHERS: Mapping[int, str] = {
    **{9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 41: "Q1_0"},
}


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """A tensor as stored; `raw` [bytes] is a view of the file.

    `factors` [1], or of a stack [slices]: what numbers of a quantized type are multiplied by.
    """

    label: str
    type: Encoding
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]
    factors: NDArray[np.float32] | None = None

    def stored(self) -> StoredTensor:
        """As float16 or float32: quantized types are dequantized, bfloat16 is widened."""
        if self.type.name in _KINDS:
            return tensor_from_bytes(self.raw, _KINDS[self.type.name], self.shape, self.label)
        is_matrix = len(self.shape) == _MATRIX
        return StoredTensor(
            shape=self.shape,
            read=self._numbers,
            blocks=self._blocks if is_matrix else None,
            rows=self._rows if is_matrix else None,
            kinds=frozenset({self.type.name}),
            nbytes=self.raw.nbytes,
        )

    def _numbers(self) -> NDArray[np.float32]:
        numbers = dequantize(self.type.name, self.raw, self.shape)
        return numbers if self.factors is None else numbers * self.factors[0]

    def _blocks(self) -> CodedMatrix:
        if self.factors is not None:
            return rounded(self._numbers())
        return read_blocks(self.type.name, self.raw, self.shape)

    def _rows(self) -> FileRows:
        factor = None if self.factors is None else self.factors[0]
        return FileRows.of(self.raw, self.shape[0], self.shape[1], self.type, factor)

    def slices(self) -> list["GgufTensor"]:
        count = self.shape[0]
        factors = [None] * count if self.factors is None else np.split(self.factors, count)
        return [
            replace(self, shape=self.shape[1:], raw=raw, factors=each)
            for raw, each in zip(self.raw.reshape(count, -1), factors, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """A parsed header; values are numbers, flags, strings, lists of strings or numeric arrays."""

    values: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """InputOutputError for damage, KvcastError for other versions, byte orders and types."""
    cursor = _GgufCursor(path, "fetch it again")
    tensors, values = _counts(cursor, path)
    parsed: dict[str, Any] = {}
    for _ in range(values):
        name = cursor.name("a value")
        if name in parsed:
            raise cursor.error(f"value {name} occurs twice")
        parsed[name] = cursor.value(cursor.number("<u4"), name)
    return GgufFile(values=parsed, tensors=_tensors(cursor, tensors, parsed, path))


def read_parts(paths: Sequence[Path]) -> GgufFile:
    """Files in llama-gguf-split's order; KvcastError unless they are one whole model."""
    files = [read_gguf(path) for path in paths]
    if len(files) == 1 and _whole(files[0], _SPLIT, 1) in (0, 1):
        return files[0]
    tensors: dict[str, GgufTensor] = {}
    for number, (path, file) in enumerate(zip(paths, files, strict=True)):
        count = _whole(file, _SPLIT, 1)
        if count != len(paths) or _whole(file, _SPLIT_NUMBER, -1) != number:
            raise KvcastError(
                f"{path} is one of {count} parts, which must all be there, named "
                "NAME-00001-of-0000N.gguf: fetch them again"
            )
        if twice := tensors.keys() & file.tensors.keys():
            raise InputOutputError(f"{path} is damaged: tensor {min(twice)} is in another part too")
        tensors |= file.tensors
    if (count := _whole(files[0], _SPLIT_TENSORS, len(tensors))) != len(tensors):
        raise InputOutputError(
            f"{paths[0]} is damaged: its parts have {len(tensors)} tensors and not {count}; fetch "
            "them again"
        )
    return GgufFile(values=files[0].values, tensors=tensors)


def _whole(file: GgufFile, name: str, default: int) -> int:
    value = file.values.get(name, default)
    return value if type(value) is int else default


def _counts(cursor: "_GgufCursor", path: Path) -> tuple[int, int]:
    """Return the tensor count and the metadata count from the header."""
    if cursor.take(len(MAGIC)).tobytes() != MAGIC:
        raise KvcastError(f"{path} is not a GGUF file: it does not begin with GGUF")
    version = cursor.number("<u4")
    if version % 65536 == 0:
        raise KvcastError(f"{path} is big-endian: fetch or convert it as little-endian")
    if version not in _VERSIONS:
        raise KvcastError(
            f"{path} has version {version} of GGUF, not 2 or 3: convert it again from its source"
        )
    tensors, values = cursor.number("<u8"), cursor.number("<u8")
    if tensors * _SMALLEST_TENSOR + values * _SMALLEST_VALUE > cursor.remaining:
        raise cursor.error(f"it cannot hold {tensors} tensors and {values} values")
    return tensors, values


class _GgufCursor(FileCursor):
    def view(self, start: int, count: int) -> NDArray[np.uint8]:
        return self._data[start : start + count]

    def number(self, kind: str) -> Any:
        dtype = np.dtype(kind)
        return self.take(dtype.itemsize).view(dtype)[0].item()

    def string(self, label: str) -> str:
        try:
            return self.take(self.number("<u8")).tobytes().decode()
        except UnicodeDecodeError:
            raise self.error(f"{label} is not text") from None

    def name(self, label: str) -> str:
        """Read a string that may end up in a message: no line breaks, no terminal codes."""
        name = self.string(f"the name of {label}")
        if not name.isprintable() or not 0 < len(name) <= 256:
            raise self.error(f"the name of {label} is not text")
        return name

    def value(self, kind: int, name: str) -> Any:
        if kind == _STRING:
            return self.string(name)
        if kind == _ARRAY:
            return self._array(name)
        return self.number(self._number_kind(kind, name))

    def _array(self, name: str) -> list[str] | NDArray[Any]:
        kind, count = self.number("<u4"), self.number("<u8")
        if kind == _STRING:
            return self._strings(count, name)
        dtype = np.dtype(self._number_kind(kind, name))
        return self.take(count * dtype.itemsize).view(dtype)

    def _strings(self, count: int, name: str) -> list[str]:
        """Read in a fast loop of plain Python: a vocabulary has hundreds of thousands."""
        if count * 8 > self.remaining:
            raise self.error(f"{name} cannot hold {count} strings")
        data, position, end = self._data.data, self.position, len(self._data)
        length = struct.Struct("<Q")
        strings = []
        try:
            for _ in range(count):
                (size,) = length.unpack_from(data, position)
                position += 8
                if size > end - position:
                    raise self.error(f"{name} ends too early")
                strings.append(str(data[position : position + size], "utf-8"))
                position += size
        except (struct.error, UnicodeDecodeError):
            raise self.error(f"{name} is not a list of texts") from None
        self.position = position
        return strings

    def _number_kind(self, kind: int, name: str) -> str:
        if kind not in _NUMBERS:
            raise self.error(f"{name} is of the unknown type {kind}")
        return _NUMBERS[kind]


def _tensors(
    cursor: _GgufCursor, count: int, values: Mapping[str, Any], path: Path
) -> dict[str, GgufTensor]:
    alignment = values.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise cursor.error("general.alignment is not a power of two")
    described = [_description(cursor, path) for _ in range(count)]
    start = math.ceil(cursor.position / alignment) * alignment
    room = cursor.remaining + cursor.position - start
    tensors: dict[str, GgufTensor] = {}
    end = 0
    # In file order, to check that no two share bytes: a small file cannot claim to be a huge model.
    for offset, size, name, kind, shape in sorted(described, key=lambda item: item[:2]):
        if name in tensors:
            raise cursor.error(f"tensor {name} occurs twice")
        if offset % alignment or offset < end or offset + size > room:
            raise cursor.error(f"tensor {name} does not lie in its place in the file")
        end = offset + size
        raw = cursor.view(start + offset, size)
        tensors[name] = GgufTensor(label=f"{path}: tensor {name}", type=kind, shape=shape, raw=raw)
    return tensors


_Description = tuple[int, int, str, Encoding, tuple[int, ...]]


def _description(cursor: _GgufCursor, path: Path) -> _Description:
    name = cursor.name("a tensor")
    rank = cursor.number("<u4")
    if not 0 < rank <= _MAX_RANK:
        raise cursor.error(f"tensor {name} has {rank} axes")
    shape = tuple(reversed([cursor.number("<u8") for _ in range(rank)]))
    number, offset = cursor.number("<u4"), cursor.number("<u8")
    if number in _OTHERS:
        raise KvcastError(
            f"{path}: tensor {name} is {_OTHERS[number]}, not one of "
            f"{', '.join(kind.name for kind in BLOCKS if kind not in PREQUANTIZED)}: "
            "fetch another quantisation"
        )
    if number not in set(Encoding) - PREQUANTIZED:
        raise cursor.error(f"tensor {name} is of the unknown type {number}")
    kind = Encoding(number)
    block, block_bytes = BLOCKS[kind]
    if 0 in shape or shape[-1] % block:
        raise cursor.error(f"tensor {name} cannot have shape {list(shape)}")
    return offset, math.prod(shape) // block * block_bytes, name, kind, shape
