"""The dimensions of a Whisper model, as one immutable value.

Knows nothing of weights, text or runtimes.
"""

from dataclasses import asdict, dataclass
from typing import Any, Self

from kvcast.errors import KvcastError
from kvcast.spec.sizes import require_layers, require_positive


@dataclass(frozen=True, kw_only=True)
class WhisperDimensions:
    """Sizes that determine all tensor shapes of a Whisper model."""

    n_mels: int
    vocab_size: int
    d_model: int
    encoder_layers: int
    encoder_heads: int
    decoder_layers: int
    decoder_heads: int
    source_positions: int = 1500
    target_positions: int = 448

    def __post_init__(self) -> None:
        require_positive(**asdict(self))
        require_layers(self.encoder_layers, self.decoder_layers)
        for heads in (self.encoder_heads, self.decoder_heads):
            if self.d_model % heads:
                raise KvcastError(f"d_model {self.d_model} is not a multiple of {heads} heads")

    @property
    def head_dim(self) -> int:
        """Size of a decoder head."""
        return self.d_model // self.decoder_heads

    @property
    def is_multilingual(self) -> bool:
        """Whether it is multilingual: English-only vocabularies have at most 51,864 entries."""
        return self.vocab_size >= 51865

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Rebuild from `asdict`'s output; raises KvcastError for missing or unknown fields."""
        try:
            return cls(**fields)
        except TypeError as error:
            raise KvcastError(f"not the dimensions of a Whisper model: {error}") from None
