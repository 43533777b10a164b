"""Work of a UniLM. Knows neither bytes nor rates."""

from dataclasses import dataclass
from functools import cached_property

from typing_extensions import override

from kvcast.families.unilm import UnilmDimensions
from kvcast.inspect.work.base import CacheKind, DecoderOnlyWork, Work, pairs


@dataclass(frozen=True, kw_only=True)
class UnilmWork(DecoderOnlyWork):
    """A UniLM generator, whose prompt is its source."""

    dimensions: UnilmDimensions

    @property
    @override
    def usual_prompt(self) -> int:
        return min(128, self.most_positions)

    @override
    def call(
        self, length: int, new: int, *, rows: int = 1, inputs: int = 1, asked: int = 1
    ) -> Work:
        # A call on an empty cache takes the source, which sees all of itself.
        seen = pairs(length + new, None) - pairs(length, None) if length else new * new
        return self._work(length, new, seen, rows=rows, asked=asked)

    @override
    def recompute(self, prompt: int, new: int) -> Work:
        seen = prompt**2 + pairs(prompt + new, None) - pairs(prompt, None)
        return self._work(0, prompt + new, seen)

    @override
    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        sizes = self.dimensions
        numbers = sizes.layers * 2 * sizes.width * positions
        linear = CacheKind(kind="linear", layers=sizes.layers, positions=positions, numbers=numbers)
        return (linear,)

    def _work(self, length: int, new: int, seen: int, *, rows: int = 1, asked: int = 1) -> Work:
        """Count `new` tokens per row, with `seen` pairs of a query and a key that it sees."""
        sizes, each = self.dimensions, rows * new
        width, embedded = sizes.width, sizes.embedding_width
        projection = embedded * width if embedded != width else 0
        keys_values = sizes.layers * 2 * width * width
        linear = sizes.layers * (2 * width * width + 2 * width * sizes.inner) + projection
        return Work(
            keys_values=2 * each * keys_values,
            linear=2 * each * linear,
            attention=2 * 2 * rows * sizes.layers * width * seen,
            head=2 * rows * asked * embedded * (width + sizes.vocab_size),
            weights=self._step_weights,
            matrices=keys_values + linear + embedded * width,
            table=embedded * sizes.vocab_size,
            held=rows * sizes.layers * 2 * width * length,
            written=each * sizes.layers * 2 * width,
        )

    @cached_property
    def _step_weights(self) -> int:
        """Number of weights without tables of segments and positions, and without the pooler."""
        idle = ("segments.", "positions.", "pooler.")
        return self.parameters - sum(map(self.count, idle))
