"""Work of a Parakeet over sounds of the longest kind. Knows neither bytes nor rates."""

from dataclasses import dataclass, replace

from typing_extensions import override

from kvcast.families.parakeet import ParakeetDimensions
from kvcast.inspect.work.base import CacheKind, Counted, Work
from kvcast.inspect.work.conformer import encoding


@dataclass(frozen=True, kw_only=True)
class ParakeetWork(Counted):
    """A Parakeet; an input is one sound of the longest kind, a position of a sequence a step."""

    dimensions: ParakeetDimensions

    @property
    @override
    def most_positions(self) -> int:
        return self.dimensions.positions

    @property
    @override
    def width(self) -> int:
        return self.dimensions.width

    @property
    @override
    def usual_prompt(self) -> int:
        return 1

    @override
    def encode(self, inputs: int = 1) -> Work:
        return encoding(self.dimensions.encoder, inputs, self.count("encoder."))

    @override
    def call(
        self, length: int, new: int, *, rows: int = 1, inputs: int = 1, asked: int = 1
    ) -> Work:
        of, each = self.dimensions, rows * new
        layers = of.prediction_layers
        matrices = 8 * layers * of.width**2 + (of.width**2 if layers else 0)
        table, states = of.vocab_size * of.width, 2 * layers * of.width
        return Work(
            linear=2 * each * matrices,
            head=2 * rows * asked * table,
            weights=matrices + table,
            matrices=matrices,
            table=table,
            held=rows * states,
            written=each * states,
            cross=each * of.width,
        )

    @override
    def recompute(self, prompt: int, new: int) -> Work:
        return replace(self.call(0, prompt + new), held=0, cross=0)

    @override
    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        of = self.dimensions
        states, longest = 2 * of.prediction_layers * of.width, of.encoder.positions
        kinds = (
            CacheKind(kind="state", layers=of.prediction_layers, positions=1, numbers=states),
            CacheKind(kind="embeddings", layers=1, positions=longest, numbers=longest * of.width),
        )
        return tuple(kind for kind in kinds if kind.layers)
