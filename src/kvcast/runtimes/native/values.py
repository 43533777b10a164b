"""Values of a program under planning: strided views of storages, with all sizes known.

As torch's views; checks operands, and encodes them as instruction words.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native.opcodes import SCALE_BYTES, STRUCTS, Address, Dtype, Storage, Word

if TYPE_CHECKING:
    from kvcast.runtimes.native.plan_builder import Builder

NOTHING = 0
"""The address of an array that is not there."""

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
        whole = prod(self.sizes) * self.dtype.size == self.storage.size
        return whole and self.offset == 0 and self.is_contiguous

    def viewed(self, sizes: Sequence[int], strides: Sequence[int], offset: int = 0) -> Self:
        """Return a view `offset` elements further on; ValueError if it exceeds the storage."""
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
        """Join axes; None if the result is no view."""
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
        axis %= len(self.sizes)
        sizes = [*self.sizes[:axis], size, *self.sizes[axis + 1 :]]
        return self.viewed(sizes, self.strides, first * self.strides[axis])

    def broadcast(self, sizes: Sequence[int]) -> list[int]:
        """Return the strides that broadcast it to these sizes; raises ValueError."""
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
    """Return a value as lines along its last axis, if it can be viewed so."""
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
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


NO_HEADS = STRUCTS["Heads"].words(data=NOTHING, number=int(Dtype.F32), stride=0, head_stride=0)


def expect(fits: bool, subject: str) -> None:
    """Raise ValueError: programs come from files, and kernels do not check addresses."""
    if not fits:
        raise ValueError(f"{subject} do not fit")


def expect_lengths(lengths: Value | None, count: int) -> None:
    """Raise ValueError unless `lengths` is None or int32 [count]."""
    fits = lengths is None or (lengths.dtype == Dtype.I32 and lengths.sizes == (count,))
    expect(fits and (lengths is None or lengths.is_contiguous), "lengths")


def expect_angles(cosines: NDArray[Any] | None, sines: NDArray[Any] | None, each: int) -> None:
    """Raise ValueError unless there are `each` cosines and sines, or no tables."""
    expect((cosines is None) == (sines is None), "tables of angles")
    for table in (cosines, sines):
        fits = table is None or (table.dtype == np.float32 and table.shape == (len(table), each))
        expect(fits, "tables of angles")


def expect_bias(bias: Value | None, sizes: Sequence[int]) -> None:
    """Raise ValueError for a bias that is not [rows, heads, queries, keys]."""
    expect(bias is None or len(bias.sizes) == len(sizes), "a bias")
    if bias is not None:
        bias.broadcast(sizes)
        expect(bias.sizes[2:] == tuple(sizes[2:]), "a bias")


def cache_sizes(cache: Value) -> tuple[int, ...]:
    *sizes, line = cache.sizes
    return (*sizes, line - SCALE_BYTES if cache.dtype == Dtype.INT8 else line)


def is_cache(cache: Value) -> bool:
    """Return whether a head's positions and values are contiguous."""
    is_known = cache.dtype in (Dtype.F32, Dtype.F16, Dtype.INT8) and cache_sizes(cache)[-1] > 0
    return is_known and cache.strides[2:] == (cache.sizes[3], 1)


def flat(lines: Lines) -> list[Word]:
    return flat_words(lines.value.address, lines.stride)


def flat_words(data: Word, stride: int) -> list[Word]:
    return STRUCTS["Flat"].words(data=data, stride=stride)


def heads_of(cache: Value) -> list[Word]:
    stride, head_stride = cache.strides[:2]
    return STRUCTS["Heads"].words(
        data=cache.address, number=int(cache.dtype), stride=stride, head_stride=head_stride
    )


def or_none(value: Value | None) -> Word:
    return NOTHING if value is None else value.address


def bias_of(builder: "Builder", bias: Value | None) -> list[Word]:
    layout = STRUCTS["Bias"]
    if bias is None:
        return layout.words(data=NOTHING, stride=0, head_stride=0, query_stride=0)
    if bias.strides[-1] != 1 or bias.dtype != Dtype.F32:
        bias = builder.copied(bias, Dtype.F32)
    stride, head_stride, query_stride, _ = bias.broadcast(bias.sizes)
    return layout.words(
        data=bias.address, stride=stride, head_stride=head_stride, query_stride=query_stride
    )
