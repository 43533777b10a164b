"""Finds the int4 blocks of a matrix: a scale and a least value for 32 inputs, codes from 0 to 15.

Knows no runtime.
"""

import numpy as np
from numpy.typing import NDArray

from kvcast.spec.blocks import BLOCK, Blocks

_MOST_CODE = 15
# Of make_qkx2_quants' 21 ranges, up to a step narrower and wider than a block's, every fourth.
_STEPS = np.arange(-1.0, 1.01, 0.2, dtype=np.float32)
_AT_ONCE = 1 << 15  # blocks, so that what the search makes stays in the caches
_LARGEST = np.float32(np.finfo(np.float16).max)


def searched(matrix: NDArray[np.float32]) -> Blocks:
    """Return int4 blocks of a matrix, whose inputs are a multiple of 32, with little squared error.

    As llama.cpp's `make_qkx2_quants` does for Q4_K, without its weights of inputs: several ranges,
    a little narrower and wider than a block's, give codes; of the scale and least value that fit
    these codes best, those with the least error stay. They are halves, as the kernels read them.
    """
    blocks = matrix.reshape(-1, BLOCK)
    codes = np.empty(blocks.shape, np.uint8)
    scales, least = (np.empty(len(blocks), np.float16) for _ in range(2))
    for first in range(0, len(blocks), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        with np.errstate(all="ignore"):  # numbers that halves cannot hold, and infinite ones
            found, scales[part], least[part] = _searched(np.ascontiguousarray(blocks[part].T))
        codes[part] = found.T
    outputs = len(matrix)
    return Blocks(
        codes=codes.reshape(matrix.shape),
        scales=scales.reshape(outputs, -1),
        least=least.reshape(outputs, -1),
    )


def _searched(
    x_ib: NDArray[np.float32],
) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16]]:
    """Return codes [32, blocks], scales and least values [blocks]."""
    lowest, highest = x_ib.min(axis=0), x_ib.max(axis=0)
    extent = highest - lowest
    best = lowest.clip(-_LARGEST, _LARGEST)
    scales = (extent / _MOST_CODE).clip(0, _LARGEST)
    codes, scales, best, error = _coded(x_ib, scales, best)
    total = x_ib.sum(axis=0)
    for step in _STEPS:
        width = extent / (_MOST_CODE + step)
        tried, *_ = _coded(x_ib, width, lowest)
        # The line through numbers over codes with the least squares.
        ones, squares = tried.sum(axis=0), np.square(tried).sum(axis=0)
        products = (tried * x_ib).sum(axis=0)
        spread = BLOCK * squares - ones * ones
        fits = spread > 0
        slope = np.divide(BLOCK * products - ones * total, spread, out=width, where=fits)
        start = (total - slope * ones) / BLOCK
        one = _coded(x_ib, slope, np.where(fits, start, lowest))
        better = one[-1] < error
        codes = np.where(better, one[0], codes)
        scales, best = np.where(better, one[1], scales), np.where(better, one[2], best)
        error = np.minimum(error, one[3])
    return codes.astype(np.uint8), scales.astype(np.float16), best.astype(np.float16)


def _coded(
    x_ib: NDArray[np.float32], scales: NDArray[np.float32], least: NDArray[np.float32]
) -> tuple[NDArray[np.float32], ...]:
    """Round to codes; return them, the scales and least values as halves hold them, the error."""
    scales, least = (
        one.clip(-_LARGEST, _LARGEST).astype(np.float16).astype(np.float32)
        for one in (scales, least)
    )
    shifted = x_ib - least
    codes = np.divide(shifted, scales, out=np.zeros_like(shifted), where=scales > 0)
    codes = np.rint(codes, out=codes).clip(0, _MOST_CODE, out=codes)
    return codes, scales, least, np.square(codes * scales - shifted).sum(axis=0)
