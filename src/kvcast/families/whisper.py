"""The dimensions of a Whisper model, as one immutable value.

Knows nothing of weights, text or runtimes.
"""

from dataclasses import asdict, dataclass
from typing import Any, Self

from kvcast.errors import KvcastError
from kvcast.spec.sizes import require_layers, require_positive

Heads = tuple[tuple[int, int], ...]
"""Pairs of a decoder layer and one of its heads, both counted from 0."""


@dataclass(frozen=True, kw_only=True)
class WhisperDimensions:
    """Sizes that determine all tensor shapes of a Whisper model, and its alignment heads.

    `alignment_heads` are the heads whose cross-attention follows the speech, which words are placed
    in time by. Where none are given they are, as in openai-whisper, all heads of the upper half of
    the decoder's layers.
    """

    n_mels: int
    vocab_size: int
    d_model: int
    encoder_layers: int
    encoder_heads: int
    decoder_layers: int
    decoder_heads: int
    source_positions: int = 1500
    target_positions: int = 448
    alignment_heads: Heads = ()

    def __post_init__(self) -> None:
        sizes = asdict(self)
        del sizes["alignment_heads"]
        require_positive(**sizes)
        require_layers(self.encoder_layers, self.decoder_layers)
        for heads in (self.encoder_heads, self.decoder_heads):
            if self.d_model % heads:
                raise KvcastError(f"d_model {self.d_model} is not a multiple of {heads} heads")
        if not self.alignment_heads:
            object.__setattr__(self, "alignment_heads", self._upper_half())
        self._check_alignment_heads()

    def _upper_half(self) -> Heads:
        layers, heads = self.decoder_layers, self.decoder_heads
        return tuple((layer, head) for layer in range(layers // 2, layers) for head in range(heads))

    def _check_alignment_heads(self) -> None:
        for layer, head in self.alignment_heads:
            if not (0 <= layer < self.decoder_layers and 0 <= head < self.decoder_heads):
                raise KvcastError(
                    f"alignment_heads names head {head} of layer {layer}, counted from 0, and the "
                    f"decoder has {self.decoder_layers} layers of {self.decoder_heads} heads"
                )
        if len(set(self.alignment_heads)) < len(self.alignment_heads):
            raise KvcastError("alignment_heads names a head twice")

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
        heads = head_pairs(fields.get("alignment_heads"))
        if not heads:
            raise KvcastError("not the dimensions of a Whisper model: no alignment_heads")
        try:
            return cls(**{**fields, "alignment_heads": heads})
        except TypeError as error:
            raise KvcastError(f"not the dimensions of a Whisper model: {error}") from None


def head_pairs(listed: object) -> Heads:
    """Return [layer, head] pairs as JSON has them as tuples; KvcastError for anything else."""
    pairs = []
    for item in listed if isinstance(listed, list | tuple) else [listed]:
        if not isinstance(item, list | tuple) or [type(number) for number in item] != [int, int]:
            raise KvcastError("alignment_heads must be a list of pairs of a layer and a head")
        pairs.append((item[0], item[1]))
    return tuple(pairs)
