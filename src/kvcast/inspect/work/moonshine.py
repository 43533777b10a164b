"""Work of a Moonshine over positions of sound. Knows neither bytes nor rates."""

from dataclasses import dataclass, replace
from functools import cached_property

from typing_extensions import override

from kvcast.families.moonshine import MoonshineDimensions
from kvcast.inspect.work.base import Work
from kvcast.inspect.work.encoder_decoder import FamilySizes
from kvcast.inspect.work.sources import SourceWork


@dataclass(frozen=True, kw_only=True)
class MoonshineWork(SourceWork):
    """A Moonshine; convolutions and frames before the encoder's layers are not counted."""

    dimensions: MoonshineDimensions

    @cached_property
    @override
    def sizes(self) -> FamilySizes:
        of = self.dimensions
        tables = self.count("decoder.source") + self.count("decoder.embedding")
        held = self.count("decoder.") - tables - self.cross_weights
        return FamilySizes(
            source=self.source,
            width=of.width,
            mixed=of.heads * of.head_dim,
            feed_forward=3 * of.width * of.inner,
            encoder_weights=self.count("encoder."),
            step_weights=held + of.vocab_size * of.width,
        )

    @override
    def encode(self, inputs: int = 1) -> Work:
        of, t = self.dimensions, self.source
        mixed = of.encoder_heads * of.encoder_head_dim
        matrices = of.encoder_layers * of.encoder_width * (4 * mixed + 2 * of.encoder_inner)
        seen = sum(min(t, 1 + sum(window)) for window in of.windows) or of.encoder_layers * t
        return replace(
            super().encode(inputs),
            encoder=2 * inputs * t * matrices,
            encoder_attention=2 * 2 * inputs * t * seen * mixed,
            encoder_matrices=matrices,
        )
