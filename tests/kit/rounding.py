"""How far two correct computations of the same values may differ: a model of rounding errors."""

from math import sqrt
from typing import Any

import numpy as np

_TAIL = 4.5
"""Standard deviations that none of some 100,000 normally distributed errors exceeds."""


def tolerance(terms: int, scale: float, dtype: Any = np.float32) -> float:
    """Return the largest difference between two computations that sum in different orders.

    Each of n additions rounds a partial sum of magnitude `scale` or less by up to half an epsilon,
    up or down, so the error of a sum grows as sqrt(n) * eps * scale; the worst case,
    n * eps * scale, is never met in practice. Both computations round: sqrt(2). Approximations of
    exp, erf and tanh to 2e-7, as the native kernels have them, are as large as one such rounding.

    Args:
        terms: additions from the input to the result: the inner sizes of the GEMMs that follow
            one another, summed over layers.
        scale: largest magnitude of the results.
        dtype: of the sums.

    """
    return _TAIL * sqrt(2 * terms) * float(np.finfo(dtype).eps) * scale
