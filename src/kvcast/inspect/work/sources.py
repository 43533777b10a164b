"""Work of models over sources of tokens, as far as it is one. Knows neither bytes nor rates."""

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from kvcast.errors import UsageError
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

    @property
    @override
    def usual_prompt(self) -> int:
        return 1  # the token that targets begin with
