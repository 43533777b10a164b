"""The dimensions of a decoder-only model: Mistral, Llama, Qwen, Gemma 3 and Mixtral as data.

Knows nothing of weights, text or runtimes.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from kvcast.errors import KvcastError
from kvcast.spec.rotary import Rotary
from kvcast.spec.sizes import MOST_POSITIONS, require_layers, require_one_of, require_positive

ACTIVATIONS = ("silu", "gelu_tanh")


@dataclass(frozen=True, kw_only=True)
class DecoderDimensions:
    """Everything that determines a decoder-only model's tensor shapes and computation.

    Attributes:
        architecture: the checkpoint's name for it, for people only: "llama", "mistral", ...
        vocab_size: rows of the embedding.
        width: size of a hidden state.
        inner: inner width of the feed-forward (of one expert).
        heads: number of query heads.
        kv_heads: number of key and value heads; `heads` is a multiple.
        head_dim: size of a head, even.
        windows: how many positions a query of each layer sees, including its own; None: all.
        max_positions: length of the longest sequence.
        rotary: for layers without a window, and for the others unless `window_rotary` is given.
        window_rotary: for layers with a window (Gemma 3).
        norm_eps: of every RMS norm.
        activation: of the gate, one of ACTIVATIONS.
        attention_scale: factor on the products of queries and keys.
        qkv_bias: whether query, key and value have biases (Qwen 2).
        out_bias: whether attention's output projection has a bias (some Llamas).
        query_key_norm: RMS norm of each head of queries and keys before rotation (Qwen 3, Gemma 3).
        post_norms: norms after attention and feed-forward as well as before (Gemma 3).
        embedding_scale: factor on embeddings (Gemma 3: square root of the width).
        attention_softcap: c in c tanh(x / c), on attention's logits; 0: none.
        logit_softcap: the same, on the model's logits; 0: none.
        tied: whether the head is the embedding.
        experts: number of experts in each feed-forward; 0: no mixture (all but Mixtral).
        experts_per_token: how many of them each token uses.

    """

    architecture: str
    vocab_size: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    max_positions: int
    rotary: Rotary
    norm_eps: float
    attention_scale: float
    window_rotary: Rotary | None = None
    activation: str = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    query_key_norm: bool = False
    post_norms: bool = False
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    tied: bool = True
    experts: int = 0
    experts_per_token: int = 0

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "width", "inner", "heads", "kv_heads", "head_dim", "max_positions")
        require_positive(**{name: getattr(self, name) for name in sizes})
        if self.heads % self.kv_heads:
            raise KvcastError(f"{self.heads} heads are not a multiple of {self.kv_heads} kv_heads")
        if self.max_positions > MOST_POSITIONS:
            raise KvcastError(f"max_positions {self.max_positions} is more than any model has")
        if self.experts and self.activation != "silu":
            raise KvcastError(f"experts with {self.activation} instead of silu are not supported")
        if self.head_dim % 2:
            raise KvcastError(f"head_dim must be even, not {self.head_dim}")
        require_layers(self.layers)
        if not self.windows or not all(map(_is_window, self.windows)):
            raise KvcastError("windows must have one or more layers, each None or 1 or more")
        require_one_of("activation", self.activation, ACTIVATIONS)
        if not 0 <= self.experts_per_token <= self.experts or bool(self.experts) != bool(
            self.experts_per_token
        ):
            raise KvcastError(f"{self.experts_per_token} of {self.experts} experts is not possible")

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.windows)

    def rotary_of(self, layer: int) -> Rotary:
        """Return the rotary embedding of a layer."""
        if self.windows[layer] is not None and self.window_rotary is not None:
            return self.window_rotary
        return self.rotary

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuild from `asdict`'s output; raises KvcastError for missing or unknown fields."""
        try:
            window_rotary = fields["window_rotary"]
            rebuilt = dict(fields) | {
                "windows": tuple(fields["windows"]),
                "rotary": Rotary(**fields["rotary"]),
                "window_rotary": None if window_rotary is None else Rotary(**window_rotary),
            }
            return cls(**rebuilt)
        except (TypeError, KeyError) as error:
            raise KvcastError(f"not the dimensions of a decoder-only model: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as in the manifest."""
        return asdict(self)


def _is_window(window: object) -> bool:
    return window is None or (type(window) is int and 1 <= window <= MOST_POSITIONS)
