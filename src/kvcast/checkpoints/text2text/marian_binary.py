"""Reads Marian's binary model files (marian-conv's .bin), as Firefox's translations have them.

Little-endian, from Marian's src/common/binary.cpp and src/common/types.h; a name ends with a NUL:

    u64 version, u64 number of items
    each item: u64 length of its name, u64 type, u64 rank, u64 number of bytes
    the names; the shapes, i32 each; u64 length of padding, padding; the items' bytes

An item of intgemm8 is int8 codes and the float32 by which they are divided (browsermt/marian-dev,
src/tensors/cpu/integer_common.h). Its shape is [inputs, outputs], as of all matrices, but its codes
lie as [outputs, inputs]; an embedding's shape and codes are [tokens, width]. Every count and length
is checked against the file before it is used.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor, tensor_from_bytes
from kvcast.checkpoints.cursor import FileCursor
from kvcast.checkpoints.tensor_names import transpose
from kvcast.errors import InputOutputError, KvcastError
from kvcast.spec.stored_matrices import CodedMatrix

_VERSION = 1
_HEADER = 4  # words
_MOST_AXES = 4
_WORD = np.dtype("<u8")
_TEXT, _FLOAT32, _INTGEMM8 = 0x101, 0x404, 0x4101
_SETTINGS = "special:model.yml"
# Factors by which Marian rounds activations, of which kvcast's kernels measure their own.
_OF_ACTIVATIONS = "_QuantMultA"
_EMBEDDING = "Wemb"  # ends an embedding's name


@dataclass(frozen=True, kw_only=True)
class MarianFile:
    settings: Mapping[str, Any]  # of the model's description, without lists of several lines
    tensors: Mapping[str, StoredTensor]  # matrices [outputs, inputs], biases and norms [outputs]


def read_marian(path: Path) -> MarianFile:
    """InputOutputError for damage, KvcastError for an unknown version or type of values."""
    cursor = _Cursor(path, "fetch or convert it again")
    version = cursor.word("the version")
    if version != _VERSION:
        raise KvcastError(
            f"{path} is not one of Marian's binary models of version {_VERSION} (its first number "
            f"is {version}): give the .bin file of Firefox's or Bergamot's model, decompressed"
        )
    headers = cursor.words(cursor.word("the number of items"), _HEADER, "items")
    names = [cursor.terminated(length, "a name") for length, *_ in headers]
    shapes = [
        cursor.shape(rank, name) for name, (_, _, rank, _) in zip(names, headers, strict=True)
    ]
    cursor.take(cursor.word("the padding"), "the padding")
    settings: Mapping[str, Any] = {}
    tensors: dict[str, StoredTensor] = {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        raw = cursor.take(size, name)
        if name == _SETTINGS and kind == _TEXT:
            settings = _parsed(raw.tobytes().decode("utf-8", errors="replace"))
        elif name in tensors:
            raise cursor.error(f"tensor {name} occurs twice")
        elif not name.endswith(_OF_ACTIVATIONS):
            tensors[name] = _tensor(raw, kind, shape, f"{path}: tensor {name}")
    if not settings:
        raise KvcastError(f"{path} has no {_SETTINGS}, which describes the model: convert it again")
    return MarianFile(settings=settings, tensors=tensors)


class _Cursor(FileCursor):
    def words(self, count: int, each: int, label: str) -> list[list[int]]:
        """Return `count` tuples of `each` words."""
        raw = self.take(count * each * _WORD.itemsize, label)
        words: list[list[int]] = raw.copy().view(_WORD).reshape(-1, each).tolist()
        return words

    def word(self, label: str) -> int:
        return self.words(1, 1, label)[0][0]

    def shape(self, rank: int, name: str) -> tuple[int, ...]:
        if not 1 <= rank <= _MOST_AXES:
            raise self.error(f"tensor {name} has {rank} axes")
        shape = tuple(self.take(4 * rank, f"the shape of {name}").copy().view("<i4").tolist())
        if min(shape) < 1:
            raise self.error(f"tensor {name} has shape {list(shape)}")
        return shape


def _tensor(raw: NDArray[np.uint8], kind: int, shape: tuple[int, ...], label: str) -> StoredTensor:
    if kind not in (_FLOAT32, _INTGEMM8):
        raise KvcastError(
            f"{label} has values of type {kind:#x}: only float32 and intgemm8 are supported; "
            "convert the model with marian-conv --gemm-type intgemm8"
        )
    is_matrix, is_embedding = min(shape) > 1, label.endswith(_EMBEDDING)
    count = math.prod(shape)
    if kind == _FLOAT32:
        values = raw[: 4 * count]  # padding follows
        if not is_matrix:
            return tensor_from_bytes(values, "float32", (count,), label)
        stored = tensor_from_bytes(values, "float32", shape, label)
        return stored if is_embedding else transpose(stored)
    if len(shape) != 2:
        raise InputOutputError(f"{label} is damaged: codes of {len(shape)} axes; fetch it again")
    return _coded(raw, shape if is_embedding else shape[::-1], label)


def _coded(raw: NDArray[np.uint8], shape: tuple[int, ...], label: str) -> StoredTensor:
    count = math.prod(shape)
    codes = tensor_from_bytes(raw[:count], "int8", shape, label)
    [factor] = tensor_from_bytes(raw[count : count + 4], "float32", (1,), label).read()
    if not 0 < factor < math.inf:
        raise InputOutputError(f"{label} is damaged: its factor is {factor}; fetch it again")
    scale = np.float32(1) / factor

    def read() -> NDArray[np.float32]:
        values: NDArray[np.float32] = codes.read() * scale
        return values

    def blocks() -> CodedMatrix:
        return CodedMatrix(codes=codes.read(), scales=np.full(shape[0], scale))

    return StoredTensor(
        shape=shape,
        read=read,
        blocks=blocks,
        kinds=frozenset({"intgemm8"}),
        nbytes=raw.nbytes,
    )


def _parsed(text: str) -> dict[str, Any]:
    """Parse the YAML that Marian writes, of which settings take a line each or are lists."""
    settings: dict[str, Any] = {}
    for line in text.rstrip("\0").splitlines():
        name, colon, value = line.partition(":")
        if colon and value.strip():
            settings[name] = _scalar(value.strip())
    return settings


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
