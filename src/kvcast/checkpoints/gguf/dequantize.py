"""Dequantizes ggml's block types, and reads them as codes, scales and minimums.

Layouts follow ggml's ggml-common.h, arithmetic follows ggml-quants.c, in float32: a value is its
code times a scale plus, in asymmetric types, a minimum.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.spec.stored_matrices import BLOCK, BLOCKS, CodedMatrix, Encoding, rounded

Bytes = NDArray[np.uint8]
# Codes [blocks, values], scales [blocks, parts], and least values like scales, None if symmetric.
_Parts = tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32] | None]

_AT_ONCE = 1 << 14  # blocks, so that intermediate results stay small
_NON_LINEAR = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8
)
_E2M1 = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int8)  # doubled


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
    """Blocks of 32 codes: exact from Q8_0, Q4_0 and Q4_1, others are rounded."""
    if kind not in ("Q8_0", "Q4_0", "Q4_1", "Q4_K"):
        return rounded(dequantize(kind, raw, shape))
    with np.errstate(all="ignore"):
        codes, scales, least = _READERS[kind](raw.reshape(-1, BLOCKS[Encoding[kind]][1]))
        if kind == "Q4_0":
            codes, least = (codes + np.int8(8)).view(np.uint8), scales * np.float32(-8)
        halves = [None if x is None else x.astype(np.float16) for x in (scales, least)]
    places = (shape[0], shape[1] // BLOCK)
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


_READERS: Mapping[str, Callable[[Bytes], _Parts]] = {
    **{"Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0},
    **{"Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k},
    **{"IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4},
}
