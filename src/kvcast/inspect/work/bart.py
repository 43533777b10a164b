"""Work of a BART over sources of tokens. Knows neither bytes nor rates."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.families.bart import BART, BartDimensions
from kvcast.inspect.work.encoder_decoder import EncoderDecoderWork, FamilySizes


@dataclass(frozen=True, kw_only=True)
class BartWork(EncoderDecoderWork):
    """A BART with sources of `source` tokens; a prompt is the start of its target.

    Lookups in tables of positions are not counted, and the encoder's feed-forward counts as wide as
    the decoder's.
    """

    dimensions: BartDimensions
    source: int = 128

    def __post_init__(self) -> None:
        if self.source > self.dimensions.source_positions:
            raise UsageError(
                f"a source of {self.source:,} tokens is too long: the model has "
                f"{self.dimensions.source_positions:,} positions"
            )

    @cached_property
    @override
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return BART.tensor_shapes(self.dimensions)

    @property
    @override
    def usual_prompt(self) -> int:
        return 1  # the token that targets begin with

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
