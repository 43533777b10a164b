"""Work of models over sources of tokens, as far as it is one. Knows neither bytes nor rates."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.families.table import family_with
from kvcast.inspect.work.encoder_decoder import EncoderDecoderWork


@dataclass(frozen=True, kw_only=True)
class SourceWork(EncoderDecoderWork):
    """A model with sources of `source` tokens; a prompt is the start of its target.

    Lookups in tables of positions are not counted.
    """

    dimensions: Any
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
        return family_with(self.dimensions).tensor_shapes(self.dimensions)

    @property
    @override
    def usual_prompt(self) -> int:
        return 1  # the token that targets begin with
