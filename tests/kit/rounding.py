"""How far two correct computations of the same values may differ: a model of rounding errors."""

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
import pytest

from kvcast.families.table import family_with
from kvcast.models.executor import OPERATIONS

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


def assert_equal_but_for_rounding(actual: Any, expected: Any, tensors: Mapping[str, Any]) -> None:
    """Compare what a model with these tensors computes with a reference's results."""
    _compare(actual, expected, (tensor.shape for tensor in tensors.values()))


def assert_logits_equal(actual: Any, expected: Any, dimensions: Any) -> None:
    """Compare logits of two computations of a model with these dimensions."""
    _compare(actual, expected, family_with(dimensions).tensor_shapes(dimensions).values())


def _compare(actual: Any, expected: Any, shapes: Iterable[Sequence[int]]) -> None:
    """Bound errors by the terms on a token's way to its logits: the inputs of every matrix."""
    terms = sum(shape[-1] for shape in shapes if len(shape) > 1)
    scale = float(np.abs(expected).max())
    assert scale > 0.5, "results near zero would agree by themselves"
    np.testing.assert_allclose(actual, expected, atol=tolerance(terms, scale), rtol=0)


FAULTS = ("epsilon", "scale")
"""Constants that `plant` makes wrong by so little that only a narrow tolerance notices."""
_ATTENTION = ("self", "shared", "cross", "encoder", "source", "window")


def plant(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add 1e-4 to the epsilons of all norms, or multiply attention's scores by 1.001, in eager."""

    def wrong(original: Any) -> Any:
        if fault == "epsilon":
            return lambda *given: original(*given[:-1], given[-1] + 1e-4)
        return lambda query, *given, **named: original(1.001 * query, *given, **named)

    norms = ("layer_norm", "rms_norm")
    names = norms if fault == "epsilon" else [f"{name}_attention" for name in _ATTENTION]
    for name in names:
        monkeypatch.setitem(OPERATIONS, name, wrong(OPERATIONS[name]))
