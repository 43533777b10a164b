"""Decoder-only models: Llama, Mistral, Qwen, Gemma, OLMo, Cohere, GPT-NeoX and others as data.

Canonical tensors are [out, in], as in torch's Linear. Query, key and value are one tensor in this
order, and so are gate and up. RMS norms multiply by their weight (Gemma's files store it minus
one). Rotary pairs are in halves of a head.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.families.base import PROBE_STEPS, Family, PrecisionRoles, Probe
from kvcast.families.blocks import (
    TOKENS,
    attend,
    attend_shared_cache,
    cap_logits,
    join_rows,
    positions,
    select_asked,
    split_rows,
)
from kvcast.families.decoder_dimensions import SQUARED, DecoderDimensions
from kvcast.families.feed_forwards import (
    add_layer_embedding,
    embed_for_layers,
    has_experts_beside,
    is_mixture,
    write_mixture,
)
from kvcast.families.mixers import ATTENTION, DeltaNet, StateSpace, inputs_cache, write_convolution
from kvcast.families.programs import CacheLayers, ProgramSignature, decode_program, self_caches
from kvcast.spec.program import Constant, Node, Program, ProgramWriter
from kvcast.spec.runtimes import CALIBRATED

_PROMPT, _LONGEST_PROMPT = 4, 600
_POSITIONS, _NO_BIAS, _NO_WEIGHT = "decoder.positions", "no_bias", "no_weight_{}"
_ONES, _ZEROS = "ones_of_a_head", "zeros_of_a_head"
EMBEDDING = "decoder.embedding.weight"


def caches(dimensions: DecoderDimensions) -> tuple[CacheLayers, ...]:
    layers = list(map(dimensions.keys_and_values, range(dimensions.layers)))
    return tuple(
        layer if dimensions.mixer(i) == ATTENTION else _other_cache(dimensions, i)
        for i, layer in enumerate(self_caches(layers, dimensions.max_positions))
    )


def _other_cache(dimensions: DecoderDimensions, i: int) -> CacheLayers:
    state = dimensions.state(i)
    return state.cache() if state else inputs_cache(dimensions)


def _programs(dimensions: DecoderDimensions) -> Mapping[str, ProgramSignature]:
    return {"decode": decode_program(caches(dimensions), ["logits"])}


def _decode(write: ProgramWriter, dimensions: DecoderDimensions) -> Program:
    return write_decoder(write, embed_tokens(write, TOKENS, dimensions), dimensions)


def embed_tokens(write: ProgramWriter, tokens: Node, dimensions: DecoderDimensions) -> Node:
    return write.embedding(EMBEDDING, tokens, (dimensions.vocab_size, dimensions.width))


def write_decoder(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> Program:
    """Embeddings of new tokens [rows, new, width] to logits."""
    if dimensions.embedding_scale != 1:
        x = write.step("mul", x, dimensions.embedding_scale)
    if dimensions.learned_positions:
        width = dimensions.width
        table = write.tensor(_POSITIONS, dimensions.max_positions, width)
        learned = _at_positions(write, table, width)
        x = write.step("add", x, learned)
    x = _layers(write, x, dimensions)
    normed = _norm(write, join_rows(write, x), "decoder.norm", dimensions)
    if dimensions.logit_scale != 1:
        normed = write.step("mul", normed, dimensions.logit_scale)
    logits = _head(write, normed, dimensions)
    logits = cap_logits(write, logits, dimensions.logit_softcap)
    return write.program(logits=split_rows(write, logits))


def _layers(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> Node:
    inputs = _layer_inputs(write, x, dimensions)
    for i in range(dimensions.layers):
        x = _layer(write, x, dimensions, i)
        if inputs:
            x = add_layer_embedding(write, x, inputs[i], i, dimensions)
        if dimensions.layer_scales:
            x = write.step("mul", x, write.tensor(f"decoder.layers.{i}.scale", 1))
    return x


def _layer_inputs(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> list[Node]:
    width, all_new = dimensions.layer_embedding, dimensions.reading - 1
    if not width:
        return []
    whole = embed_for_layers(write, x, dimensions)
    of_chosen = dimensions.layers - all_new
    if not all_new:
        return write.split(select_asked(write, whole), [width] * of_chosen)
    early, late = write.split(whole, [width * all_new, width * of_chosen])
    late = select_asked(write, late)
    return write.split(early, [width] * all_new) + write.split(late, [width] * of_chosen)


def _layer(write: ProgramWriter, x: Node, dimensions: DecoderDimensions, i: int) -> Node:
    """Return, from the last layer with an own cache on, only what reaches the head."""
    layer = f"decoder.layers.{i}"
    before = _before(write, x, f"{layer}.attention", dimensions)
    mixed = _mix(write, before, dimensions, i)
    if i == dimensions.reading - 1:
        x, mixed = select_asked(write, x), select_asked(write, mixed)
        before = select_asked(write, before) if dimensions.shared_norm else before
    out = _project(write, x, mixed, dimensions, i)
    if not dimensions.shared_norm:
        source = x if dimensions.parallel else out
        before = _before(write, source, f"{layer}.feed_forward", dimensions)
    if is_mixture(dimensions, i):
        return _experts(write, out, before, f"{layer}.feed_forward", dimensions)
    if has_experts_beside(dimensions, i):
        return _feed_forward_and_experts(write, out, before, i, dimensions)
    block, size = f"{layer}.feed_forward", dimensions.inner_of(i)
    inner = _inner(write, before, block, size, dimensions)
    return _add(write, out, inner, f"{block}.down", size, dimensions)


def _mix(write: ProgramWriter, before: Node, dimensions: DecoderDimensions, i: int) -> Node:
    """Return the result of attention, or of another mixer, before its output projection."""
    if dimensions.mixer(i) == ATTENTION:
        return _attention(write, before, dimensions, i)
    match dimensions.state(i):
        case DeltaNet() as net:
            return net.mix(write, before, i, dimensions.width, dimensions.norm_eps)
        case StateSpace() as space:
            return space.mix(write, before, i, dimensions.width)
    return write_convolution(write, before, dimensions, i)


def _project(
    write: ProgramWriter, x: Node, mixed: Node, dimensions: DecoderDimensions, i: int
) -> Node:
    layer, width = f"decoder.layers.{i}", dimensions.width
    if dimensions.mixer(i) == ATTENTION:
        size = dimensions.projection_widths(i)[0]
        return _add(write, x, mixed, f"{layer}.attention.out", size, dimensions)
    match dimensions.state(i):
        case DeltaNet() as net:
            return write.linear(mixed, f"{layer}.delta.out", (width, net.values), residual=x)
        case StateSpace() as space:
            out, shape = f"{layer}.state_space.out", (width, space.values)
            return write.linear(mixed, out, shape, bias=space.bias, residual=x)
    out, bias = f"{layer}.convolution.out", dimensions.convolution_bias
    return write.linear(mixed, out, (width, width), bias=bias, residual=x)


def _before(write: ProgramWriter, x: Node, block: str, dimensions: DecoderDimensions) -> Node:
    return _norm(write, x, f"{block}_norm", dimensions) if dimensions.pre_norms else x


def _norm(
    write: ProgramWriter, x: Node, name: str, dimensions: DecoderDimensions, width: int = 0
) -> Node:
    width = width or dimensions.width
    if dimensions.norm == "rms":
        return write.rms_norm(x, name, width, dimensions.norm_eps)
    zeros = "" if dimensions.norm_bias else _NO_BIAS
    return write.layer_norm(x, name, width, dimensions.norm_eps, zeros=zeros)


def _head(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> Node:
    shape = dimensions.vocab_size, dimensions.width
    if not dimensions.tied:
        return write.linear(x, "decoder.head", shape, bias=dimensions.head_bias)
    # A matrix's bias belongs to its module; the embedding table has none.
    logits = write.linear(x, "decoder.embedding", shape)
    if not dimensions.head_bias:
        return logits
    return write.step("add", logits, write.tensor("decoder.head.bias", dimensions.vocab_size))


def _attention(write: ProgramWriter, normed: Node, dimensions: DecoderDimensions, i: int) -> Node:
    layer, source = f"decoder.layers.{i}.attention", dimensions.keys_and_values(i).source
    sizes, width = dimensions.projection_widths(i), dimensions.width
    shape, bias = (sum(sizes), width), dimensions.qkv_bias
    projected = write.linear(normed, f"{layer}.qkv", shape, bias=bias)
    query, *own = write.split(projected, sizes)
    if dimensions.query_key_norm:
        query = _norm_heads(write, query, f"{layer}.query_norm", sizes[0], dimensions, i)
    query = _clamp(write, query, dimensions)
    tables = _rotary_tables(dimensions, i)
    if scales := tables.pop("query_scales", None):
        query = write.step("mul", query, _at_positions(write, scales, 1))
    options: dict[str, Any] = {
        "window": dimensions.windows[i] or 0,
        "softcap": dimensions.attention_softcap,
        **tables,
        "sinks": write.tensor(f"{layer}.sinks", dimensions.heads) if dimensions.sinks else None,
    }
    scale = dimensions.attention_scale / (i + 1 if dimensions.scaled_by_depth else 1)
    if source is None:
        given = query, *_keys_and_values(write, own, dimensions, i)
        mixed = attend(write, i, given, scale, **options)
    else:
        mixed = attend_shared_cache(write, source, query, scale, **options)
    if not dimensions.attention_gate:
        return mixed
    gate = write.linear(normed, f"{layer}.gate", (sizes[0], width))
    return write.step("gated", gate, mixed, activation="sigmoid")


def _keys_and_values(
    write: ProgramWriter, own: Sequence[Node], dimensions: DecoderDimensions, i: int
) -> tuple[Node, Node]:
    key, value = own[0], own[-1]
    if dimensions.query_key_norm:
        name = f"decoder.layers.{i}.attention.key_norm"
        key = _norm_heads(write, key, name, dimensions.projection_widths(i)[1], dimensions, i)
    if dimensions.value_norm:
        size = dimensions.head_dim_of(i)
        heads = write.step("unflatten", value, -1, [-1, size])
        weight = Constant(_NO_WEIGHT.format(size))
        normed = write.step("rms_norm", heads, weight, dimensions.norm_eps)
        value = write.step("flatten", normed, -2)
    return _clamp(write, key, dimensions), _clamp(write, value, dimensions)


def _clamp(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> Node:
    limit = dimensions.qkv_limit
    return write.step("clamp", x, -limit, limit) if limit else x


def _at_positions(write: ProgramWriter, table: Constant, width: int) -> Node:
    """Rows of a table [positions, width] for the new tokens, [rows, new, width]."""
    rows = write.step("index_select", table, 0, write.step("flatten", positions(write)))
    return write.step("view", rows, [write.size(TOKENS, 0), write.size(TOKENS, 1), width])


def _norm_heads(
    write: ProgramWriter, x: Node, name: str, width: int, dimensions: DecoderDimensions, i: int
) -> Node:
    """Norm each head of queries or keys [rows, new, width], or all as one."""
    if dimensions.whole_query_key_norm:
        return _norm(write, x, name, dimensions, width)
    size = dimensions.head_dim_of(i)
    heads = write.step("unflatten", x, -1, [-1, size])
    if not dimensions.own_query_key_norms:
        return write.step("flatten", _norm(write, heads, name, dimensions, size), -2)
    plain = Constant(_ONES), Constant(_ZEROS), dimensions.norm_eps
    normed = write.step("flatten", write.step("layer_norm", heads, *plain), -2)
    return write.step("mul", normed, write.tensor(f"{name}.weight", width))


def _rotary_tables(dimensions: DecoderDimensions, i: int) -> dict[str, Constant]:
    rotary = dimensions.rotary_of(i)
    if rotary is None:
        return {}
    kind = dimensions.rotary_kinds.index((rotary, dimensions.head_dim_of(i)))
    names = ["cosines", "sines", *(["query_scales"] if rotary.query_beta else [])]
    return {name: Constant(f"{name}_{kind}") for name in names}


def _inner(
    write: ProgramWriter, before: Node, block: str, size: int, dimensions: DecoderDimensions
) -> Node:
    """[..., size]."""
    bias, width = dimensions.feed_forward_bias, dimensions.width
    if dimensions.gated:
        gate_up, shape = f"{block}.gate_up", (2 * size, width)
        return write.linear(before, gate_up, shape, bias=bias, gate=dimensions.activation)
    up, shape = f"{block}.up", (size, width)
    if dimensions.activation == SQUARED:
        positive = write.linear(before, up, shape, bias=bias, activation="relu")
        return write.step("mul", positive, positive)
    return write.linear(before, up, shape, bias=bias, activation=dimensions.activation)


def _feed_forward_and_experts(
    write: ProgramWriter, x: Node, before: Node, i: int, dimensions: DecoderDimensions
) -> Node:
    """Add a feed-forward of `before` and experts of `x` to `x`, each with its own norms."""
    block, experts = (f"decoder.layers.{i}.{name}" for name in ("feed_forward", "experts"))
    size, bias = dimensions.inner_of(i), dimensions.feed_forward_bias
    inner = _inner(write, before, block, size, dimensions)
    product = write.linear(inner, f"{block}.down", (dimensions.width, size), bias=bias)
    product = _norm(write, product, f"{block}_own_norm", dimensions)
    routed = _norm(write, x, f"{experts}.router_norm", dimensions)
    normed = _norm(write, x, f"{experts}_norm", dimensions)
    mixed = write_mixture(write, normed, experts, dimensions, routed)
    mixed = _norm(write, mixed, f"{experts}_post_norm", dimensions)
    whole = _norm(write, write.step("add", product, mixed), f"{block}_post_norm", dimensions)
    return write.step("add", x, whole)


def _add(
    write: ProgramWriter, x: Node, inner: Node, name: str, size: int, dimensions: DecoderDimensions
) -> Node:
    block, _, matrix = name.rpartition(".")
    bias = dimensions.out_bias if matrix == "out" else dimensions.feed_forward_bias
    shape = dimensions.width, size
    if not dimensions.post_norms:
        return write.linear(inner, name, shape, bias=bias, residual=x)
    product = write.linear(inner, name, shape, bias=bias)
    return write.step("add", x, _norm(write, product, f"{block}_post_norm", dimensions))


def _experts(
    write: ProgramWriter, x: Node, normed: Node, block: str, dimensions: DecoderDimensions
) -> Node:
    mixed = write_mixture(write, normed, block, dimensions)
    if dimensions.post_norms:
        mixed = _norm(write, mixed, f"{block}_post_norm", dimensions)
    return write.step("add", x, mixed)


def constants(
    dimensions: DecoderDimensions,
    tensors: Mapping[str, NDArray[np.generic]],  # noqa: ARG001
) -> dict[str, NDArray[np.generic]]:
    """Tables of angles and query factors, and unit weights of norms without weights."""
    tables: dict[str, NDArray[np.generic]] = {}
    for i, (rotary, size) in enumerate(dimensions.rotary_kinds):
        cosines, sines = rotary.tables(dimensions.max_positions, size)
        tables |= {f"cosines_{i}": cosines, f"sines_{i}": sines}
        if rotary.query_beta:
            tables[f"query_scales_{i}"] = rotary.query_scales(dimensions.max_positions)
    if dimensions.norm == "layer" and not dimensions.norm_bias:
        tables[_NO_BIAS] = np.zeros(dimensions.width, np.float32)
    if dimensions.value_norm:
        for size in {dimensions.head_dim_of(i) for i in range(dimensions.reading)}:
            tables[_NO_WEIGHT.format(size)] = np.ones(size, np.float32)
    if space := dimensions.state_space:
        tables |= space.constants()
    if dimensions.own_query_key_norms:
        tables[_ONES] = np.ones(dimensions.head_dim, np.float32)
        tables[_ZEROS] = np.zeros(dimensions.head_dim, np.float32)
    return tables


def _probe(dimensions: DecoderDimensions) -> Probe:
    """Prompts as long as the longest window up to 600, so that every step wraps around its ring."""
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
    if dimensions.layer_head_dims or dimensions.layer_kv_heads or dimensions.sources:
        return f"models whose layers differ have no {CALIBRATED}"
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
    writers={"decode": _decode},
    constants=constants,
    precision=PrecisionRoles(
        outliers=("gate",),
        smoothed=True,
        int8_self_cache=True,
    ),
    probe=_probe,
    model_class="kvcast.text.model:TextModel",
    rotary=lambda dimensions: bool(dimensions.rotary_kinds),
    calibration_problem=_calibration_problem,
)
