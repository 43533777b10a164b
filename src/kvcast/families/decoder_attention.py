"""Attention of decoder-only models before its output projection, and their norms.

Queries and keys may be normed before or after rotation, clamped, and the result gated.
"""

from collections.abc import Sequence
from typing import Any

from kvcast.families.blocks import attend, attend_shared_cache, rows_at_positions, sigmoid
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.spec.program import Constant, Node, ProgramWriter

NO_BIAS, NO_WEIGHT = "no_bias", "no_weight_{}"
ONES, ZEROS = "ones_of_a_head", "zeros_of_a_head"
"""Constants of norms without a bias or a weight, and of heads with weights of their own."""


def norm(
    write: ProgramWriter,
    x: Node,
    name: str,
    dimensions: DecoderDimensions,
    width: int = 0,
    epsilon: float | None = None,
) -> Node:
    width, epsilon = width or dimensions.width, epsilon or dimensions.norm_eps
    if dimensions.norm == "rms":
        return write.rms_norm(x, name, width, epsilon)
    zeros = "" if dimensions.norm_bias else NO_BIAS
    return write.layer_norm(x, name, width, epsilon, zeros=zeros)


def write_attention(
    write: ProgramWriter, normed: Node, dimensions: DecoderDimensions, i: int
) -> Node:
    if dimensions.latents:
        tables = _rotary_tables(dimensions, i)
        return dimensions.latents.attend(write, normed, i, dimensions, **tables)
    layer, source = f"decoder.layers.{i}.attention", dimensions.keys_and_values(i).source
    sizes, width = dimensions.projection_widths(i), dimensions.width
    shape, bias = (sum(sizes), width), dimensions.qkv_bias
    projected = write.linear(normed, f"{layer}.qkv", shape, bias=bias)
    query, *own = write.split(projected, sizes)
    query = _queries_or_keys(write, query, f"{layer}.query_norm", sizes[0], dimensions, i)
    tables = {} if dimensions.late_query_key_norm else _rotary_tables(dimensions, i)
    if scales := tables.pop("query_scales", None):
        query = write.step("mul", query, rows_at_positions(write, scales, 1))
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
    return _gate(write, mixed, normed, f"{layer}.gate", sizes[0], dimensions)


def _gate(
    write: ProgramWriter,
    mixed: Node,
    normed: Node,
    name: str,
    size: int,
    dimensions: DecoderDimensions,
) -> Node:
    if dimensions.attention_gate:
        gate = write.linear(normed, name, (size, dimensions.width))
        return write.step("gated", gate, mixed, activation="sigmoid")
    if not dimensions.head_gates:
        return mixed
    gate = sigmoid(write, write.linear(normed, name, (dimensions.heads, dimensions.width)))
    heads = write.step("unflatten", mixed, -1, [-1, size // dimensions.heads])
    return write.step("flatten", write.step("mul", heads, write.step("unsqueeze", gate, 3)), -2)


def _keys_and_values(
    write: ProgramWriter, own: Sequence[Node], dimensions: DecoderDimensions, i: int
) -> tuple[Node, Node]:
    name, width = f"decoder.layers.{i}.attention.key_norm", dimensions.projection_widths(i)[1]
    key, value = _queries_or_keys(write, own[0], name, width, dimensions, i), own[-1]
    if dimensions.value_norm:
        size = dimensions.head_dim_of(i)
        heads = write.step("unflatten", value, -1, [-1, size])
        weight = Constant(NO_WEIGHT.format(size))
        normed = write.step("rms_norm", heads, weight, dimensions.norm_eps)
        value = write.step("flatten", normed, -2)
    return key, _clamp(write, value, dimensions)


def _clamp(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> Node:
    limit = dimensions.qkv_limit
    return write.step("clamp", x, -limit, limit) if limit else x


def _queries_or_keys(
    write: ProgramWriter, x: Node, norm: str, width: int, dimensions: DecoderDimensions, i: int
) -> Node:
    """Norm queries or keys, after their rotation if the norm is late, and clamp them."""
    if dimensions.late_query_key_norm:
        x = _rotate(write, x, dimensions, i)
    if dimensions.query_key_norm:
        x = _norm_heads(write, x, norm, width, dimensions, i)
    return _clamp(write, x, dimensions)


def _rotate(write: ProgramWriter, x: Node, dimensions: DecoderDimensions, i: int) -> Node:
    size, tables = dimensions.head_dim_of(i), _rotary_tables(dimensions, i)
    if not tables:
        return x
    cosines, sines = (
        write.step("unsqueeze", rows_at_positions(write, tables[name], size // 2), 2)
        for name in ("cosines", "sines")
    )
    first, second = write.chunk(write.step("unflatten", x, -1, [-1, size]), 2)
    turned = [
        write.step(sign, write.step("mul", half, cosines), write.step("mul", other, sines))
        for sign, half, other in (("sub", first, second), ("add", second, first))
    ]
    return write.step("flatten", write.step("cat", turned, -1), -2)


def _norm_heads(
    write: ProgramWriter, x: Node, name: str, width: int, dimensions: DecoderDimensions, i: int
) -> Node:
    """Norm each head of queries or keys [rows, new, width], or all as one."""
    if dimensions.whole_query_key_norm:
        return norm(write, x, name, dimensions, width)
    size = dimensions.head_dim_of(i)
    heads = write.step("unflatten", x, -1, [-1, size])
    if not dimensions.own_query_key_norms:
        return write.step("flatten", norm(write, heads, name, dimensions, size), -2)
    plain = Constant(ONES), Constant(ZEROS), dimensions.norm_eps
    normed = write.step("flatten", write.step("layer_norm", heads, *plain), -2)
    return write.step("mul", normed, write.tensor(f"{name}.weight", width))


def _rotary_tables(dimensions: DecoderDimensions, i: int) -> dict[str, Constant]:
    rotary = dimensions.rotary_of(i)
    if rotary is None:
        return {}
    kind = dimensions.rotary_kinds.index((rotary, dimensions.rotary_dim_of(i)))
    names = ["cosines", "sines", *(["query_scales"] if rotary.query_beta else [])]
    return {name: Constant(f"{name}_{kind}") for name in names}
