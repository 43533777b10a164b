"""Counts the work of text-to-text models, T5 and UniLM, as `work` does."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from typing_extensions import override

from kvcast.checkpoints import t5_names, unilm_names
from kvcast.errors import UsageError
from kvcast.inspect.work import CacheKind, Counted, Work, pairs
from kvcast.spec.t5 import T5Dimensions
from kvcast.spec.unilm import UnilmDimensions


@dataclass(frozen=True, kw_only=True)
class T5Work(Counted):
    """A T5 with a source of `source` tokens; a prompt is the start of its target.

    Lookups in tables of positions are not counted.
    """

    dimensions: T5Dimensions
    source: int = 128

    def __post_init__(self) -> None:
        if self.source > self.dimensions.source_positions:
            raise UsageError(
                f"a source of {self.source:,} tokens is too long: the model has "
                f"{self.dimensions.source_positions:,} positions"
            )

    @cached_property
    @override
    def parameters(self) -> int:
        return self._count("")

    @property
    @override
    def most_positions(self) -> int:
        return self.dimensions.target_positions

    @property
    @override
    def width(self) -> int:
        return self.dimensions.width

    @property
    @override
    def usual_prompt(self) -> int:
        """The token that targets start with."""
        return 1

    @override
    def encode(self) -> Work:
        sizes, t = self.dimensions, self.source
        matrices = 4 * self._mixed * sizes.width + self._feed_forward
        products = 2 * t * matrices + 2 * 2 * t * t * self._mixed
        return Work(
            encoder=sizes.encoder_layers * products,
            weights=self._count("encoder.") - self._table,
        )

    @override
    def project(self) -> Work:
        return Work(
            cross_keys_values=2 * self.source * self._cross_weights, weights=self._cross_weights
        )

    @override
    def call(self, length: int, new: int) -> Work:
        sizes, t, mixed = self.dimensions, self.source, self._mixed
        layers = sizes.decoder_layers
        seen = pairs(length + new, None) - pairs(length, None) + new * t
        return Work(
            keys_values=2 * new * layers * 2 * mixed * sizes.width,
            # Query and output of both attentions, and the feed-forward.
            linear=2 * new * layers * (4 * mixed * sizes.width + self._feed_forward),
            attention=2 * 2 * layers * mixed * seen,
            head=2 * sizes.vocab_size * sizes.width,
            weights=self._step_weights,
            cached=layers * 2 * mixed * (length + t),
        )

    @override
    def recompute(self, prompt: int, new: int) -> Work:
        """Count them with the encoder's output kept, as it is kept in any case."""
        return replace(self.call(0, prompt + new) + self.project(), cached=0)

    @override
    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        layers = self.dimensions.decoder_layers
        return tuple(
            CacheKind(
                kind=kind,
                layers=layers,
                positions=held,
                numbers=layers * 2 * self._mixed * held,
            )
            for kind, held in (("linear", positions), ("cross", self.source))
        )

    @property
    def _mixed(self) -> int:
        """Size of all heads together."""
        return self.dimensions.heads * self.dimensions.head_dim

    @property
    def _feed_forward(self) -> int:
        """Number of weights of one feed-forward."""
        sizes = self.dimensions
        return (3 if sizes.gated else 2) * sizes.width * sizes.inner

    @property
    def _table(self) -> int:
        return self.dimensions.buckets * self.dimensions.heads

    @property
    def _cross_weights(self) -> int:
        return self.dimensions.decoder_layers * 2 * self._mixed * self.dimensions.width

    @cached_property
    def _step_weights(self) -> int:
        head = self.dimensions.vocab_size * self.dimensions.width
        return self._count("decoder.") - self._table - self._cross_weights + head

    def _count(self, start: str) -> int:
        shapes = t5_names.tensor_shapes(self.dimensions)
        return sum(prod(shape) for name, shape in shapes.items() if name.startswith(start))


@dataclass(frozen=True, kw_only=True)
class UnilmWork(Counted):
    """A UniLM generator, whose prompt is its source."""

    dimensions: UnilmDimensions

    @cached_property
    @override
    def parameters(self) -> int:
        return sum(map(prod, self._shapes.values()))

    @property
    @override
    def most_positions(self) -> int:
        return self.dimensions.max_positions

    @property
    @override
    def width(self) -> int:
        return self.dimensions.width

    @property
    @override
    def usual_prompt(self) -> int:
        return min(128, self.most_positions)

    @override
    def encode(self) -> Work:
        return Work()

    @override
    def project(self) -> Work:
        return Work()

    @override
    def call(self, length: int, new: int) -> Work:
        """Count a call; one on an empty cache processes the source, whose tokens all see it."""
        seen = pairs(length + new, None) - pairs(length, None) if length else new * new
        return self._work(length, new, seen)

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

    def _work(self, length: int, new: int, seen: int) -> Work:
        """Count `new` tokens, given the number of pairs of a query and a key that it sees."""
        sizes = self.dimensions
        width, embedded = sizes.width, sizes.embedding_width
        projection = embedded * width if embedded != width else 0
        layer = 2 * width * width + 2 * width * sizes.inner
        return Work(
            keys_values=2 * new * sizes.layers * 2 * width * width,
            linear=2 * new * (sizes.layers * layer + projection),
            attention=2 * 2 * sizes.layers * width * seen,
            head=2 * embedded * (width + sizes.vocab_size),
            weights=self._step_weights,
            cached=sizes.layers * 2 * width * length,
        )

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return unilm_names.tensor_shapes(self.dimensions)

    @cached_property
    def _step_weights(self) -> int:
        """Number of weights without tables of segments and positions, and without the pooler."""
        idle = ("segments.", "positions.", "pooler.")
        return sum(prod(shape) for name, shape in self._shapes.items() if not name.startswith(idle))
