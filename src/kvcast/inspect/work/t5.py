"""Work of a T5 over sources of tokens. Knows neither bytes nor rates."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.families.t5 import T5, T5Dimensions
from kvcast.inspect.work.encoder_decoder import EncoderDecoderWork, FamilySizes


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
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return T5.tensor_shapes(self.dimensions)

    @property
    @override
    def usual_prompt(self) -> int:
        return 1  # the token that targets begin with

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
