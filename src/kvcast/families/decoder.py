"""Decoder-only models: Mistral, Llama, Qwen, Gemma 3 and Mixtral as data.

Canonical tensors are [out, in], as in torch's Linear. Query, key and value are one tensor in this
order, and so are gate and up. RMS norms multiply by their weight as it is (Gemma's files store it
minus one). Rotary pairs are in halves of a head. Knows no file format, weights, text or runtimes.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families import mixtures
from kvcast.families.base import PROBE_STEPS, Family, PrecisionRoles, Probe
from kvcast.families.blocks import TOKENS, attended, chosen, flat, in_rows, positions, written
from kvcast.families.caches import self_caches
from kvcast.families.programs import ProgramSignature, decode_program
from kvcast.spec.program import Constant, Node, Program
from kvcast.spec.rotary import Rotary
from kvcast.spec.runtimes import CALIBRATED
from kvcast.spec.sizes import MOST_POSITIONS, require_layers, require_one_of, require_positive
from kvcast.spec.writer import ProgramWriter

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
        experts: number of experts in each feed-forward; 0: no mixture.
        experts_per_token: how many of them each token uses.
        experts_normalised: whether the shares of a token's experts sum to 1 (Mixtral), and not
            those of all (Qwen 2).
        shared_inner: inner width of an expert that all tokens go through (Qwen 2); 0: none.
        dense_layers: numbers of layers that have one feed-forward instead of experts.
        dense_inner: inner width of their feed-forward.
        expert_bias: whether the router and the experts' matrices have biases (GPT-OSS).
        swiglu_limit: of experts' gates and, on both sides, of what they multiply, to which 1 is
            added (GPT-OSS); 0: none.
        swiglu_alpha: with a limit, factor on gates in their sigmoid.
        sinks: whether each head has a learned logit beside those of a query, whose share gives
            nothing (GPT-OSS).

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
    experts_normalised: bool = True
    shared_inner: int = 0
    dense_layers: tuple[int, ...] = ()
    dense_inner: int = 0
    expert_bias: bool = False
    swiglu_limit: float = 0.0
    swiglu_alpha: float = 0.0
    sinks: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "width", "inner", "heads", "kv_heads", "head_dim", "max_positions")
        require_positive(**{name: getattr(self, name) for name in sizes})
        if self.heads % self.kv_heads:
            raise KvcastError(f"{self.heads} heads are not a multiple of {self.kv_heads} kv_heads")
        if self.max_positions > MOST_POSITIONS:
            raise KvcastError(f"max_positions {self.max_positions} is more than any model has")
        if self.head_dim % 2:
            raise KvcastError(f"head_dim must be even, not {self.head_dim}")
        for rotary in filter(None, (self.rotary, self.window_rotary)):
            rotary.check(self.head_dim)
        require_layers(self.layers)
        if not self.windows or not all(map(_is_window, self.windows)):
            raise KvcastError("windows must have one or more layers, each None or 1 or more")
        require_one_of("activation", self.activation, ACTIVATIONS)
        mixtures.check(self)

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
                "dense_layers": tuple(fields.get("dense_layers", ())),
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
        layer = _attention_shapes(dimensions) | _feed_forward_shapes(dimensions, i)
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
    if dimensions.sinks:
        shapes["attention.sinks"] = (dimensions.heads,)
    if dimensions.post_norms:
        shapes["attention_post_norm.weight"] = (width,)
    return shapes


def _feed_forward_shapes(dimensions: DecoderDimensions, i: int) -> dict[str, tuple[int, ...]]:
    width, inner = dimensions.width, dimensions.dense_inner or dimensions.inner
    shapes: dict[str, tuple[int, ...]] = {"feed_forward_norm.weight": (width,)}
    if mixtures.is_mixture(dimensions, i):
        of_experts = mixtures.mixture_shapes(dimensions)
        shapes |= {f"feed_forward.{name}": shape for name, shape in of_experts.items()}
    else:
        shapes["feed_forward.gate_up.weight"] = (2 * inner, width)
        shapes["feed_forward.down.weight"] = (width, inner)
    if dimensions.post_norms:
        shapes["feed_forward_post_norm.weight"] = (width,)
    return shapes


def _programs(dimensions: DecoderDimensions) -> Mapping[str, ProgramSignature]:
    return {"decode": decode_program(self_caches(dimensions), ["logits"])}


def _written(dimensions: DecoderDimensions) -> Mapping[str, Program]:
    return written(_programs(dimensions), dimensions, decode=_decode)


def _decode(write: ProgramWriter, dimensions: DecoderDimensions) -> Program:
    """Write `decode`: new tokens to logits."""
    x = write.embedding("decoder.embedding.weight", TOKENS)
    if dimensions.embedding_scale != 1:
        x = write.step("mul", x, dimensions.embedding_scale)
    for i in range(dimensions.layers):
        layer = f"decoder.layers.{i}"
        normed = write.rms_norm(x, f"{layer}.attention_norm", dimensions.norm_eps)
        mixed = _attention(write, normed, dimensions, i)
        x = _added(write, x, mixed, f"{layer}.attention", "out", dimensions)
        normed = write.rms_norm(x, f"{layer}.feed_forward_norm", dimensions.norm_eps)
        if mixtures.is_mixture(dimensions, i):
            x = _experts(write, x, normed, f"{layer}.feed_forward", dimensions)
            continue
        gate_up = f"{layer}.feed_forward.gate_up"
        inner = write.linear(normed, gate_up, gate=dimensions.activation)
        x = _added(write, x, inner, f"{layer}.feed_forward", "down", dimensions)
    normed = write.rms_norm(flat(write, chosen(write, x)), "decoder.norm", dimensions.norm_eps)
    logits = write.linear(normed, "decoder.embedding" if dimensions.tied else "decoder.head")
    if softcap := dimensions.logit_softcap:
        capped = write.step("tanh", write.step("div", logits, softcap))
        logits = write.step("mul", capped, softcap)
    return write.program(logits=in_rows(write, logits))


def _attention(write: ProgramWriter, normed: Node, dimensions: DecoderDimensions, i: int) -> Node:
    layer, size = f"decoder.layers.{i}.attention", dimensions.head_dim
    projected = write.linear(normed, f"{layer}.qkv", bias=dimensions.qkv_bias)
    keys = dimensions.kv_heads * size
    query, key, value = write.split(projected, [dimensions.heads * size, keys, keys])
    if dimensions.query_key_norm:
        query, key = (
            write.step("flatten", write.rms_norm(heads, name, dimensions.norm_eps), -2)
            for part, name in ((query, f"{layer}.query_norm"), (key, f"{layer}.key_norm"))
            for heads in [write.step("unflatten", part, -1, [-1, size])]
        )
    rotary = dimensions.rotary_of(i)
    table = _rotary_kinds(dimensions).index(rotary)
    if rotary.query_beta:
        query = _scaled(write, query, Constant(f"query_scales_{table}"))
    return attended(
        write,
        i,
        (query, key, value),
        dimensions.attention_scale,
        window=dimensions.windows[i] or 0,
        softcap=dimensions.attention_softcap,
        cosines=Constant(f"cosines_{table}"),
        sines=Constant(f"sines_{table}"),
        sinks=Constant(f"{layer}.sinks") if dimensions.sinks else None,
    )


def _scaled(write: ProgramWriter, query: Node, scales: Constant) -> Node:
    """Multiply queries by the factors of their positions."""
    factors = write.step("index_select", scales, 0, write.step("flatten", positions(write)))
    sizes = [write.size(TOKENS, 0), write.size(TOKENS, 1), 1]
    return write.step("mul", query, write.step("view", factors, sizes))


def _added(
    write: ProgramWriter, x: Node, inner: Node, block: str, name: str, dimensions: DecoderDimensions
) -> Node:
    """Add a block's last product, normed in models that norm it, to its input."""
    bias = dimensions.out_bias and name == "out"
    if not dimensions.post_norms:
        return write.linear(inner, f"{block}.{name}", bias=bias, residual=x)
    product = write.linear(inner, f"{block}.{name}", bias=bias)
    return write.step("add", x, write.rms_norm(product, f"{block}_post_norm", dimensions.norm_eps))


def _experts(
    write: ProgramWriter, x: Node, normed: Node, block: str, dimensions: DecoderDimensions
) -> Node:
    mixed = mixtures.mixture(write, normed, block, dimensions)
    if dimensions.post_norms:
        mixed = write.rms_norm(mixed, f"{block}_post_norm", dimensions.norm_eps)
    return write.step("add", x, mixed)


def _rotary_kinds(dimensions: DecoderDimensions) -> list[Rotary]:
    """Return the layers' rotary embeddings, each once."""
    return list(dict.fromkeys(map(dimensions.rotary_of, range(dimensions.layers))))


def _constants(
    dimensions: DecoderDimensions,
    tensors: Mapping[str, NDArray[np.generic]],  # noqa: ARG001
) -> dict[str, NDArray[np.generic]]:
    """Return the tables of angles, and of factors on queries."""
    tables: dict[str, NDArray[np.generic]] = {}
    for i, rotary in enumerate(_rotary_kinds(dimensions)):
        cosines, sines = rotary.tables(dimensions.max_positions, dimensions.head_dim)
        tables |= {f"cosines_{i}": cosines, f"sines_{i}": sines}
        if rotary.query_beta:
            tables[f"query_scales_{i}"] = rotary.query_scales(dimensions.max_positions)
    return tables


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
    written=_written,
    constants=_constants,
    tensor_shapes=tensor_shapes,
    precision=PrecisionRoles(
        outliers=("gate",),
        smoothed=True,
        int8_self_cache=True,
    ),
    probe=_probe,
    model_class="kvcast.text.model:TextModel",
    work_class="kvcast.inspect.work.decoder:DecoderWork",
    rotary=lambda _: True,
    calibration_problem=lambda dimensions: (
        f"mixtures of experts have no {CALIBRATED}" if dimensions.experts else ""
    ),
)
