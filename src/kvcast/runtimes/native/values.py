"""Values of a program under planning: strided views of storages, with all sizes known.

Implements torch's views as sizes and strides; emits no instructions.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native.opcodes import Address, Dtype, Storage

_DTYPES = {
    np.dtype(np.float32): Dtype.F32,
    np.dtype(np.float16): Dtype.F16,
    np.dtype(np.int32): Dtype.I32,
    np.dtype(np.int64): Dtype.I64,
    np.dtype(np.bool_): Dtype.BOOL,
    np.dtype(np.int8): Dtype.INT8,
}


@dataclass(frozen=True, eq=False)
class Value:
    """An array that begins `offset` elements into its storage; strides are in elements."""

    storage: Storage
    dtype: Dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def fresh(cls, sizes: Sequence[int], dtype: Dtype) -> Self:
        """Return a contiguous value in a new storage."""
        return cls(Storage(prod(sizes) * dtype.size), dtype, tuple(sizes), contiguous(sizes))

    @classmethod
    def of(cls, array: NDArray[Any]) -> Self:
        """Return an array as a value; the caller keeps it alive."""
        dtype = _DTYPES[array.dtype]
        strides = tuple(stride // dtype.size for stride in array.strides)
        last = sum((size - 1) * step for size, step in zip(array.shape, strides, strict=True))
        size = (last + 1) * dtype.size if array.size else 0
        return cls(Storage(size, array.ctypes.data), dtype, array.shape, strides)

    @property
    def address(self) -> Address:
        return Address(self.storage, self.offset * self.dtype.size)

    @property
    def is_contiguous(self) -> bool:
        return all(
            size == 1 or stride == wanted
            for size, stride, wanted in zip(
                self.sizes, self.strides, contiguous(self.sizes), strict=True
            )
        )

    @property
    def fills_storage(self) -> bool:
        """Whether it is the whole of its storage, in order."""
        whole = prod(self.sizes) * self.dtype.size == self.storage.size
        return whole and self.offset == 0 and self.is_contiguous

    def viewed(self, sizes: Sequence[int], strides: Sequence[int], offset: int = 0) -> Self:
        """Return another view of the storage, `offset` elements further on.

        Raises ValueError if it exceeds the storage.
        """
        first = self.offset + offset
        last = first + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
        inside = 0 <= first <= last < self.storage.size // self.dtype.size
        if min(sizes, default=1) < 0 or min(strides, default=0) < 0 or not (inside or 0 in sizes):
            raise ValueError(f"a view {list(sizes)} does not fit into its storage")
        return replace(self, sizes=tuple(sizes), strides=tuple(strides), offset=first)

    def transposed(self, first: int, second: int) -> Self:
        sizes, strides = list(self.sizes), list(self.strides)
        for each in (sizes, strides):
            each[first], each[second] = each[second], each[first]
        return self.viewed(sizes, strides)

    def unsqueezed(self, axis: int) -> Self:
        """Add an axis of size 1."""
        axis %= len(self.sizes) + 1
        sizes, strides = list(self.sizes), list(self.strides)
        sizes.insert(axis, 1)
        strides.insert(axis, 0)
        return self.viewed(sizes, strides)

    def unflattened(self, axis: int, parts: Sequence[int]) -> Self:
        """Split an axis; one size may be -1."""
        axis %= len(self.sizes)
        known = prod(part for part in parts if part != -1)
        if (
            known <= 0
            or self.sizes[axis] % known
            or (-1 not in parts and self.sizes[axis] != known)
        ):
            raise ValueError(f"an axis of {self.sizes[axis]} cannot be divided into {list(parts)}")
        inner = [part if part != -1 else self.sizes[axis] // known for part in parts]
        steps = [self.strides[axis] * step for step in contiguous(inner)]
        return self.viewed(
            [*self.sizes[:axis], *inner, *self.sizes[axis + 1 :]],
            [*self.strides[:axis], *steps, *self.strides[axis + 1 :]],
        )

    def flattened(self, first: int = 0, last: int = -1) -> "Value | None":
        """Join axes; None where that is no view."""
        first, last = first % len(self.sizes), last % len(self.sizes)
        joined = [i for i in range(first, last + 1) if self.sizes[i] != 1]
        for axis, following in itertools.pairwise(joined):
            if self.strides[axis] != self.sizes[following] * self.strides[following]:
                return None
        size = prod(self.sizes[first : last + 1])
        stride = self.strides[joined[-1]] if joined else 1
        return self.viewed(
            [*self.sizes[:first], size, *self.sizes[last + 1 :]],
            [*self.strides[:first], stride, *self.strides[last + 1 :]],
        )

    def part(self, axis: int, first: int, size: int) -> Self:
        """Return `size` of an axis, from `first` on."""
        axis %= len(self.sizes)
        sizes = [*self.sizes[:axis], size, *self.sizes[axis + 1 :]]
        return self.viewed(sizes, self.strides, first * self.strides[axis])

    def broadcast(self, sizes: Sequence[int]) -> list[int]:
        """Return strides that repeat it to these sizes; ValueError if that cannot be."""
        missing = len(sizes) - len(self.sizes)
        fits = missing >= 0 and all(
            size in (1, wanted) for size, wanted in zip(self.sizes, sizes[missing:], strict=True)
        )
        if not fits:
            raise ValueError(f"{list(self.sizes)} cannot be repeated to {list(sizes)}")
        return [0] * missing + [
            0 if size == 1 else stride
            for size, stride in zip(self.sizes, self.strides, strict=True)
        ]


@dataclass(frozen=True)
class Lines:
    """A value as contiguous rows: [rows, width] with a stride."""

    value: Value
    rows: int
    width: int
    stride: int


def lines_of(value: Value) -> Lines | None:
    """Return a value as lines along its last axis; None where it is not in that form."""
    *leading, width = value.sizes
    if not leading:
        value = value.unsqueezed(0)
    if width != 1 and value.strides[-1] != 1:
        return None
    flat = value.flattened(0, -2)
    if flat is None:
        return None
    rows = flat.sizes[0]
    return Lines(flat, rows, width, flat.strides[0] if rows > 1 else width)


def contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous array."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
