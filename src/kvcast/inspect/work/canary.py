"""Work of a Canary over sounds of the longest kind. Knows neither bytes nor rates."""

from dataclasses import dataclass
from functools import cached_property

from typing_extensions import override

from kvcast.families.canary import CanaryDimensions
from kvcast.inspect.work.base import Work
from kvcast.inspect.work.conformer import encoding
from kvcast.inspect.work.encoder_decoder import EncoderDecoderWork, FamilySizes


@dataclass(frozen=True, kw_only=True)
class CanaryWork(EncoderDecoderWork):
    """A Canary; an input is one sound of the longest kind."""

    dimensions: CanaryDimensions

    @property
    @override
    def usual_prompt(self) -> int:
        return 10  # what is heard, in which language, and how it is written

    @cached_property
    @override
    def sizes(self) -> FamilySizes:
        of = self.dimensions
        idle = self.cross_weights + self.count("decoder.positions")
        return FamilySizes(
            source=of.source_positions,
            width=of.width,
            mixed=of.width,
            feed_forward=2 * of.width * of.inner,
            encoder_weights=self.count("encoder."),
            step_weights=self.count("decoder.") - idle + of.vocab_size * of.width,
        )

    @override
    def encode(self, inputs: int = 1) -> Work:
        return encoding(self.dimensions.encoder, inputs, self.count("encoder."))
