"""The tensors that pre-quantized folders have for one matrix."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.errors import KvcastError

Stored = dict[str, StoredTensor]
MATRIX = 2
"""Axes."""


class Parts:
    """The tensors of one matrix, taken from those of the folder."""

    def __init__(self, stored: Stored, base: str, label: str) -> None:
        self.stored, self.base, self.label = stored, base, f"{label}: matrix {base}"
        self.taken = 0  # bytes of the file

    def has(self, name: str) -> bool:
        return f"{self.base}.{name}" in self.stored

    def is_of(self, name: str, kind: str) -> bool:
        tensor = self.stored.get(f"{self.base}.{name}")
        return tensor is not None and kind in tensor.kinds

    def take(self, name: str, *kinds: str) -> StoredTensor:
        tensor = self.stored.pop(f"{self.base}.{name}", None)
        if tensor is None:
            raise KvcastError(f"{self.label} has no {name}: fetch the folder again")
        self.taken += tensor.nbytes
        if not tensor.kinds & set(kinds):
            raise self.error(f"{name} is {', '.join(sorted(tensor.kinds))}, not {kinds[0]}")
        return tensor

    def leave_out(self, *names: str) -> None:
        for name in names:
            if tensor := self.stored.pop(f"{self.base}.{name}", None):
                self.taken += tensor.nbytes

    def matrix(self, name: str, *kinds: str) -> StoredTensor:
        tensor = self.take(name, *kinds)
        if len(tensor.shape) != MATRIX:
            raise self.error(f"{name} has shape {list(tensor.shape)}: it is no matrix")
        return tensor

    def floats(self, name: str, shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
        tensor = self.take(name, "F32", "F16", "BF16")
        if tensor.shape != shape:
            raise self.error(f"{name} has shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor.read()

    def whole(self, matrix: StoredTensor) -> StoredTensor:
        """Return the matrix with the bytes of all that was taken for it, such as its scales."""
        return replace(matrix, nbytes=self.taken)

    def error(self, what: str) -> KvcastError:
        return KvcastError(f"{self.label}: {what}")


def drop(stored: Stored, endings: str | tuple[str, ...]) -> None:
    """Leave out the tensors that no matrix needs, by the endings of their names."""
    for name in [name for name in stored if name.endswith(endings)]:
        del stored[name]


def bases(stored: Stored, ending: str) -> list[str]:
    return [name.removesuffix(ending) for name in stored if name.endswith(ending)]


def group_size(fields: Fields, group: object, inputs: int) -> int:
    if group == -1:
        return inputs
    if not isinstance(group, int) or isinstance(group, bool) or group < 1:
        raise fields.error("group_size must be a whole number above 0, or -1")
    return min(group, inputs)


def group_of(
    parts: Parts, name: str, inputs: int, size: int, groups: int
) -> NDArray[np.int64] | int:
    if not parts.has(name):
        return size
    tensor = parts.take(name, "I32")
    if tensor.shape != (inputs,):
        raise parts.error(f"{name} has shape {list(tensor.shape)}, expected [{inputs}]")
    index = tensor.read().astype(np.int64)
    if index.min(initial=0) < 0 or index.max(initial=0) >= groups:
        raise parts.error(f"{name} names a group that is none of {groups}")
    return size if np.array_equal(index, np.arange(inputs) // size) else index
