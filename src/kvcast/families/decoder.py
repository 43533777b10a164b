"""Decoder-only models: Llama, Mistral, Qwen, Gemma, OLMo, Cohere, GPT-NeoX and others as data.

Canonical tensors are [out, in], as in torch's Linear. Query, key and value are one tensor in this
order, and so are gate and up. RMS norms multiply by their weight as it is (Gemma's files store it
minus one). Rotary pairs are in halves of a head. Knows no file format, weights, text or runtimes.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families import convolutions, mixtures
from kvcast.families.base import PROBE_STEPS, Family, PrecisionRoles, Probe
from kvcast.families.blocks import TOKENS, attended, chosen, flat, in_rows, positions, written
from kvcast.families.caches import CacheLayers, self_caches
from kvcast.families.convolutions import ATTENTION, DELTA
from kvcast.families.delta_nets import DeltaNet
from kvcast.families.programs import ProgramSignature, decode_program
from kvcast.spec.program import Constant, Node, Program
from kvcast.spec.rotary import Rotary
from kvcast.spec.runtimes import CALIBRATED
from kvcast.spec.sizes import MOST_POSITIONS, require_layers, require_one_of, require_positive
from kvcast.spec.writer import ProgramWriter

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
NORMS = ("rms", "layer")
_PROMPT, _LONGEST_PROMPT = 4, 600
_LEAST_FACTOR = 1e-4  # published ones are 0.1 and more
_POSITIONS, _NO_BIAS = "decoder.positions", "no_bias"
EMBEDDING = "decoder.embedding.weight"


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
        rotary: for layers without a window, and for all layers unless `window_rotary` is given;
            None: no rotation (Cohere 2).
        window_rotary: for layers with a window (Gemma 3).
        unrotated: numbers of further layers without rotation (SmolLM 3).
        learned_positions: whether an embedding of each position is added to tokens' (GPT-2).
        norm: kind of the norms, one of NORMS.
        norm_eps: of every norm.
        norm_bias: whether layer norms have biases (all but Cohere's).
        activation: of the gate, one of ACTIVATIONS; of the inner layer where there is no gate.
        gated: whether feed-forwards have a gate (all but StarCoder 2, GPT-NeoX and Phi).
        attention_scale: factor on the products of queries and keys.
        qkv_bias: whether query, key and value have biases (Qwen 2).
        out_bias: whether attention's output projection has a bias (some Llamas).
        feed_forward_bias: whether the feed-forward's matrices have biases.
        head_bias: whether the head has a bias (Phi).
        query_key_norm: norm of each head of queries and keys before rotation (Qwen 3, Gemma 3).
        whole_query_key_norm: whether that norm is of all heads together (OLMo 2).
        pre_norms: norms before attention and feed-forward (all but OLMo 2 and EXAONE 4).
        post_norms: norms after attention and feed-forward (Gemma 2 and 3, OLMo 2).
        parallel: whether the feed-forward reads what attention reads, and not its result (Cohere).
        shared_norm: whether both read one norm, attention's (Cohere; not GPT-NeoX).
        embedding_scale: factor on embeddings (Gemma: square root of the width).
        attention_softcap: c in c tanh(x / c), on attention's logits; 0: none.
        logit_softcap: the same, on the model's logits; 0: none.
        logit_scale: factor on the head's input (Cohere's and Granite's on logits).
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
        mixers: of each layer one of `convolutions.MIXERS`; empty: all are attention.
        convolution: length of a convolution, its own position included; 0: there is none.
        convolution_bias: whether convolutions and their projections have biases.
        delta: sizes of layers with delta nets (Qwen 3.5).
        attention_gate: whether attention is multiplied by the sigmoid of a projection (Qwen 3.5).

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
    rotary: Rotary | None
    norm_eps: float
    attention_scale: float
    window_rotary: Rotary | None = None
    unrotated: tuple[int, ...] = ()
    learned_positions: bool = False
    norm: str = "rms"
    norm_bias: bool = False
    activation: str = "silu"
    gated: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    feed_forward_bias: bool = False
    head_bias: bool = False
    query_key_norm: bool = False
    whole_query_key_norm: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    parallel: bool = False
    shared_norm: bool = False
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    logit_scale: float = 1.0
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
    mixers: tuple[str, ...] = ()
    convolution: int = 0
    convolution_bias: bool = False
    delta: DeltaNet | None = None
    attention_gate: bool = False

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
        if not all(type(i) is int and 0 <= i < self.layers for i in self.unrotated):
            raise KvcastError(f"layers without rotation must be some of {self.layers} layers")
        require_one_of("activation", self.activation, ACTIVATIONS)
        require_one_of("norm", self.norm, NORMS)
        self._check_norms()
        for name in ("norm_eps", "attention_scale", "embedding_scale", "logit_scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise KvcastError(f"{name} must be a finite number above 0")
        mixtures.check(self)
        convolutions.check(self)
        if self.experts and (self.feed_forward_bias or not self.gated):
            raise KvcastError("experts with biases or without gates are not supported")

    def _check_norms(self) -> None:
        if self.norm_bias and self.norm == "rms":
            raise KvcastError("RMS norms with biases are not supported")
        if self.query_key_norm and self.norm == "layer" and not self.norm_bias:
            raise KvcastError("layer norms of queries and keys without biases are not supported")
        if not (self.pre_norms or self.post_norms):
            raise KvcastError("a layer without norms is not supported")
        if self.shared_norm and not (self.parallel and self.pre_norms):
            raise KvcastError("only parallel blocks share a norm")

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.windows)

    def mixer(self, layer: int) -> str:
        """Return how a layer mixes positions, one of `convolutions.MIXERS`."""
        return self.mixers[layer] if self.mixers else ATTENTION

    def rotary_of(self, layer: int) -> Rotary | None:
        """Return the rotary embedding of a layer; None where there is none."""
        if layer in self.unrotated:
            return None
        if self.windows[layer] is not None and self.window_rotary is not None:
            return self.window_rotary
        return self.rotary

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuild from `asdict`'s output; raises KvcastError for missing or unknown fields."""
        try:
            rotaries = {name: fields[name] for name in ("rotary", "window_rotary")}
            rebuilt = dict(fields) | {
                "windows": tuple(fields["windows"]),
                "mixers": tuple(fields.get("mixers", ())),
                "delta": (sizes := fields.get("delta")) and DeltaNet(**sizes),
                "dense_layers": tuple(fields.get("dense_layers", ())),
                "unrotated": tuple(fields.get("unrotated", ())),
                **{name: part and Rotary(**part) for name, part in rotaries.items()},
            }
            return cls(**rebuilt)
        except (TypeError, KeyError) as error:
            raise KvcastError(f"not the dimensions of a decoder-only model: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as in the manifest."""
        return asdict(self)


def _is_window(window: object) -> bool:
    return window is None or (type(window) is int and 1 <= window <= MOST_POSITIONS)


def scaled_residuals(*, residual: float, embedding: float, epsilon: float) -> dict[str, float]:
    """Return the dimensions of a model that multiplies each block's result by `residual` (Granite).

    Embeddings are divided by it instead, so the hidden state is as much smaller or larger
    throughout. Norms alone read that, and their epsilon makes up for it. So products still end with
    their residual.
    """
    if not _LEAST_FACTOR <= residual <= 1 / _LEAST_FACTOR:
        raise KvcastError(f"a factor of {residual} on each block's result is out of range")
    return {"embedding_scale": embedding / residual, "norm_eps": epsilon / residual**2}


def tensor_shapes(dimensions: DecoderDimensions) -> dict[str, tuple[int, ...]]:
    """Return every canonical name with its shape."""
    shapes = {
        "embedding.weight": (dimensions.vocab_size, dimensions.width),
        **_norm_shapes(dimensions, "norm", dimensions.width),
    }
    if dimensions.learned_positions:
        shapes["positions"] = (dimensions.max_positions, dimensions.width)
    if not dimensions.tied:
        shapes["head.weight"] = (dimensions.vocab_size, dimensions.width)
    if dimensions.head_bias:
        shapes["head.bias"] = (dimensions.vocab_size,)
    for i in range(dimensions.layers):
        layer = _layer_shapes(dimensions, i)
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return {f"decoder.{name}": shape for name, shape in shapes.items()}


def _layer_shapes(dimensions: DecoderDimensions, i: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for block, matrices in (
        ("attention", _mixer_shapes(dimensions, i)),
        ("feed_forward", _feed_forward_shapes(dimensions, i)),
    ):
        if dimensions.pre_norms and not (dimensions.shared_norm and block == "feed_forward"):
            shapes |= _norm_shapes(dimensions, f"{block}_norm", dimensions.width)
        shapes |= matrices
        if dimensions.post_norms:
            shapes |= _norm_shapes(dimensions, f"{block}_post_norm", dimensions.width)
    return shapes


def _norm_shapes(
    dimensions: DecoderDimensions, name: str, width: int
) -> dict[str, tuple[int, ...]]:
    leaves = ("weight", "bias") if dimensions.norm_bias else ("weight",)
    return {f"{name}.{leaf}": (width,) for leaf in leaves}


def _mixer_shapes(dimensions: DecoderDimensions, i: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of what mixes positions: attention or another layer in its place."""
    if dimensions.mixer(i) == ATTENTION:
        return _attention_shapes(dimensions)
    if dimensions.mixer(i) == DELTA and dimensions.delta is not None:
        return dimensions.delta.shapes(dimensions.width)
    return convolutions.shapes(dimensions)


def _attention_shapes(dimensions: DecoderDimensions) -> dict[str, tuple[int, ...]]:
    width, head_dim = dimensions.width, dimensions.head_dim
    mixed = dimensions.heads * head_dim
    projected = mixed + 2 * dimensions.kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attention.qkv.weight": (projected, width),
        "attention.out.weight": (width, mixed),
    }
    if dimensions.qkv_bias:
        shapes["attention.qkv.bias"] = (projected,)
    if dimensions.out_bias:
        shapes["attention.out.bias"] = (width,)
    if dimensions.attention_gate:
        shapes["attention.gate.weight"] = (mixed, width)
    if dimensions.query_key_norm:
        whole = dimensions.whole_query_key_norm
        for name, heads in (("query", dimensions.heads), ("key", dimensions.kv_heads)):
            normed = head_dim * (heads if whole else 1)
            shapes |= _norm_shapes(dimensions, f"attention.{name}_norm", normed)
    if dimensions.sinks:
        shapes["attention.sinks"] = (dimensions.heads,)
    return shapes


def _feed_forward_shapes(dimensions: DecoderDimensions, i: int) -> dict[str, tuple[int, ...]]:
    if mixtures.is_mixture(dimensions, i):
        of_experts = mixtures.mixture_shapes(dimensions)
        return {f"feed_forward.{name}": shape for name, shape in of_experts.items()}
    width, inner, up = dimensions.width, dimensions.dense_inner or dimensions.inner, _up(dimensions)
    rows = (2 if dimensions.gated else 1) * inner
    shapes: dict[str, tuple[int, ...]] = {
        f"feed_forward.{up}.weight": (rows, width),
        "feed_forward.down.weight": (width, inner),
    }
    if dimensions.feed_forward_bias:
        shapes |= {f"feed_forward.{up}.bias": (rows,), "feed_forward.down.bias": (width,)}
    return shapes


def _up(dimensions: DecoderDimensions) -> str:
    """Return the name of the feed-forward's first matrix."""
    return "gate_up" if dimensions.gated else "up"


def caches(dimensions: DecoderDimensions) -> tuple[CacheLayers, ...]:
    """Return the layout of the layers' caches, in order."""
    return tuple(
        layer if dimensions.mixer(i) == ATTENTION else _other_cache(dimensions, i)
        for i, layer in enumerate(self_caches(dimensions))
    )


def _other_cache(dimensions: DecoderDimensions, i: int) -> CacheLayers:
    if dimensions.mixer(i) == DELTA and dimensions.delta is not None:
        return dimensions.delta.cache()
    return convolutions.inputs_cache(dimensions)


def _programs(dimensions: DecoderDimensions) -> Mapping[str, ProgramSignature]:
    return {"decode": decode_program(caches(dimensions), ["logits"])}


def _written(dimensions: DecoderDimensions) -> Mapping[str, Program]:
    return written(_programs(dimensions), dimensions, decode=_decode)


def _decode(write: ProgramWriter, dimensions: DecoderDimensions) -> Program:
    """Write `decode`: new tokens to logits."""
    return decoded(write, write.embedding(EMBEDDING, TOKENS), dimensions)


def decoded(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> Program:
    """Write the rest of `decode`: embeddings of new tokens [rows, new, width] to logits."""
    if dimensions.embedding_scale != 1:
        x = write.step("mul", x, dimensions.embedding_scale)
    if dimensions.learned_positions:
        learned = _at_positions(write, Constant(_POSITIONS), dimensions.width)
        x = write.step("add", x, learned)
    for i in range(dimensions.layers):
        x = _layer(write, x, dimensions, i)
    normed = _norm(write, flat(write, x), "decoder.norm", dimensions)
    if dimensions.logit_scale != 1:
        normed = write.step("mul", normed, dimensions.logit_scale)
    logits = _head(write, normed, dimensions)
    if softcap := dimensions.logit_softcap:
        capped = write.step("tanh", write.step("div", logits, softcap))
        logits = write.step("mul", capped, softcap)
    return write.program(logits=in_rows(write, logits))


def _layer(write: ProgramWriter, x: Node, dimensions: DecoderDimensions, i: int) -> Node:
    """Add attention and feed-forward to the hidden state.

    The last layer's result is that of the positions that meet the head, [rows, asked, width]: all
    that others leave for later tokens is in the caches once their attention is computed.
    """
    layer = f"decoder.layers.{i}"
    before = _before(write, x, f"{layer}.attention", dimensions)
    mixed = _mixed(write, before, dimensions, i)
    if i == dimensions.layers - 1:
        x, mixed = chosen(write, x), chosen(write, mixed)
        before = chosen(write, before) if dimensions.shared_norm else before
    out = _projected(write, x, mixed, dimensions, i)
    if not dimensions.shared_norm:
        source = x if dimensions.parallel else out
        before = _before(write, source, f"{layer}.feed_forward", dimensions)
    if mixtures.is_mixture(dimensions, i):
        return _experts(write, out, before, f"{layer}.feed_forward", dimensions)
    return _feed_forward(write, out, before, f"{layer}.feed_forward", dimensions)


def _mixed(write: ProgramWriter, before: Node, dimensions: DecoderDimensions, i: int) -> Node:
    """Return what attention, or another layer in its place, has before its last product."""
    if dimensions.mixer(i) == ATTENTION:
        return _attention(write, before, dimensions, i)
    if dimensions.mixer(i) == DELTA and dimensions.delta is not None:
        return dimensions.delta.mixed(write, before, i, dimensions.norm_eps)
    return convolutions.convolved(write, before, dimensions, i)


def _projected(
    write: ProgramWriter, x: Node, mixed: Node, dimensions: DecoderDimensions, i: int
) -> Node:
    """Add the last product of attention, or of another layer in its place, to the hidden state."""
    layer = f"decoder.layers.{i}"
    if dimensions.mixer(i) == ATTENTION:
        return _added(write, x, mixed, f"{layer}.attention", "out", dimensions)
    if dimensions.mixer(i) == DELTA:
        return write.linear(mixed, f"{layer}.delta.out", residual=x)
    bias = dimensions.convolution_bias
    return write.linear(mixed, f"{layer}.convolution.out", bias=bias, residual=x)


def _before(write: ProgramWriter, x: Node, block: str, dimensions: DecoderDimensions) -> Node:
    return _norm(write, x, f"{block}_norm", dimensions) if dimensions.pre_norms else x


def _norm(write: ProgramWriter, x: Node, name: str, dimensions: DecoderDimensions) -> Node:
    if dimensions.norm == "rms":
        return write.rms_norm(x, name, dimensions.norm_eps)
    bias = f"{name}.bias" if dimensions.norm_bias else _NO_BIAS
    weight = Constant(f"{name}.weight")
    return write.step("layer_norm", x, weight, Constant(bias), dimensions.norm_eps)


def _head(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> Node:
    owner = "decoder.embedding" if dimensions.tied else "decoder.head"
    bias = "decoder.head.bias" if dimensions.head_bias else None
    return write.step("linear", x, Constant(f"{owner}.weight", bias))


def _attention(write: ProgramWriter, normed: Node, dimensions: DecoderDimensions, i: int) -> Node:
    layer, size = f"decoder.layers.{i}.attention", dimensions.head_dim
    projected = write.linear(normed, f"{layer}.qkv", bias=dimensions.qkv_bias)
    keys = dimensions.kv_heads * size
    query, key, value = write.split(projected, [dimensions.heads * size, keys, keys])
    if dimensions.query_key_norm:
        query = _normed_heads(write, query, f"{layer}.query_norm", dimensions)
        key = _normed_heads(write, key, f"{layer}.key_norm", dimensions)
    tables = _rotary_tables(dimensions, i)
    if scales := tables.pop("query_scales", None):
        query = write.step("mul", query, _at_positions(write, scales, 1))
    mixed = attended(
        write,
        i,
        (query, key, value),
        dimensions.attention_scale,
        window=dimensions.windows[i] or 0,
        softcap=dimensions.attention_softcap,
        **tables,
        sinks=Constant(f"{layer}.sinks") if dimensions.sinks else None,
    )
    if not dimensions.attention_gate:
        return mixed
    gate = write.linear(normed, f"{layer}.gate")
    return write.step("gated", gate, mixed, activation="sigmoid")


def _at_positions(write: ProgramWriter, table: Constant, width: int) -> Node:
    """Return the rows of a table [positions, width] for the new tokens, [rows, new, width]."""
    rows = write.step("index_select", table, 0, write.step("flatten", positions(write)))
    return write.step("view", rows, [write.size(TOKENS, 0), write.size(TOKENS, 1), width])


def _normed_heads(write: ProgramWriter, x: Node, name: str, dimensions: DecoderDimensions) -> Node:
    if dimensions.whole_query_key_norm:
        return _norm(write, x, name, dimensions)
    heads = write.step("unflatten", x, -1, [-1, dimensions.head_dim])
    return write.step("flatten", _norm(write, heads, name, dimensions), -2)


def _rotary_tables(dimensions: DecoderDimensions, i: int) -> dict[str, Constant]:
    """Return a layer's tables of angles, and of factors on queries where it has such."""
    rotary = dimensions.rotary_of(i)
    if rotary is None:
        return {}
    kind = _rotary_kinds(dimensions).index(rotary)
    names = ["cosines", "sines", *(["query_scales"] if rotary.query_beta else [])]
    return {name: Constant(f"{name}_{kind}") for name in names}


def _feed_forward(
    write: ProgramWriter, x: Node, before: Node, block: str, dimensions: DecoderDimensions
) -> Node:
    """Add the feed-forward of `before` to `x`."""
    up, bias = f"{block}.{_up(dimensions)}", dimensions.feed_forward_bias
    epilogue = {"gate" if dimensions.gated else "activation": dimensions.activation}
    inner = write.linear(before, up, bias=bias, **epilogue)
    return _added(write, x, inner, block, "down", dimensions)


def _added(
    write: ProgramWriter, x: Node, inner: Node, block: str, name: str, dimensions: DecoderDimensions
) -> Node:
    """Add a block's last product, normed in models that norm it, to its input."""
    bias = dimensions.out_bias if name == "out" else dimensions.feed_forward_bias
    if not dimensions.post_norms:
        return write.linear(inner, f"{block}.{name}", bias=bias, residual=x)
    product = write.linear(inner, f"{block}.{name}", bias=bias)
    return write.step("add", x, _norm(write, product, f"{block}_post_norm", dimensions))


def _experts(
    write: ProgramWriter, x: Node, normed: Node, block: str, dimensions: DecoderDimensions
) -> Node:
    mixed = mixtures.mixture(write, normed, block, dimensions)
    if dimensions.post_norms:
        mixed = _norm(write, mixed, f"{block}_post_norm", dimensions)
    return write.step("add", x, mixed)


def is_rotary(dimensions: DecoderDimensions) -> bool:
    """Tell whether any layer rotates queries and keys."""
    return bool(_rotary_kinds(dimensions))


def _rotary_kinds(dimensions: DecoderDimensions) -> list[Rotary]:
    """Return the layers' rotary embeddings, each once."""
    kinds = map(dimensions.rotary_of, range(dimensions.layers))
    return list(dict.fromkeys(kind for kind in kinds if kind is not None))


def constants(
    dimensions: DecoderDimensions,
    tensors: Mapping[str, NDArray[np.generic]],  # noqa: ARG001
) -> dict[str, NDArray[np.generic]]:
    """Return the tables of angles, of factors on queries, and the bias of norms without one."""
    tables: dict[str, NDArray[np.generic]] = {}
    for i, rotary in enumerate(_rotary_kinds(dimensions)):
        cosines, sines = rotary.tables(dimensions.max_positions, dimensions.head_dim)
        tables |= {f"cosines_{i}": cosines, f"sines_{i}": sines}
        if rotary.query_beta:
            tables[f"query_scales_{i}"] = rotary.query_scales(dimensions.max_positions)
    if dimensions.norm == "layer" and not dimensions.norm_bias:
        tables[_NO_BIAS] = np.zeros(dimensions.width, np.float32)
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


def _calibration_problem(dimensions: DecoderDimensions) -> str:
    if dimensions.experts:
        return f"mixtures of experts have no {CALIBRATED}"
    if dimensions.attention_gate or set(dimensions.mixers) - {ATTENTION}:
        return f"models with other layers than attention have no {CALIBRATED}"
    return ""


DECODER = Family(
    name="decoder",
    title="a decoder-only model",
    task="generate",
    interface="decoder-only",
    dimensions=DecoderDimensions,
    positions=lambda dimensions: dimensions.max_positions,
    caches=caches,
    programs=_programs,
    written=_written,
    constants=constants,
    tensor_shapes=tensor_shapes,
    precision=PrecisionRoles(
        outliers=("gate",),
        smoothed=True,
        int8_self_cache=True,
    ),
    probe=_probe,
    model_class="kvcast.text.model:TextModel",
    work_class="kvcast.inspect.work.decoder:DecoderWork",
    rotary=is_rotary,
    calibration_problem=_calibration_problem,
)
