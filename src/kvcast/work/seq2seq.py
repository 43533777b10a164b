"""Counts the work of text-to-text models, T5 and UniLM."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

from typing_extensions import override

from kvcast.checkpoints import t5_names, unilm_names
from kvcast.errors import UsageError
from kvcast.spec.t5 import T5Dimensions
from kvcast.spec.unilm import UnilmDimensions
from kvcast.work.base import CacheKind, DecoderOnlyWork, EncoderDecoderWork, Work, pairs


@dataclass(frozen=True, kw_only=True)
class T5Work(EncoderDecoderWork):
    """A T5 with sources of `source` tokens; a prompt is the start of its target.

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
    def width(self) -> int:
        return self.dimensions.width

    @property
    @override
    def usual_prompt(self) -> int:
        return 1  # the token that targets begin with

    @override
    def encode(self, inputs: int = 1) -> Work:
        sizes, t = self.dimensions, self.source
        matrices = sizes.encoder_layers * (4 * self.key_size * sizes.width + self._feed_forward)
        return Work(
            encoder=2 * inputs * t * matrices,
            encoder_attention=2 * 2 * inputs * sizes.encoder_layers * t * t * self.key_size,
            weights=self._count("encoder.") - self._table,
            encoder_matrices=matrices,
        )

    @override
    def project(self, inputs: int = 1) -> Work:
        return Work(
            cross_keys_values=2 * inputs * self.source * self._cross_weights,
            weights=self._cross_weights,
            encoder_matrices=self._cross_weights,
        )

    @override
    def call(
        self, length: int, new: int, *, rows: int = 1, inputs: int = 1, asked: int = 1
    ) -> Work:
        sizes, t, mixed, each = self.dimensions, self.source, self.key_size, rows * new
        layers = sizes.decoder_layers
        seen = pairs(length + new, None) - pairs(length, None) + new * t
        keys_values = layers * 2 * mixed * sizes.width
        # Query and output of both attentions, and the feed-forward.
        linear = layers * (4 * mixed * sizes.width + self._feed_forward)
        return Work(
            keys_values=2 * each * keys_values,
            linear=2 * each * linear,
            attention=2 * 2 * rows * layers * mixed * seen,
            head=2 * rows * asked * sizes.vocab_size * sizes.width,
            weights=self._step_weights,
            matrices=keys_values + linear,
            table=sizes.vocab_size * sizes.width,
            held=rows * layers * 2 * mixed * length,
            written=each * layers * 2 * mixed,
            cross=inputs * layers * 2 * mixed * t,
        )

    @property
    @override
    def input_positions(self) -> int:
        return self.source

    @property
    @override
    def key_size(self) -> int:
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
        return self.dimensions.decoder_layers * 2 * self.key_size * self.dimensions.width

    @cached_property
    def _step_weights(self) -> int:
        head = self.dimensions.vocab_size * self.dimensions.width
        return self._count("decoder.") - self._table - self._cross_weights + head

    def _count(self, start: str) -> int:
        shapes = t5_names.tensor_shapes(self.dimensions)
        return sum(prod(shape) for name, shape in shapes.items() if name.startswith(start))


@dataclass(frozen=True, kw_only=True)
class UnilmWork(DecoderOnlyWork):
    """A UniLM generator, whose prompt is its source."""

    dimensions: UnilmDimensions

    @cached_property
    @override
    def parameters(self) -> int:
        return sum(map(prod, self._shapes.values()))

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
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return unilm_names.tensor_shapes(self.dimensions)

    @cached_property
    def _step_weights(self) -> int:
        """Number of weights without tables of segments and positions, and without the pooler."""
        idle = ("segments.", "positions.", "pooler.")
        return sum(prod(shape) for name, shape in self._shapes.items() if not name.startswith(idle))
