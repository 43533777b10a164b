"""Work of a model that encodes a source and decodes a target over it.

Knows neither bytes nor rates.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from typing_extensions import override

from kvcast.inspect.work.base import CacheKind, Counted, Work, pairs


@dataclass(frozen=True, kw_only=True)
class FamilySizes:
    """The sizes in which families' counts differ.

    Attributes:
        source: number of positions of an encoded source.
        width: size of a hidden state.
        mixed: size of all heads together.
        feed_forward: number of weights of one feed-forward.
        encoder_weights: number of weights that encoding reads.
        step_weights: number of weights that a call of the decoder reads.
        keys: size of all heads of keys together; 0: `mixed`.
        columns: number of outputs of a decoder layer's matrices, if int8 has a scale for each.
        attentions: how many queries and outputs a layer of the decoder has: one of each for the
            target and for the source, or for both together.

    """

    source: int
    width: int
    mixed: int
    feed_forward: int
    encoder_weights: int
    step_weights: int
    keys: int = 0
    columns: int = 0
    attentions: int = 2

    @property
    def held(self) -> int:
        """Size of a position's keys in caches."""
        return self.keys or self.mixed


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderWork(Counted):
    """An encoder and a decoder, each of layers that are alike; `dimensions` are the family's."""

    dimensions: Any

    @property
    def sizes(self) -> FamilySizes:
        """Sizes that follow from the dimensions."""
        raise NotImplementedError

    @property
    @override
    def width(self) -> int:
        return self.sizes.width

    @property
    @override
    def most_positions(self) -> int:
        most: int = self.dimensions.target_positions
        return most

    @override
    def encode(self, inputs: int = 1) -> Work:
        sizes, layers = self.sizes, self.dimensions.encoder_layers
        heads = 2 * (sizes.mixed + sizes.held)
        matrices = layers * (heads * sizes.width + sizes.feed_forward)
        return Work(
            encoder=2 * inputs * sizes.source * matrices,
            encoder_attention=2 * 2 * inputs * layers * sizes.source**2 * sizes.mixed,
            weights=sizes.encoder_weights,
            encoder_matrices=matrices,
        )

    @override
    def project(self, inputs: int = 1) -> Work:
        sizes = self.sizes
        matrices = self.dimensions.decoder_layers * 2 * sizes.held * sizes.width
        return Work(
            cross_keys_values=2 * inputs * sizes.source * matrices,
            weights=self.cross_weights,
            encoder_matrices=matrices,
        )

    @override
    def call(
        self, length: int, new: int, *, rows: int = 1, inputs: int = 1, asked: int = 1
    ) -> Work:
        sizes, layers, each = self.sizes, self.dimensions.decoder_layers, rows * new
        t, mixed, width, keys = sizes.source, sizes.mixed, sizes.width, sizes.held
        table = self.dimensions.vocab_size * width
        seen = pairs(length + new, None) - pairs(length, None) + new * t
        keys_values = layers * 2 * keys * width
        linear = layers * (2 * sizes.attentions * mixed * width + sizes.feed_forward)
        return Work(
            keys_values=2 * each * keys_values,
            linear=2 * each * linear,
            attention=2 * 2 * rows * layers * mixed * seen,
            head=2 * rows * asked * table,
            weights=sizes.step_weights,
            matrices=keys_values + linear,
            table=table,
            columns=layers * sizes.columns,
            held=rows * layers * 2 * keys * length,
            written=each * layers * 2 * keys,
            cross=inputs * layers * 2 * keys * t,
        )

    @override
    def recompute(self, prompt: int, new: int) -> Work:
        # The encoder's output is kept in any case.
        return replace(self.call(0, prompt + new) + self.project(), held=0, cross=0)

    @override
    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        layers, sizes = self.dimensions.decoder_layers, self.sizes
        return tuple(
            CacheKind(
                kind=kind,
                layers=layers,
                positions=held,
                numbers=layers * 2 * sizes.held * held,
            )
            for kind, held in (("linear", positions), ("cross", sizes.source))
        )

    @cached_property
    def cross_weights(self) -> int:
        """Number of weights that project cross keys and values."""
        return self.count("decoder.", "cross_attention.key_value")
