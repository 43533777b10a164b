"""The mean of some heads' weights, a layer after the other: all heads of a long text are large.

Knows no model and no token.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from kvcast.errors import KvcastError, UsageError
from kvcast.inspect.attention.weights import TOLERANCE, LayerWeights
from kvcast.runtimes.base import Float32

Head: TypeAlias = tuple[int, int]
"""A layer of the decoder, and a head of it."""


@dataclass(frozen=True, kw_only=True)
class HeadChoice:
    """Which heads count.

    Attributes:
        layer: those of this layer alone.
        head: this one alone, of that layer or of each.
        usual: those that count if neither is given; none for all.

    """

    layer: int | None = None
    head: int | None = None
    usual: Sequence[Head] = ()

    def __contains__(self, head: Head) -> bool:
        if self.layer is None and self.head is None:
            return not self.usual or head in self.usual
        return self.layer in (None, head[0]) and self.head in (None, head[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class MeanWeights:
    """The mean of heads.

    Attributes:
        heads: those that were averaged, in order.
        weights_st: [queries, keys].
        error: largest difference of a layer's weights times values from its own results.

    """

    heads: Sequence[Head]
    weights_st: Float32
    error: float


def mean_weights(layers: Iterable[LayerWeights], choice: HeadChoice) -> MeanWeights:
    """Return the mean of the heads that count; every layer is checked.

    Raises:
        UsageError: there is no such layer or head.
        KvcastError: weights times values are not what a layer computed.

    """
    heads: list[Head] = []
    counts: dict[int, int] = {}
    errors: list[float] = []
    total_st: Float32 | None = None
    for each in layers:
        counts[each.layer] = len(each.weights_hst)
        errors.append(each.error)
        chosen = [head for head in range(len(each.weights_hst)) if (each.layer, head) in choice]
        if chosen:
            heads += [(each.layer, head) for head in chosen]
            sum_st = each.weights_hst[chosen].sum(axis=0)
            total_st = sum_st if total_st is None else total_st + sum_st
    if total_st is None:
        raise _missing(choice, counts)
    error = float(np.max(errors))
    if not error <= TOLERANCE:  # NaN is not
        raise KvcastError(
            f"weights times values differ from the layer's own result by {error:.2g} of its "
            "largest number; please report this with the model's name"
        )
    return MeanWeights(heads=heads, weights_st=total_st / np.float32(len(heads)), error=error)


def spans(numbers: Iterable[int]) -> str:
    """Return `0 to 3, 7`."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in found)


def _missing(choice: HeadChoice, counts: dict[int, int]) -> UsageError:
    if choice.layer is not None and choice.layer not in counts:
        return UsageError(
            f"there is no attention in layer {choice.layer}: give one of {spans(counts)}"
        )
    most = max(counts.values() if choice.layer is None else [counts[choice.layer]])
    return UsageError(f"there is no head {choice.head}: give one of 0 to {most - 1}")
