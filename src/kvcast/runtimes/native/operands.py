"""Checks of operands, and the words by which instructions name them.

Programs come from files, and instructions do not check addresses.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native.opcodes import SCALE_BYTES, STRUCTS, Dtype, Word
from kvcast.runtimes.native.plan_builder import NOTHING, Builder
from kvcast.runtimes.native.values import Lines, Value

NO_HEADS = STRUCTS["Heads"].words(data=NOTHING, number=int(Dtype.F32), stride=0, head_stride=0)


def expect(fits: bool, subject: str) -> None:
    """Raise ValueError: programs come from files, and instructions do not check addresses."""
    if not fits:
        raise ValueError(f"{subject} do not fit")


def expect_lengths(lengths: Value | None, count: int) -> None:
    """Raise ValueError unless there is a length for each of `count` rows or inputs, or none."""
    fits = lengths is None or (lengths.dtype == Dtype.I32 and lengths.sizes == (count,))
    expect(fits and (lengths is None or lengths.is_contiguous), "lengths")


def expect_angles(cosines: NDArray[Any] | None, sines: NDArray[Any] | None, each: int) -> None:
    """Raise ValueError unless positions have `each` cosines and sines, or there are no tables."""
    expect((cosines is None) == (sines is None), "tables of angles")
    for table in (cosines, sines):
        fits = table is None or (table.dtype == np.float32 and table.shape == (len(table), each))
        expect(fits, "tables of angles")


def expect_bias(bias: Value | None, sizes: Sequence[int]) -> None:
    """Raise ValueError for a bias that is not of products [rows, heads, queries, keys]."""
    expect(bias is None or len(bias.sizes) == len(sizes), "a bias")
    if bias is not None:
        bias.broadcast(sizes)
        expect(bias.sizes[2:] == tuple(sizes[2:]), "a bias")


def cache_sizes(cache: Value) -> tuple[int, ...]:
    """Return rows, heads, positions and head size."""
    *sizes, line = cache.sizes
    return (*sizes, line - SCALE_BYTES if cache.dtype == Dtype.INT8 else line)


def is_cache(cache: Value) -> bool:
    """Return whether a head's positions and values are contiguous."""
    is_known = cache.dtype in (Dtype.F32, Dtype.F16, Dtype.INT8) and cache_sizes(cache)[-1] > 0
    return is_known and cache.strides[2:] == (cache.sizes[3], 1)


def flat(lines: Lines) -> list[Word]:
    return flat_words(lines.value.address, lines.stride)


def flat_words(data: Word, stride: int) -> list[Word]:
    """Return the struct of lines from `data`, `stride` elements apart."""
    return STRUCTS["Flat"].words(data=data, stride=stride)


def heads_of(cache: Value) -> list[Word]:
    """Return a cache as the struct that instructions take."""
    stride, head_stride = cache.strides[:2]
    return STRUCTS["Heads"].words(
        data=cache.address, number=int(cache.dtype), stride=stride, head_stride=head_stride
    )


def or_none(value: Value | None) -> Word:
    return NOTHING if value is None else value.address


def bias_of(builder: Builder, bias: Value | None) -> list[Word]:
    """Return a bias, or none, as the struct that instructions take."""
    layout = STRUCTS["Bias"]
    if bias is None:
        return layout.words(data=NOTHING, stride=0, head_stride=0, query_stride=0)
    if bias.strides[-1] != 1 or bias.dtype != Dtype.F32:
        bias = builder.copied(bias, Dtype.F32)
    stride, head_stride, query_stride, _ = bias.broadcast(bias.sizes)
    return layout.words(
        data=bias.address, stride=stride, head_stride=head_stride, query_stride=query_stride
    )
