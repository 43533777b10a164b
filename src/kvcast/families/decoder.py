"""Decoder-only models: Mistral, Llama, Qwen, Gemma 3 and Mixtral as data.

Canonical tensors are [out, in], as in torch's Linear. Query, key and value are one tensor in this
order, and so are gate and up. RMS norms multiply by their weight as it is (Gemma's files store it
minus one). Rotary pairs are in halves of a head. Knows no file format, weights, text or runtimes.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from kvcast.errors import KvcastError
from kvcast.families.base import PROBE_STEPS, Family, PrecisionRoles, Probe
from kvcast.families.caches import self_caches
from kvcast.families.programs import ProgramSignature, decode_program
from kvcast.spec.rotary import Rotary
from kvcast.spec.runtimes import CALIBRATED
from kvcast.spec.sizes import MOST_POSITIONS, require_layers, require_one_of, require_positive

ACTIVATIONS = ("silu", "gelu_tanh")
_PROMPT, _LONGEST_PROMPT = 4, 600


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
        rotary: for layers without a window, and for all layers unless `window_rotary` is given.
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


def tensor_shapes(dimensions: DecoderDimensions) -> dict[str, tuple[int, ...]]:
    """Return every canonical name with its shape."""
    shapes = {
        "embedding.weight": (dimensions.vocab_size, dimensions.width),
        "norm.weight": (dimensions.width,),
    }
    if not dimensions.tied:
        shapes["head.weight"] = (dimensions.vocab_size, dimensions.width)
    for i in range(dimensions.layers):
        layer = _attention_shapes(dimensions) | _feed_forward_shapes(dimensions)
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return {f"decoder.{name}": shape for name, shape in shapes.items()}


def _attention_shapes(dimensions: DecoderDimensions) -> dict[str, tuple[int, ...]]:
    width, head_dim = dimensions.width, dimensions.head_dim
    mixed = dimensions.heads * head_dim
    projected = mixed + 2 * dimensions.kv_heads * head_dim
    shapes = {
        "attention_norm.weight": (width,),
        "attention.qkv.weight": (projected, width),
        "attention.out.weight": (width, mixed),
    }
    if dimensions.qkv_bias:
        shapes["attention.qkv.bias"] = (projected,)
    if dimensions.out_bias:
        shapes["attention.out.bias"] = (width,)
    if dimensions.query_key_norm:
        shapes["attention.query_norm.weight"] = (head_dim,)
        shapes["attention.key_norm.weight"] = (head_dim,)
    if dimensions.post_norms:
        shapes["attention_post_norm.weight"] = (width,)
    return shapes


def _feed_forward_shapes(dimensions: DecoderDimensions) -> dict[str, tuple[int, ...]]:
    width, inner, experts = dimensions.width, dimensions.inner, dimensions.experts
    shapes: dict[str, tuple[int, ...]] = {"feed_forward_norm.weight": (width,)}
    if experts:
        shapes["feed_forward.router.weight"] = (experts, width)
        shapes["feed_forward.gate_up"] = (experts, 2 * inner, width)
        shapes["feed_forward.down"] = (experts, width, inner)
    else:
        shapes["feed_forward.gate_up.weight"] = (2 * inner, width)
        shapes["feed_forward.down.weight"] = (width, inner)
    if dimensions.post_norms:
        shapes["feed_forward_post_norm.weight"] = (width,)
    return shapes


def _programs(dimensions: DecoderDimensions) -> Mapping[str, ProgramSignature]:
    return {"decode": decode_program(self_caches(dimensions), ["logits"])}


def _probe(dimensions: DecoderDimensions) -> Probe:
    """Return prompts as long as the longest window of up to 600 positions, if there are so many.

    So every step wraps around its ring. Rings of longer windows do not wrap here.
    """
    windows = [window for window in dimensions.windows if window and window <= _LONGEST_PROMPT]
    most = dimensions.max_positions - PROBE_STEPS
    length = max(min(max(windows, default=_PROMPT), most), 1)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, dimensions.vocab_size, length) for _ in range(2)]
    return Probe(prompts=prompts)


DECODER = Family(
    name="decoder",
    title="a decoder-only model",
    task="generate",
    interface="decoder-only",
    dimensions=DecoderDimensions,
    positions=lambda dimensions: dimensions.max_positions,
    caches=self_caches,
    programs=_programs,
    tensor_shapes=tensor_shapes,
    precision=PrecisionRoles(
        tables=("decoder.embedding.weight", "decoder.head.weight"),
        outliers=("gate",),
        smoothed=True,
        int8_self_cache=True,
    ),
    probe=_probe,
    program_class="kvcast.models.programs.decoder:DecoderPrograms",
    model_class="kvcast.text.model:TextModel",
    work_class="kvcast.inspect.work.decoder:DecoderWork",
    rotary=lambda _: True,
    calibration_problem=lambda dimensions: (
        f"mixtures of experts have no {CALIBRATED}" if dimensions.experts else ""
    ),
)
