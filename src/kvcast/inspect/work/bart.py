"""Work of a BART over sources of tokens. Knows neither bytes nor rates."""

from dataclasses import dataclass
from functools import cached_property

from typing_extensions import override

from kvcast.families.bart import BartDimensions
from kvcast.inspect.work.encoder_decoder import FamilySizes
from kvcast.inspect.work.sources import SourceWork


@dataclass(frozen=True, kw_only=True)
class BartWork(SourceWork):
    """A BART, whose encoder's feed-forward counts as wide as the decoder's."""

    dimensions: BartDimensions

    @cached_property
    @override
    def sizes(self) -> FamilySizes:
        of = self.dimensions
        tables = {stack: self.count(f"{stack}.positions") for stack in ("encoder", "decoder")}
        held = self.count("decoder.") - tables["decoder"] - self.cross_weights
        return FamilySizes(
            source=self.source,
            width=of.width,
            mixed=of.width,
            feed_forward=2 * of.width * of.decoder_inner,
            encoder_weights=self.count("encoder.") - tables["encoder"],
            step_weights=held + of.vocab_size * of.width,
        )
