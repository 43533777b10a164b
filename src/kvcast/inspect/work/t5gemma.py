"""Work of a T5Gemma over sources of tokens. Knows neither bytes nor rates."""

from dataclasses import dataclass
from functools import cached_property

from typing_extensions import override

from kvcast.families.t5gemma import T5GemmaDimensions
from kvcast.inspect.work.encoder_decoder import FamilySizes
from kvcast.inspect.work.sources import SourceWork


@dataclass(frozen=True, kw_only=True)
class T5GemmaWork(SourceWork):
    """A T5Gemma, whose encoder counts as wide as its decoder; windows are not counted."""

    dimensions: T5GemmaDimensions

    @cached_property
    @override
    def sizes(self) -> FamilySizes:
        of = self.dimensions.decoder
        tables = {stack: self.count(f"{stack}.embedding.") for stack in ("encoder", "decoder")}
        held = self.count("decoder.") - tables["decoder"] - self.cross_weights
        return FamilySizes(
            source=self.source,
            width=of.width,
            mixed=of.mixed,
            keys=of.keys,
            feed_forward=3 * of.width * of.inner,
            encoder_weights=self.count("encoder.") - tables["encoder"],
            step_weights=held + self.dimensions.vocab_size * of.width,
        )
