"""Finds the int4 blocks of a matrix: a scale and a minimum for 32 inputs, codes 0 to 15."""

import numpy as np
from numpy.typing import NDArray

from kvcast.spec.stored_matrices import BLOCK, CodedMatrix

_MOST_CODE = 15
# Of make_qkx2_quants' 21 ranges, up to a step narrower and wider than a block's, every fourth.
_STEPS = np.arange(-1.0, 1.01, 0.2, dtype=np.float32)
_AT_ONCE = 1 << 12  # blocks, so that the search's arrays stay in the CPU caches
_LARGEST = np.float32(np.finfo(np.float16).max)


def searched(
    matrix: NDArray[np.float32], weights: NDArray[np.float32] | None = None
) -> CodedMatrix:
    """Return int4 blocks of a matrix, whose inputs are a multiple of 32, with little squared error.

    As llama.cpp's `make_qkx2_quants` does for Q4_K: several ranges, a little narrower and wider
    than a block's, give codes; the least-squares scale and minimum of each are compared, and the
    pair with the least error is kept. They are float16, as the kernels read them.

    Args:
        matrix: [outputs, inputs].
        weights: weight of the squared errors of an input, [inputs], above 0; equal by default.

    """
    outputs, inputs = matrix.shape
    given = np.ones(inputs, np.float32) if weights is None else weights
    codes = np.empty(matrix.shape, np.uint8)
    scales, least = (np.empty((outputs, inputs // BLOCK), np.float16) for _ in range(2))
    for block, weights_i in enumerate(given.reshape(-1, BLOCK)):
        columns = slice(block * BLOCK, (block + 1) * BLOCK)
        weights_i1 = (weights_i / weights_i.mean())[:, None]
        for first in range(0, outputs, _AT_ONCE):
            rows = slice(first, first + _AT_ONCE)
            x_ib = np.ascontiguousarray(matrix[rows, columns].T)
            with np.errstate(all="ignore"):  # values outside float16's range, and infinite ones
                block_codes, scales[rows, block], least[rows, block] = _searched(x_ib, weights_i1)
            codes[rows, columns] = block_codes.T
    return CodedMatrix(codes=codes, scales=scales, least=least)


def _searched(
    x_ib: NDArray[np.float32], weights_i1: NDArray[np.float32]
) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16]]:
    """Return codes [32, blocks], scales and least values [blocks]; weights are 1 on average."""
    lowest, highest = x_ib.min(axis=0), x_ib.max(axis=0)
    extent = highest - lowest
    best = lowest.clip(-_LARGEST, _LARGEST)
    scales = (extent / _MOST_CODE).clip(0, _LARGEST)
    codes, scales, best, error = _coded(x_ib, weights_i1, scales, best)
    weighted = weights_i1 * x_ib
    total = weighted.sum(axis=0)
    for step in _STEPS:
        width = extent / (_MOST_CODE + step)
        tried, *_ = _coded(x_ib, weights_i1, width, lowest)
        # The least-squares line of values over codes.
        products = (tried * weighted).sum(axis=0)
        counted = weights_i1 * tried
        ones = counted.sum(axis=0)
        counted *= tried
        squares = counted.sum(axis=0)
        spread = BLOCK * squares - ones * ones
        fits = spread > 0
        slope = np.divide(BLOCK * products - ones * total, spread, out=width, where=fits)
        start = (total - slope * ones) / BLOCK
        candidate = _coded(x_ib, weights_i1, slope, np.where(fits, start, lowest))
        better = candidate[-1] < error
        codes = np.where(better, candidate[0], codes)
        scales, best = np.where(better, candidate[1], scales), np.where(better, candidate[2], best)
        error = np.minimum(error, candidate[3])
    return codes.astype(np.uint8), scales.astype(np.float16), best.astype(np.float16)


def _coded(
    x_ib: NDArray[np.float32],
    weights_i1: NDArray[np.float32],
    scales: NDArray[np.float32],
    least: NDArray[np.float32],
) -> tuple[NDArray[np.float32], ...]:
    """Round to codes; return them, the scales and minimums rounded to float16, and the error."""
    scales, least = (
        numbers.clip(-_LARGEST, _LARGEST).astype(np.float16).astype(np.float32)
        for numbers in (scales, least)
    )
    shifted = x_ib - least
    codes = np.divide(shifted, scales, out=np.zeros_like(shifted), where=scales > 0)
    codes = np.rint(codes, out=codes).clip(0, _MOST_CODE, out=codes)
    errors = codes * scales
    errors -= shifted
    np.square(errors, out=errors)
    errors *= weights_i1
    return codes, scales, least, errors.sum(axis=0)
