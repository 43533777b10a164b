"""What an adapter changes of one tensor, as the tuners of PEFT 0.21 compute it, in float32."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.checkpoints.base import StoredTensor
from kvcast.errors import KvcastError

Weight: TypeAlias = NDArray[np.float32]
Base: TypeAlias = Callable[[], Weight]

# No weight is as large: beyond it something is damaged.
_MOST = 1e30


class Change(Protocol):
    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether the change fits a tensor of this shape."""

    def apply(self, weight: Weight, share: float, base: Base) -> Weight:
        """With this share of the change, perhaps in place; KvcastError for a damaged change.

        `base` reads the weight before the changes of any adapter.
        """


@dataclass(frozen=True, kw_only=True)
class LowRank(Change):
    lora_a: StoredTensor  # [rank, inputs], of a convolution [rank, channels, size]
    lora_b: StoredTensor  # [outputs, rank], of a convolution [outputs, rank, 1]
    scale: float
    transposed: bool | Literal["either"] = False  # inputs first; "either": if shapes allow it
    label: str

    @override
    def fits(self, shape: tuple[int, ...]) -> bool:
        return shape == (self._shape[::-1] if self.is_transposed(shape) else self._shape)

    @override
    def apply(self, weight: Weight, share: float, base: Base) -> Weight:
        rank, scale = self.lora_a.shape[0], share * self.scale
        lora_a = self.lora_a.read().astype(np.float32).reshape(rank, -1)
        lora_b = self.lora_b.read().astype(np.float32).reshape(-1, rank)
        most = rank * float(np.abs(lora_a).max()) * float(np.abs(lora_b).max())
        if not max(most, most * abs(scale), abs(scale)) < _MOST:  # NaN is not, either
            raise _damaged(self.label)
        product = ((np.float32(scale) * lora_b) @ lora_a).reshape(self._shape)
        weight += product.T if self.is_transposed(weight.shape) else product
        return weight

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.lora_b.shape[0], *self.lora_a.shape[1:])

    def is_transposed(self, shape: tuple[int, ...]) -> bool:
        either = isinstance(self.transposed, str)
        return shape == self._shape[::-1] if either else bool(self.transposed)


@dataclass(frozen=True, kw_only=True)
class WeightDecomposed(Change):
    """DoRA: the changed weight, with another magnitude of what each output multiplies with.

    A share of it is that share of the difference.
    """

    low_rank: LowRank
    magnitude: StoredTensor  # of each output

    @override
    def fits(self, shape: tuple[int, ...]) -> bool:
        return self.low_rank.fits(shape)

    @override
    def apply(self, weight: Weight, share: float, base: Base) -> Weight:
        changed: Weight = self._factors(base) * self.low_rank.apply(weight.copy(), 1, base)
        return changed if share == 1 else weight + np.float32(share) * (changed - weight)

    def _factors(self, base: Base) -> Weight:
        """Magnitudes over those of the base with this change alone, whatever others change."""
        directions = self.low_rank.apply(base(), 1, base)
        outputs = directions.ndim - 1 if self.low_rank.is_transposed(directions.shape) else 0
        inputs = tuple(axis for axis in range(directions.ndim) if axis != outputs)
        norms = np.sqrt(np.square(directions).sum(axis=inputs, keepdims=True))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            magnitude = self.magnitude.read().astype(np.float32).reshape(norms.shape)
            factors: Weight = magnitude / norms
        if not np.isfinite(factors).all():
            raise _damaged(self.low_rank.label)
        return factors


@dataclass(frozen=True, kw_only=True)
class StackedLowRank(Change):
    """A LowRank for each expert of a parameter [experts, outputs, inputs], or inputs first."""

    lora_a: StoredTensor  # [experts * rank, inputs]
    lora_b: StoredTensor  # [outputs, rank * experts], experts innermost
    rank: int
    scale: float
    inputs_first: bool = False  # of square matrices, whose shapes do not tell
    label: str

    @override
    def fits(self, shape: tuple[int, ...]) -> bool:
        return shape[:1] == (self.experts,) and self._of_one(shape) is not None

    @override
    def apply(self, weight: Weight, share: float, base: Base) -> Weight:
        for expert, matrix in enumerate(weight):
            change = replace(self.part(expert), transposed=self._of_one(weight.shape) or False)
            weight[expert] = change.apply(matrix, share, base)
        return weight

    @property
    def experts(self) -> int:
        return self.lora_a.shape[0] // self.rank

    @property
    def outputs(self) -> int:
        return self.lora_b.shape[0]

    def part(self, expert: int, rows: slice = slice(None)) -> LowRank:
        """Return the change of an expert's matrix [outputs, inputs], or of rows of it."""
        count = len(range(*rows.indices(self.outputs)))
        return LowRank(
            lora_a=StoredTensor(
                shape=(self.rank, self.lora_a.shape[1]),
                read=lambda: _factors_of(self)[0][expert],
            ),
            lora_b=StoredTensor(
                shape=(count, self.rank), read=lambda: _factors_of(self)[1][rows, :, expert]
            ),
            scale=self.scale,
            label=self.label,
        )

    def _of_one(self, shape: tuple[int, ...]) -> bool | None:
        """Return whether matrices of a stack have inputs first; None if they do not fit."""
        matrix: tuple[int, ...] = (self.outputs, self.lora_a.shape[1])
        if shape[1:] == matrix == matrix[::-1]:
            return self.inputs_first
        return {matrix: False, matrix[::-1]: True}.get(shape[1:])


@lru_cache(maxsize=1)  # the parts of one stack are read one after another
def _factors_of(stack: StackedLowRank) -> tuple[Weight, Weight]:
    """[experts, rank, inputs] and [outputs, rank, experts]."""
    lora_a, lora_b = (x.read().astype(np.float32) for x in (stack.lora_a, stack.lora_b))
    return (
        lora_a.reshape(stack.experts, stack.rank, -1),
        lora_b.reshape(stack.outputs, stack.rank, stack.experts),
    )


@dataclass(frozen=True, kw_only=True)
class _OfWhole(Change):
    """A change by a tensor of the changed one's shape."""

    tensor: StoredTensor
    label: str

    @override
    def fits(self, shape: tuple[int, ...]) -> bool:
        return shape == self.tensor.shape


@dataclass(frozen=True, kw_only=True)
class Replacement(_OfWhole):
    """A tensor that was trained whole; a share of it is that share of the difference."""

    @override
    def apply(self, weight: Weight, share: float, base: Base) -> Weight:
        return _towards(_finite(self.tensor, self.label), weight, share)


@dataclass(frozen=True, kw_only=True)
class ReplacedRows(Change):
    """Rows of a matrix that were trained whole: the embeddings of some tokens."""

    tensor: StoredTensor  # [count, width]
    rows: Sequence[int]
    label: str

    @override
    def fits(self, shape: tuple[int, ...]) -> bool:
        return shape[1:] == self.tensor.shape[1:] and max(self.rows) < shape[0]

    @override
    def apply(self, weight: Weight, share: float, base: Base) -> Weight:
        rows = list(self.rows)
        weight[rows] = _towards(_finite(self.tensor, self.label), weight[rows], share)
        return weight


@dataclass(frozen=True, kw_only=True)
class Added(_OfWhole):
    """The bias of a LoRA's second matrix, which is added to the layer's own."""

    scale: float

    @override
    def apply(self, weight: Weight, share: float, base: Base) -> Weight:
        return weight + np.float32(share * self.scale) * _finite(self.tensor, self.label)


def with_inputs_first(change: Change) -> Change:
    """Return the change of a weight whose matrices are [inputs, outputs]."""
    match change:
        case LowRank():
            return replace(change, transposed=True)
        case WeightDecomposed():
            return replace(change, low_rank=replace(change.low_rank, transposed=True))
        case StackedLowRank():
            return replace(change, inputs_first=True)
    return change


def _towards(trained: Weight, weight: Weight, share: float) -> Weight:
    return trained if share == 1 else weight + np.float32(share) * (trained - weight)


def _finite(tensor: StoredTensor, label: str) -> Weight:
    values: Weight = tensor.read().astype(np.float32)
    if not np.isfinite(values).all():
        raise _damaged(label)
    return values


def _damaged(label: str) -> KvcastError:
    return KvcastError(f"{label} is damaged: it holds numbers that are not finite")
