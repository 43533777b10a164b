"""Decoder-only models: Llama, Mistral, Qwen, Gemma, OLMo, Cohere, GPT-NeoX and others as data.

Canonical tensors are [out, in], as in torch's Linear. Query, key and value are one tensor in this
order, and so are gate and up. RMS norms multiply by their weight (Gemma's files store it minus
one). Rotary pairs are in halves of a head.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvcast.families.alternating import Alternating, rarest
from kvcast.families.base import PROBE_STEPS, Family, PrecisionRoles, Probe
from kvcast.families.blocks import (
    TOKENS,
    cap_logits,
    join_rows,
    rows_at_positions,
    select_asked,
    split_rows,
)
from kvcast.families.decoder_attention import (
    NO_BIAS,
    NO_WEIGHT,
    ONES,
    ZEROS,
    norm,
    write_attention,
)
from kvcast.families.decoder_dimensions import SQUARED, XIELU, DecoderDimensions
from kvcast.families.feed_forwards import (
    add_layer_embedding,
    embed_for_layers,
    has_experts_beside,
    is_mixture,
    layer_embedding,
    write_mixture,
)
from kvcast.families.mixers import ATTENTION, DeltaNet, StateSpace, inputs_cache, write_convolution
from kvcast.families.programs import CacheLayers, ProgramSignature, decode_program, self_caches
from kvcast.spec.program import Constant, Node, Program, ProgramWriter
from kvcast.spec.runtimes import CALIBRATED

_PROMPT, _LONGEST_PROMPT = 4, 600
_POSITIONS = "decoder.positions"
_FREQUENCIES = "decoder.rotary_frequencies"  # logarithms of factors
EMBEDDING = "decoder.embedding.weight"


def caches(dimensions: DecoderDimensions) -> tuple[CacheLayers, ...]:
    layers = list(map(dimensions.keys_and_values, range(dimensions.layers)))
    each = (
        layer if dimensions.has_keys(i) else _other_cache(dimensions, i)
        for i, layer in enumerate(self_caches(layers, dimensions.max_positions))
    )
    return tuple(filter(None, each))


def _other_cache(dimensions: DecoderDimensions, i: int) -> CacheLayers | None:
    if dimensions.latents and dimensions.mixer(i) == ATTENTION:
        return dimensions.latents.cache(i, dimensions)
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
    if dimensions.embedding_norm:
        weight = Constant(NO_WEIGHT.format(dimensions.width))
        x = write.step("rms_norm", x, weight, dimensions.norm_eps)
    if dimensions.embedding_scale != 1:
        x = write.step("mul", x, dimensions.embedding_scale)
    if dimensions.learned_positions:
        width = dimensions.width
        table = write.tensor(_POSITIONS, dimensions.max_positions, width)
        learned = rows_at_positions(write, table, width)
        x = write.step("add", x, learned)
    for rotary, size in dimensions.rotary_kinds:
        if rotary.learned:  # in the tables of angles
            write.tensor(_FREQUENCIES, size // 2)
    x = _layers(write, x, dimensions)
    normed = norm(write, join_rows(write, x), "decoder.norm", dimensions)
    if dimensions.logit_scale != 1:
        normed = write.step("mul", normed, dimensions.logit_scale)
    logits = _head(write, normed, dimensions)
    logits = cap_logits(write, logits, dimensions.logit_softcap)
    return write.program(logits=split_rows(write, logits))


def _layers(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> Node:
    if dimensions.alternating:
        return _alternating_layers(write, x, dimensions, dimensions.alternating)
    inputs, before = _layer_inputs(write, x, dimensions), x
    for i in range(dimensions.layers):
        if i not in dimensions.beside:
            before = _before(write, x, f"decoder.layers.{i}.attention", dimensions, i)
        x = _layer(write, x, before, dimensions, i)
        if inputs:
            x = add_layer_embedding(write, x, inputs[i], i, dimensions)
        if dimensions.layer_scales:
            x = write.step("mul", x, write.tensor(f"decoder.layers.{i}.scale", 1))
    return x


def _alternating_layers(
    write: ProgramWriter, x: Node, dimensions: DecoderDimensions, alternating: Alternating
) -> Node:
    inputs, width = _layer_inputs(write, x, dimensions), dimensions.width
    streams = alternating.expand(write, x, width)
    for i in range(dimensions.layers):
        layer = f"decoder.layers.{i}"
        predicted = alternating.predict(write, streams, i, dimensions)
        active = alternating.activated(write, predicted)
        before = _before(write, active, f"{layer}.attention", dimensions, i)
        mixed = _mix(write, before, dimensions, i)
        if i == dimensions.reading - 1:
            predicted, before, mixed = (
                select_asked(write, part) for part in (predicted, before, mixed)
            )
            active = alternating.activated(write, predicted)
        out = _project(write, active, mixed, dimensions, i)
        beside = alternating.beside_attention(write, before, i, dimensions)
        out = write.step("mul", write.step("add", out, beside), math.sqrt(0.5))
        activated = _feed_forward(write, out, dimensions, i)
        streams = alternating.correct(write, predicted, activated, i, dimensions)
        gating = alternating.gating(write, streams, i, width)
        embedding = layer_embedding(write, gating, inputs[i], i, dimensions)
        streams = alternating.add_to_others(write, streams, embedding)
    return alternating.contract(write, streams, width)


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


def _layer(
    write: ProgramWriter, x: Node, before: Node, dimensions: DecoderDimensions, i: int
) -> Node:
    """Return, from the last layer with an own cache on, only what reaches the head.

    `before` is what the mixer reads.
    """
    layer = f"decoder.layers.{i}"
    mixed = _mix(write, before, dimensions, i)
    if i == dimensions.reading - 1:
        x, mixed = select_asked(write, x), select_asked(write, mixed)
        before = select_asked(write, before) if dimensions.shared_norm else before
    out = _project(write, x, mixed, dimensions, i)
    if i in dimensions.without_feed_forward:
        return out
    if not dimensions.shared_norm:
        source = x if dimensions.parallel else out
        before = _before(write, source, f"{layer}.feed_forward", dimensions, i)
    return _add_feed_forward(write, out, before, dimensions, i)


def _feed_forward(write: ProgramWriter, x: Node, dimensions: DecoderDimensions, i: int) -> Node:
    before = _before(write, x, f"decoder.layers.{i}.feed_forward", dimensions, i)
    return _add_feed_forward(write, x, before, dimensions, i)


def _add_feed_forward(
    write: ProgramWriter, out: Node, before: Node, dimensions: DecoderDimensions, i: int
) -> Node:
    """Add a feed-forward of `before`, or what takes its place, to `out`."""
    layer = f"decoder.layers.{i}"
    if is_mixture(dimensions, i):
        return _experts(write, out, before, f"{layer}.feed_forward", dimensions, i)
    if has_experts_beside(dimensions, i):
        return _feed_forward_and_experts(write, out, before, i, dimensions)
    block, size = f"{layer}.feed_forward", dimensions.inner_of(i)
    inner = _inner(write, before, block, size, dimensions, i)
    bias = dimensions.feed_forward_bias
    return _add(write, out, inner, f"{block}.down", size, dimensions, i, bias=bias)


def _mix(write: ProgramWriter, before: Node, dimensions: DecoderDimensions, i: int) -> Node:
    """Return the result of attention, or of another mixer, before its output projection."""
    if dimensions.mixer(i) == ATTENTION:
        return write_attention(write, before, dimensions, i)
    match dimensions.state(i):
        case DeltaNet() as net:
            return net.mix(write, before, i, dimensions.width, dimensions.norm_eps)
        case StateSpace() as space:
            return space.mix(write, before, i, dimensions.width)
    return write_convolution(write, before, dimensions, i)


def _project(
    write: ProgramWriter, x: Node, mixed: Node, dimensions: DecoderDimensions, i: int
) -> Node:
    match dimensions.state(i):
        case DeltaNet() as net:
            mixer, size, bias = "delta", net.values, False
        case StateSpace() as space:
            mixer, size, bias = "state_space", space.values, space.bias
        case _ if dimensions.mixer(i) == ATTENTION:
            size, bias = dimensions.mixed_width(i), dimensions.out_bias
            mixer = "attention"
        case _:
            mixer, size, bias = "convolution", dimensions.width, dimensions.convolution_bias
    out = f"decoder.layers.{i}.{mixer}.out"
    return _add(write, x, mixed, out, size, dimensions, i, bias=bias)


def _before(
    write: ProgramWriter, x: Node, block: str, dimensions: DecoderDimensions, i: int
) -> Node:
    before, _ = dimensions.norms_of(i)
    return norm(write, x, f"{block}_norm", dimensions) if before else x


def _post_norm(write: ProgramWriter, x: Node, block: str, dimensions: DecoderDimensions) -> Node:
    epsilon = dimensions.post_norm_eps
    return norm(write, x, f"{block}_post_norm", dimensions, epsilon=epsilon)


def _head(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> Node:
    shape = dimensions.vocab_size, dimensions.width
    if not dimensions.tied:
        return write.linear(x, "decoder.head", shape, bias=dimensions.head_bias)
    # A matrix's bias belongs to its module; the embedding table has none.
    logits = write.linear(x, "decoder.embedding", shape)
    if not dimensions.head_bias:
        return logits
    return write.step("add", logits, write.tensor("decoder.head.bias", dimensions.vocab_size))


def _inner(
    write: ProgramWriter, before: Node, block: str, size: int, dimensions: DecoderDimensions, i: int
) -> Node:
    """[..., size]."""
    bias, width = dimensions.feed_forward_bias, dimensions.width
    if dimensions.gated:
        gate_up, shape = f"{block}.gate_up", (2 * size, width)
        if (deviations := dimensions.deviations(i)) is not None:
            gates, ups = write.chunk(write.linear(before, gate_up, shape, bias=bias), 2)
            gates = rarest(write, gates, deviations)
            return write.step("gated", gates, ups, activation=dimensions.activation)
        return write.linear(before, gate_up, shape, bias=bias, gate=dimensions.activation)
    up, shape = f"{block}.up", (size, width)
    if dimensions.activation == XIELU:
        return _xielu(write, write.linear(before, up, shape, bias=bias), block)
    if dimensions.activation == SQUARED:
        positive = write.linear(before, up, shape, bias=bias, activation="relu")
        return write.step("mul", positive, positive)
    return write.linear(before, up, shape, bias=bias, activation=dimensions.activation)


def _xielu(write: ProgramWriter, x: Node, block: str) -> Node:
    """Slope x, plus above 0 the rise times x^2, below it the fall times exp(x) - 1 - x."""
    slope, rise, fall = (
        write.tensor(f"{block}.xielu.{name}", 1) for name in ("slope", "rise", "fall")
    )
    above = write.step("relu", x)
    below = write.step("sub", above, x)
    # exp(-x) - 1 = -2 tanh(x / 2) / (1 + tanh(x / 2)).
    half = write.step("tanh", write.step("mul", below, 0.5))
    less = write.step("div", write.step("mul", half, 2.0), write.step("add", half, 1.0))
    bent = write.step("mul", write.step("sub", below, less), fall)
    squares = write.step("mul", write.step("mul", above, above), rise)
    return write.step("add", write.step("mul", x, slope), write.step("add", squares, bent))


def _feed_forward_and_experts(
    write: ProgramWriter, x: Node, before: Node, i: int, dimensions: DecoderDimensions
) -> Node:
    """Add a feed-forward of `before` and experts of `x` to `x`, each with its own norms."""
    block, experts = (f"decoder.layers.{i}.{name}" for name in ("feed_forward", "experts"))
    size, bias = dimensions.inner_of(i), dimensions.feed_forward_bias
    inner = _inner(write, before, block, size, dimensions, i)
    product = write.linear(inner, f"{block}.down", (dimensions.width, size), bias=bias)
    product = norm(write, product, f"{block}_own_norm", dimensions)
    routed = norm(write, x, f"{experts}.router_norm", dimensions)
    normed = norm(write, x, f"{experts}_norm", dimensions)
    mixed = write_mixture(write, normed, experts, dimensions, routed)
    mixed = norm(write, mixed, f"{experts}_post_norm", dimensions)
    whole = norm(write, write.step("add", product, mixed), f"{block}_post_norm", dimensions)
    return write.step("add", x, whole)


def _add(
    write: ProgramWriter,
    x: Node,
    inner: Node,
    name: str,
    size: int,
    dimensions: DecoderDimensions,
    i: int,
    *,
    bias: bool,
) -> Node:
    shape = dimensions.width, size
    _, after = dimensions.norms_of(i)
    if not after:
        return write.linear(inner, name, shape, bias=bias, residual=x)
    product = write.linear(inner, name, shape, bias=bias)
    normed = _post_norm(write, product, name.rpartition(".")[0], dimensions)
    return write.step("add", x, normed)


def _experts(
    write: ProgramWriter, x: Node, normed: Node, block: str, dimensions: DecoderDimensions, i: int
) -> Node:
    mixed = write_mixture(write, normed, block, dimensions)
    _, after = dimensions.norms_of(i)
    if after or dimensions.experts_post_norm:
        mixed = _post_norm(write, mixed, block, dimensions)
    return write.step("add", x, mixed)


def constants(
    dimensions: DecoderDimensions,
    tensors: Mapping[str, NDArray[np.generic]],
) -> dict[str, NDArray[np.generic]]:
    """Tables of angles and query factors, unit weights of norms without weights, transposes."""
    tables: dict[str, NDArray[np.generic]] = {}
    for i, (rotary, size) in enumerate(dimensions.rotary_kinds):
        logs = tensors[_FREQUENCIES] if rotary.learned else None
        cosines, sines = rotary.tables(dimensions.max_positions, size, logs)
        tables |= {f"cosines_{i}": cosines, f"sines_{i}": sines}
        if rotary.query_beta:
            tables[f"query_scales_{i}"] = rotary.query_scales(dimensions.max_positions)
    if dimensions.norm == "layer" and not dimensions.norm_bias:
        tables[NO_BIAS] = np.zeros(dimensions.width, np.float32)
    sizes = {dimensions.width} if dimensions.embedding_norm else set()
    if dimensions.value_norm:
        sizes |= {dimensions.head_dim_of(i) for i in range(dimensions.reading)}
    tables |= {NO_WEIGHT.format(size): np.ones(size, np.float32) for size in sizes}
    if latents := dimensions.latents:
        attending = [i for i in range(dimensions.layers) if dimensions.mixer(i) == ATTENTION]
        tables |= latents.constants(attending, dimensions.max_positions, tensors)
    if space := dimensions.state_space:
        tables |= space.constants()
    if dimensions.own_query_key_norms:
        tables[ONES] = np.ones(dimensions.head_dim, np.float32)
        tables[ZEROS] = np.zeros(dimensions.head_dim, np.float32)
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
    gated = dimensions.attention_gate or dimensions.head_gates or dimensions.latents
    if gated or set(dimensions.mixers) - {ATTENTION}:
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
