"""Operations and numbers read: the common part of all families' counts.

A multiplication and an addition are two operations (FLOP). Matrix products and attention are
counted. Norms, activations, softmax and rotation are not, nor are embedding lookups, which read one
row per token. Knows neither bytes nor rates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any, Protocol, Self

from typing_extensions import override

from kvcast.families.table import family_with


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations by purpose, and how many values are read from memory.

    Attributes:
        encoder: the encoder's products with weights.
        encoder_attention: its attention, and convolutions.
        cross_keys_values: projecting the encoder's output to the decoder's keys and values.
        keys_values: projecting positions to keys and values.
        linear: all other products with weights in the decoder's layers.
        attention: queries with keys, and attention weights with values.
        head: hidden states to logits.
        weights: number of weights read. These are parts of it (the rest are biases, norms and
            convolutions):
        encoder_matrices: matrices of the encoder's layers and of the cross projections.
        matrices: matrices of the decoder's layers.
        table: matrix of the head.
        columns: number of outputs of the decoder's matrices, if int8 has a scale for each.
        held: self-cache entries from before the call that its queries see.
        written: self-cache entries that the call adds.
        cross: cross-cache entries read.

    """

    encoder: int = 0
    encoder_attention: int = 0
    cross_keys_values: int = 0
    keys_values: int = 0
    linear: int = 0
    attention: int = 0
    head: int = 0
    weights: int = 0
    encoder_matrices: int = 0
    matrices: int = 0
    table: int = 0
    columns: int = 0
    held: int = 0
    written: int = 0
    cross: int = 0

    def __add__(self, other: Self) -> Self:
        names = (field.name for field in fields(self))
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def flop(self) -> Mapping[str, int]:
        """Operations by part, see PARTS."""
        return {
            "encoder": self.encoder + self.encoder_attention,
            **{part: getattr(self, part) for part in PARTS[1:]},
        }

    @property
    def operations(self) -> int:
        """All operations."""
        return sum(self.flop.values())

    @property
    def cached(self) -> int:
        """Number of cached key and value entries read that were there before the call."""
        return self.held + self.cross


PARTS = ("encoder", "cross_keys_values", "keys_values", "linear", "attention", "head")


@dataclass(frozen=True, kw_only=True)
class CacheKind:
    """Cache layers of one kind, for one sequence; `numbers`: entries of all keys and values."""

    kind: str
    layers: int
    positions: int
    numbers: int


class Counted(Protocol):
    """A model whose work can be counted; `dimensions` are its family's."""

    dimensions: Any

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the weights by name."""
        return family_with(self.dimensions).tensor_shapes(self.dimensions)

    @cached_property
    def parameters(self) -> int:
        """Number of weights."""
        return self.count("")

    def count(self, start: str, part: str = "") -> int:
        """Return the number of weights in tensors named `start`... that contain `part`."""
        shapes = self.shapes.items()
        return sum(prod(shape) for name, shape in shapes if name.startswith(start) and part in name)

    @property
    def most_positions(self) -> int:
        """Length of the longest sequence."""

    @property
    def width(self) -> int:
        """Size of a hidden state."""

    @property
    def usual_prompt(self) -> int:
        """Default length of a prompt."""

    def encode(self, inputs: int = 1) -> Work:  # noqa: ARG002 - not all models have an encoder
        """Count the work that is done once for each input, with or without a cache."""
        return Work()

    def project(self, inputs: int = 1) -> Work:  # noqa: ARG002
        """Count the cross keys and values, computed once for each input if they are cached."""
        return Work()

    def call(
        self, length: int, new: int, *, rows: int = 1, inputs: int = 1, asked: int = 1
    ) -> Work:
        """Count `new` tokens for each of `rows` rows over caches of `length` positions each.

        `asked` positions of each row meet the head. Weights are read once for all rows, and the
        cross cache of each of `inputs` encoded inputs once for all rows that read it.
        """

    def recompute(self, prompt: int, new: int) -> Work:
        """Count the logits after a prompt and `new` tokens, with nothing cached."""

    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        """Return the size of the cache for a sequence of that many positions."""


@dataclass(frozen=True, kw_only=True)
class DecoderOnlyWork(Counted):
    """Counts for models without an encoder."""

    dimensions: Any

    @property
    @override
    def most_positions(self) -> int:
        most: int = self.dimensions.max_positions
        return most

    @property
    @override
    def width(self) -> int:
        width: int = self.dimensions.width
        return width


def pairs(length: int, window: int | None) -> int:
    """Return the number of pairs of a query and a key that it sees among `length` positions.

    This is the sum of min(q + 1, window) over all q below `length`.
    """
    ramp = min(length, window or length)
    return ramp * (ramp + 1) // 2 + (length - ramp) * ramp
