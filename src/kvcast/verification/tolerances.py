"""How far logits may be off, by runtime and precision.

Errors are in standard deviations of a position's logits (`kvcast.verification.expectations`).
Two unrelated positions differ by 1.13 of them on average, whatever the model.

The numbers come from random models of all families, which exaggerate rounding, over several seeds,
and from the packaged models. kvcast's own kernels give the same bits in any company. Where weights
are rounded, single logits of a random T5 are off by 3.5 deviations in int8 and the mean of all by
0.26; real models stay below a third of both. So means decide there, and the bounds of single logits
only tell what is no number any more. Knows no check.
"""

import math
from dataclasses import dataclass

from kvcast.spec.recipes import RECIPE
from kvcast.spec.runtimes import BundlePrecision


@dataclass(frozen=True)
class Allowed:
    """Errors.

    Attributes:
        largest: of a logit.
        mean: of all logits that are compared at a time.
        pooled: whether the mean is of all comparisons of a check, since those of single positions
            are too noisy to tell rounding from mistakes.

    """

    largest: float
    mean: float
    pooled: bool = False


@dataclass(frozen=True)
class Tolerance:
    """Allowed errors.

    Attributes:
        same: beside the model's own results of the same calls, made at another time. A mistake
            with a cache shows there, in any precision.
        own: beside its own results in other company: all tokens at once, among other rows.
        reference: beside the model in fp32. A mistake with weights shows there.
        layers: of cached tensors beside the reference's, relative, and whether more is an error:
            where numbers are rounded, differences grow from layer to layer.
        margin: of two tokens' logits, below which they are a near-tie, beside the reference.
        far: as `reference`, for texts to the end of a cache, which are no sense; None where
            rounding alone makes them as different as two unrelated positions are.

    """

    same: Allowed
    own: Allowed
    reference: Allowed
    margin: float
    far: Allowed | None
    layers: tuple[float, bool] = (math.inf, False)


_EXACT = Allowed(1e-3, 1e-4)
"""Sums in another order."""
_IN_COMPANY = Allowed(6.0, 0.25, pooled=True)
"""Rows of a call share a scale, or products of narrow numbers are summed in another order.

On ONNX Runtime in int8 single positions of random models are off by up to 0.97 on average, and all
positions of a check by up to 0.19 (T5) over 20 seeds, where an export routes to other experts too.
"""
_BESIDE_FP32 = Allowed(2e-3, 2e-4)
_LAYERS = 2e-3
"""Of keys and values, relative to a head's; also sums in another order."""
_EIGHT_BITS, _FOUR_BITS = Allowed(8.0, 0.4), Allowed(8.0, 0.7)
"""Of the reference, by the bits of weights, activations or caches."""


def tolerance_of(runtime: str, precision: BundlePrecision) -> Tolerance:
    """Return the allowed errors of a runtime's models in a precision."""
    if precision.exact:
        margin = 2 * _BESIDE_FP32.largest
        return Tolerance(_EXACT, _EXACT, _BESIDE_FP32, margin, _BESIDE_FP32, (_LAYERS, True))
    own = _EXACT if runtime in ("native", "eager") else _IN_COMPANY
    # Whisper tiny.en in int4, or with some matrices in it, parts by 1.3 and 0.6 after an end token.
    four = precision.quantize in ("int4", "8da4w", RECIPE)
    reference = _FOUR_BITS if four else _EIGHT_BITS
    far = None if four else reference
    return Tolerance(_EXACT, own, reference, 10 * reference.mean, far)
