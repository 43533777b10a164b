"""Dequantizes ggml's block types, and reads them as codes, scales and minimums.

Layouts follow ggml's ggml-common.h, arithmetic follows ggml-quants.c, in float32: a value is its
code times a scale plus, in asymmetric types, a minimum. IQ1 to IQ3 have codes for several values at
once, the points of a grid, and signs.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.spec.grids import grid
from kvcast.spec.stored_matrices import (
    BLOCK,
    BLOCKS,
    FOUR_BITS,
    CodedMatrix,
    Encoding,
    rounded,
)

Bytes = NDArray[np.uint8]
# Codes [blocks, values], scales [blocks, parts], and least values like scales, None if symmetric.
_Parts = tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32] | None]

_ZEROS = {"Q4_0": 8, "TQ1_0": 1, "TQ2_0": 1}  # added to codes of 4 bits that have signs
_AT_ONCE = 1 << 14  # blocks, so that intermediate results stay small
_NON_LINEAR = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8
)
_E2M1 = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int8)  # doubled
_POWERS_OF_3 = np.array((1, 3, 9, 27, 81), np.uint8)
_EIGHTH, _QUARTER = np.float32(1 / 8), np.float32(1 / 4)
# Of IQ2, IQ3_XXS, IQ3_S and IQ1: a grid's values. Those of IQ1 are -1, 0 and 1, in eighths.
_TWO_BITS, _ONE_BIT = (8, 25, 43), (-8, 0, 8)
_THREE_BITS = {"IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62), "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15)}


def dequantize(kind: str, raw: Bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Bit for bit as ggml computes them."""
    size, nbytes = BLOCKS[Encoding[kind]]
    blocks = raw.reshape(-1, nbytes)
    values = np.empty((len(blocks), size), np.float32)
    with np.errstate(all="ignore"):  # a damaged scale may be anything
        for start in range(0, len(blocks), _AT_ONCE):
            codes, scales, least = _READERS[kind](blocks[start : start + _AT_ONCE])
            part = codes.reshape(*scales.shape, -1) * scales[..., None]
            part = part if least is None else part + least[..., None]
            values[start : start + _AT_ONCE] = part.reshape(-1, size)
    return values.reshape(shape)


def read_blocks(kind: str, raw: Bytes, shape: tuple[int, ...]) -> CodedMatrix:
    """Blocks of 32 codes: exact from Q8_0, Q4_0, Q4_1, TQ1_0 and TQ2_0, others are rounded."""
    if kind != "Q8_0" and Encoding[kind] not in FOUR_BITS:
        return rounded(dequantize(kind, raw, shape))
    with np.errstate(all="ignore"):
        codes, scales, least = _READERS[kind](raw.reshape(-1, BLOCKS[Encoding[kind]][1]))
        if kind in _ZEROS:
            zero = _ZEROS[kind]
            codes, least = (codes + np.int8(zero)).view(np.uint8), scales * np.float32(-zero)
        halves = [None if x is None else x.astype(np.float16) for x in (scales, least)]
    places = (shape[0], shape[1] // BLOCK)
    each = codes.size // BLOCK // scales.size
    halves = [None if x is None else x.repeat(each) for x in halves]
    first, second = (None if x is None else x.reshape(places) for x in halves)
    assert first is not None
    return CodedMatrix(codes=codes.reshape(shape), scales=first, least=second)


def _planes(raw: Bytes, bits: int, run: int) -> Bytes:
    """Unpack codes of `bits`: each `run` bytes hold runs of equally many codes, low bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes = (raw.reshape(len(raw), -1, 1, run) >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(len(raw), -1)


def _half(blocks: Bytes, first: int) -> NDArray[np.float32]:
    """Return a float16 of each block, at a byte, as float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, first : first + 2]).view("<f2").astype(np.float32)


def _to_signed(codes: NDArray[Any], zero: int) -> NDArray[np.int8]:
    return codes.view(np.int8) - np.int8(zero)


def _k_scales(blocks: Bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scales and minimums of Q4_K and Q5_K: 8 of each, of 6 bits, in 12 bytes."""
    low, least, high = blocks[:, 4:16].reshape(-1, 3, 4).swapaxes(0, 1)
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 48)], axis=1)
    least = np.concatenate([least & 63, (high >> 4) | ((least >> 2) & 48)], axis=1)
    return _half(blocks, 0) * scales, -(_half(blocks, 2) * least)


def _q4_0(raw: Bytes) -> _Parts:
    return _to_signed(_planes(raw[:, 2:], 4, 16), 8), _half(raw, 0), None


def _q4_1(raw: Bytes) -> _Parts:
    return _planes(raw[:, 4:], 4, 16), _half(raw, 0), _half(raw, 2)


def _q5_0(raw: Bytes) -> _Parts:
    codes = _planes(raw[:, 6:], 4, 16) | _planes(raw[:, 2:6], 1, 1) << 4
    return _to_signed(codes, 16), _half(raw, 0), None


def _q5_1(raw: Bytes) -> _Parts:
    codes = _planes(raw[:, 8:], 4, 16) | _planes(raw[:, 4:8], 1, 1) << 4
    return codes, _half(raw, 0), _half(raw, 2)


def _q8_0(raw: Bytes) -> _Parts:
    return raw[:, 2:].view(np.int8), _half(raw, 0), None


def _q2_k(raw: Bytes) -> _Parts:
    scales, least = raw[:, :16] & 15, raw[:, :16] >> 4
    return _planes(raw[:, 16:80], 2, 32), _half(raw, 80) * scales, -(_half(raw, 82) * least)


def _q3_k(raw: Bytes) -> _Parts:
    codes = _planes(raw[:, 32:96], 2, 32) | _planes(raw[:, :32], 1, 32) << 2
    scales = _planes(raw[:, 96:104], 4, 8) | _planes(raw[:, 104:108], 2, 4) << 4
    return _to_signed(codes, 4), _half(raw, 108) * _to_signed(scales, 32), None


def _q4_k(raw: Bytes) -> _Parts:
    return _planes(raw[:, 16:], 4, 32), *_k_scales(raw)


def _q5_k(raw: Bytes) -> _Parts:
    return _planes(raw[:, 48:], 4, 32) | _planes(raw[:, 16:48], 1, 32) << 4, *_k_scales(raw)


def _q6_k(raw: Bytes) -> _Parts:
    codes = _planes(raw[:, :128], 4, 64) | _planes(raw[:, 128:192], 2, 32) << 4
    return _to_signed(codes, 32), _half(raw, 208) * raw[:, 192:208].view(np.int8), None


def _iq4_nl(raw: Bytes) -> _Parts:
    return _NON_LINEAR[_planes(raw[:, 2:], 4, 16)], _half(raw, 0), None


def _iq4_xs(raw: Bytes) -> _Parts:
    scales = _planes(raw[:, 4:8], 4, 1) | _planes(raw[:, 2:4], 2, 1) << 4
    codes = _NON_LINEAR[_planes(raw[:, 8:], 4, 16)]
    return codes, _half(raw, 0) * _to_signed(scales, 32), None


def _mxfp4(raw: Bytes) -> _Parts:
    power = raw[:, :1].astype(np.uint32)  # of half the scale, whose codes are doubled
    bits = np.where(power < 2, np.uint32(1 << 21) << power, (power - np.uint32(1)) << np.uint32(23))
    return _E2M1[_planes(raw[:, 1:], 4, 16)], bits.view(np.float32), None


def _nvfp4(raw: Bytes) -> _Parts:
    return _E2M1[_planes(raw[:, 4:], 4, 8)], _half_scales()[raw[:, :4]], None


@cache
def _half_scales() -> NDArray[np.float32]:
    """Return half of each float of 8 bits, e4m3 without a sign: a block's codes are doubled."""
    power, fraction = np.divmod(np.arange(128, dtype=np.int32), 8)
    scales = np.ldexp(np.where(power > 0, fraction + 8, fraction), power.clip(1) - 11)
    both: NDArray[np.float32] = np.concatenate([scales, scales]).astype(np.float32)
    both[127] = 0  # NaN
    return both


def _ternary(raw: Bytes, count: int) -> NDArray[np.int8]:
    """Unpack `count` codes of -1, 0, 1 of each byte, which is a fraction of 256 in base 3."""
    shifted = raw[:, None] * _POWERS_OF_3[:count, None]
    codes = (shifted > 85).view(np.int8) + (shifted > 170).view(np.int8)  # thirds
    return (codes - np.int8(1)).reshape(len(raw), -1)


def _tq1_0(raw: Bytes) -> _Parts:
    parts = _ternary(raw[:, :32], 5), _ternary(raw[:, 32:48], 5), _ternary(raw[:, 48:52], 4)
    return np.concatenate(parts, axis=1), _half(raw, 52), None


def _tq2_0(raw: Bytes) -> _Parts:
    return _to_signed(_planes(raw[:, :64], 2, 32), 1), _half(raw, 64), None


@cache
def _points(kind: str, values: tuple[int, ...], added: int = 0) -> NDArray[Any]:
    """Return the grid's points [codes], whose int8 values lie in a word."""
    numbers = np.array(values, np.int8)[grid(kind)] + np.int8(added)
    return numbers.view(f"u{numbers.shape[1]}")[:, 0]


@cache
def _signs() -> NDArray[np.uint64]:
    """Return -1 for bits that are set, else 1, of each byte eight int8 in a word."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return (1 - 2 * bits.view(np.int8)).view(np.uint64)[:, 0]


def _signed(points: NDArray[Any], codes: NDArray[Any], signs: Bytes) -> NDArray[np.int8]:
    """Look up points [blocks, ..], and signs of 8 values each [blocks, ..]."""
    numbers: NDArray[np.int8] = points[codes.reshape(len(codes), -1)].view(np.int8)
    numbers *= _signs()[signs.reshape(len(signs), -1)].view(np.int8)
    return numbers


def _packed_signs(words: NDArray[np.uint32]) -> Bytes:
    """Unpack four times seven signs; an eighth makes the number of minus signs even."""
    return _with_even((words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32)).astype(np.uint8))


def _with_even(seven: Bytes) -> Bytes:
    seven = seven & np.uint8(127)
    signs: Bytes = seven | np.bitwise_count(seven) << np.uint8(7)
    return signs


def _odd(scales: NDArray[Any]) -> NDArray[np.float32]:
    """1, 3, 5 .. of codes 0, 1, 2 .."""
    return scales.astype(np.float32) * 2 + 1


def _words(raw: Bytes, kind: str) -> NDArray[Any]:
    return np.ascontiguousarray(raw).view(kind)


def _iq2_xxs(raw: Bytes) -> _Parts:
    pairs = _words(raw[:, 2:], "<u4").reshape(len(raw), 8, 2)
    codes, signs = raw[:, 2:].reshape(len(raw), 8, 8)[..., :4], _packed_signs(pairs[..., 1])
    scales = _half(raw, 0) * _EIGHTH * _odd(pairs[..., 1] >> 28)
    return _signed(_points("IQ2_XXS", _TWO_BITS), codes, signs), scales, None


def _iq2_xs(raw: Bytes) -> _Parts:
    words = _words(raw[:, 2:66], "<u2")
    signs = _with_even((words >> 9).astype(np.uint8))
    scales = _half(raw, 0) * _EIGHTH * _odd(_planes(raw[:, 66:], 4, 1))
    return _signed(_points("IQ2_XS", _TWO_BITS), words & 511, signs), scales, None


def _iq2_s(raw: Bytes) -> _Parts:
    codes = raw[:, 2:34] | _planes(raw[:, 66:74], 2, 1).astype(np.uint16) << 8
    scales = _half(raw, 0) * _EIGHTH * _odd(_planes(raw[:, 74:], 4, 1))
    return _signed(_points("IQ2_S", _TWO_BITS), codes, raw[:, 34:66]), scales, None


def _iq3_xxs(raw: Bytes) -> _Parts:
    words = _words(raw[:, 66:], "<u4")
    points = _points("IQ3_XXS", _THREE_BITS["IQ3_XXS"])
    scales = _half(raw, 0) * _QUARTER * _odd(words >> 28)
    return _signed(points, raw[:, 2:66], _packed_signs(words)), scales, None


def _iq3_s(raw: Bytes) -> _Parts:
    codes = raw[:, 2:66] | _planes(raw[:, 66:74], 1, 1).astype(np.uint16) << 8
    points = _points("IQ3_S", _THREE_BITS["IQ3_S"])
    scales = _half(raw, 0) * _odd(_planes(raw[:, 106:], 4, 1))
    return _signed(points, codes, raw[:, 74:106]), scales, None


@cache
def _shifted_points() -> NDArray[np.uint64]:
    """IQ1's grid an eighth above, then an eighth below."""
    return np.concatenate([_points("IQ1_S", _ONE_BIT, added) for added in (1, -1)])


def _iq1_s(raw: Bytes) -> _Parts:
    words = _words(raw[:, 34:], "<u2")
    high = (words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16)) & 7
    high |= words[..., None] >> 12 & 8  # below
    codes = raw[:, 2:34] | high.reshape(len(raw), -1) << 8
    scales = _half(raw, 0) * _EIGHTH * _odd(words >> 12 & 7)
    return _shifted_points()[codes].view(np.int8), scales, None


def _iq1_m(raw: Bytes) -> _Parts:
    words = _words(raw[:, 48:], "<u2")  # 16 scales of 3 bits, and a quarter of a half in each
    quarters = (words >> 12) << np.arange(0, 16, 4, dtype=np.uint16)
    half = np.bitwise_or.reduce(quarters, axis=1, keepdims=True).view(np.float16)
    codes = raw[:, :32] | _planes(raw[:, 32:48], 4, 1).astype(np.uint16) << 8
    each = (words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16)) & 7
    scales = half.astype(np.float32) * _EIGHTH * _odd(each.reshape(len(raw), -1))
    return _shifted_points()[codes].view(np.int8), scales, None


_READERS: Mapping[str, Callable[[Bytes], _Parts]] = {
    **{"Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0},
    **{"Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k},
    **{"IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4, "NVFP4": _nvfp4},
    **{"IQ2_XXS": _iq2_xxs, "IQ2_XS": _iq2_xs, "IQ2_S": _iq2_s, "TQ1_0": _tq1_0},
    **{"IQ3_XXS": _iq3_xxs, "IQ3_S": _iq3_s, "IQ1_S": _iq1_s, "IQ1_M": _iq1_m, "TQ2_0": _tq2_0},
}
