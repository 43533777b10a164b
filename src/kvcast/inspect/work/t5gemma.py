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
        of, merged = self.dimensions.decoder, self.dimensions.merged
        tables = {
            stack: self.count(f"{stack}.embedding.") + self.count(f"{stack}.eoi_embedding")
            for stack in ("encoder", "decoder")
        }
        held = self.count("decoder.") - tables["decoder"]
        if not merged:
            held -= self.cross_weights
        return FamilySizes(
            source=self.source,
            width=of.width,
            mixed=of.mixed,
            keys=of.keys,
            feed_forward=3 * of.width * of.inner,
            attentions=1 if merged else 2,
            encoder_weights=self.count("encoder.") - tables["encoder"],
            step_weights=held + self.dimensions.vocab_size * of.width,
        )

    @cached_property
    @override
    def cross_weights(self) -> int:
        return self.count("decoder.", "attention.key_value")
