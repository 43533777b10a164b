"""Work of a T5 over sources of tokens. Knows neither bytes nor rates."""

from dataclasses import dataclass
from functools import cached_property

from typing_extensions import override

from kvcast.families.t5 import T5Dimensions
from kvcast.inspect.work.encoder_decoder import FamilySizes
from kvcast.inspect.work.sources import SourceWork


@dataclass(frozen=True, kw_only=True)
class T5Work(SourceWork):
    """A T5."""

    dimensions: T5Dimensions

    @cached_property
    @override
    def sizes(self) -> FamilySizes:
        of, head = self.dimensions, self.dimensions.vocab_size * self.dimensions.width
        idle = self.count("decoder.", ".bias.")
        return FamilySizes(
            source=self.source,
            width=of.width,
            mixed=of.heads * of.head_dim,
            feed_forward=(3 if of.gated else 2) * of.width * of.inner,
            encoder_weights=self.count("encoder.") - self.count("encoder.", ".bias."),
            step_weights=self.count("decoder.") - idle - self.cross_weights + head,
        )
