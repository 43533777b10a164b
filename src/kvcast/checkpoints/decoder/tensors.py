"""Transforms tensors of decoders where a name table is not enough; reads gpt-oss' MXFP4 codes."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.prequantized.float4 import mxfp4_blocks
from kvcast.checkpoints.tensor_names import apply_change, by_part, join_flat, pick, reorder
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.mixers import ATTENTION
from kvcast.spec.stored_matrices import BLOCK, unpack_nibbles

_QUERY, _GATE = "self_attn.q_proj.weight", "self_attn.gate.weight"


_DELTA_IN = "linear_attn.in_proj_{}.weight"


MAMBA_CONVOLUTION = "mamba.conv1d.weight"


_FUSED, _POSITIONS = ".query_key_value.", "embed_positions.weight"


_QUERY_NORM, _KEY_NORM = "self_attn.q_norm.weight", "self_attn.k_norm.weight"


_USUAL_NORMS = {
    "attention_layer_norm.": "input_layernorm.",
    "feedforward_layer_norm.": "post_attention_layernorm.",
}


_BLOCK_OF_MODEL = re.compile(r"layers\.(\d{1,9})\.(mixer|norm)\.")
_PART_OF_LAYER = re.compile(r"layers\.(\d{1,9})\.(\w+)\.")


_KERNEL_AXES = ("length", "channels")


_NORM_OF_A_HEAD = re.compile(r"(.+\.[qk])_layernorm\.norms\.(\d{1,4})\.weight")


def heads_apart(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Return queries, keys, values in this order, from files that group them by key head."""
    keys, size = dimensions.kv_heads, dimensions.head_dim
    each = dimensions.heads // keys
    rows = np.arange(keys * (each + 2) * size).reshape(keys, each + 2, size)
    order = np.concatenate([part.ravel() for part in np.split(rows, [each, each + 1], axis=1)])
    return {
        name: pick(tensor, order) if _FUSED in name and tensor.shape[0] == len(order) else tensor
        for name, tensor in own.items()
    }


def positions_from_the_third(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Omit the first two embeddings of positions, which OPT never uses."""
    table = own.get(_POSITIONS)
    if table is None or table.shape[0] != dimensions.max_positions + 2:
        return dict(own)
    return {**own, _POSITIONS: pick(table, np.arange(2, table.shape[0]))}


def norms_of_ones(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """OLMo's norms have no weights."""
    width = dimensions.width
    ones = StoredTensor(shape=(width,), read=lambda: np.ones(width, np.float32))
    layers = [
        f"layers.{i}.{norm}.weight"
        for i in range(dimensions.layers)
        for norm in ("input_layernorm", "post_attention_layernorm")
    ]
    return {**dict.fromkeys(("norm.weight", *layers), ones), **own}


def head_norms_of_ones(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Muse Glimmer's norms of queries and keys have no weights."""
    size = dimensions.head_dim
    ones = StoredTensor(shape=(size,), read=lambda: np.ones(size, np.float32))
    norms = [
        f"layers.{i}.{norm}" for i in range(dimensions.layers) for norm in (_QUERY_NORM, _KEY_NORM)
    ]
    return {**dict.fromkeys(norms, ones), **own}


def transpose_experts(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """[experts, outputs, inputs]; Qwen 3 VL's first files have inputs first."""
    inner, width = dimensions.inner, dimensions.width
    usual = {".experts.gate_up_proj": (2 * inner, width), ".experts.down_proj": (width, inner)}

    def outputs_first(name: str, tensor: StoredTensor) -> StoredTensor:
        shape = next((shape for end, shape in usual.items() if name.endswith(end)), None)
        if shape is None or tensor.shape[1:] != shape[::-1] or tensor.shape[1:] == shape:
            return tensor
        swapped = apply_change(tensor, lambda experts: experts.swapaxes(1, 2))
        return replace(swapped, shape=(tensor.shape[0], *shape))

    return {name: outputs_first(name, tensor) for name, tensor in own.items()}


def flat_biases(own: Mapping[str, StoredTensor], _: DecoderDimensions) -> dict[str, StoredTensor]:
    """ERNIE's biases of experts have an axis of 1."""
    return {
        name: join_flat([tensor]) if ".moe_statics." in name else tensor
        for name, tensor in own.items()
    }


def scale_routers(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Divide the weights of norms before routers by the root of the width, as Gemma 4 does."""

    def scale(weight: NDArray[Any]) -> NDArray[np.float32]:
        return weight.astype(np.float32) * np.float32(dimensions.width**-0.5)

    return {
        name: apply_change(tensor, scale) if name.endswith(".router.scale") else tensor
        for name, tensor in own.items()
    }


def parts_apart(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Divide projections whose rows are several parts per head: queries and gates, delta nets'."""
    size = dimensions.head_dim
    layouts: dict[str, tuple[int, Mapping[str, Sequence[int]]]] = {
        _QUERY: (dimensions.heads, {_QUERY: (size,), _GATE: (size,)})
    }
    if delta := dimensions.delta:
        each = delta.value_heads // delta.key_heads
        values, keys = each * delta.value_dim, delta.key_dim
        layouts |= {
            _DELTA_IN.format("qkvz"): (
                delta.key_heads,
                {_DELTA_IN.format("qkv"): (keys, keys, values), _DELTA_IN.format("z"): (values,)},
            ),
            _DELTA_IN.format("ba"): (
                delta.key_heads,
                {_DELTA_IN.format("b"): (each,), _DELTA_IN.format("a"): (each,)},
            ),
        }
    apart = dict(own)
    for name, tensor in own.items():
        for whole, (heads, parts) in layouts.items():
            if name.endswith(whole):
                del apart[name]
                layer = name.removesuffix(whole)
                apart |= {layer + part: x for part, x in by_part(tensor, heads, parts).items()}
    return apart


def softened_xielu(
    own: Mapping[str, StoredTensor], _: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Softplus of the learned numbers of Apertus' activation, one of them above its slope."""
    tensors = {name: x for name, x in own.items() if not name.endswith(".act_fn.eps")}
    for name, slope in own.items():
        if not name.endswith(".act_fn.beta"):
            continue
        activation = name.removesuffix("beta")
        tensors[name] = join_flat([slope])
        for bend, least in (("alpha_p", None), ("alpha_n", slope)):
            if stored := own.get(activation + bend):
                flat = join_flat([stored])  # MLX's have no axis
                tensors[activation + bend] = apply_change(flat, partial(_softplus, least))
    return tensors


def _softplus(least: StoredTensor | None, x: NDArray[Any]) -> NDArray[np.float32]:
    soft: NDArray[np.float32] = np.logaddexp(np.float32(0), x.astype(np.float32))
    return soft if least is None else soft + least.read().astype(np.float32)


def join_convolutions(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Delta nets' convolutions of queries, keys and values as one; norms by their usual names."""
    renamed = {_usual_norm(name): tensor for name, tensor in own.items()}
    for i in range(dimensions.layers):
        names = [f"layers.{i}.linear_attn.{part}_conv1d.weight" for part in "qkv"]
        if not all(name in renamed for name in names):
            continue
        parts = [renamed.pop(name) for name in names]
        renamed[f"layers.{i}.linear_attn.conv1d.weight"] = side_by_side(parts)
    return renamed


def _usual_norm(name: str) -> str:
    for olmo, usual in _USUAL_NORMS.items():
        name = name.replace(olmo, usual)
    return name


def side_by_side(kernels: Sequence[StoredTensor]) -> StoredTensor:
    """Concatenate kernels [length, channels]."""
    shapes = [kernel.shape for kernel in kernels]
    if any(len(shape) != len(_KERNEL_AXES) or shape[0] != shapes[0][0] for shape in shapes):
        return kernels[0]  # of a shape that no configuration asks for
    return replace(
        join_flat(kernels),
        shape=(shapes[0][0], sum(shape[1] for shape in shapes)),
        read=lambda: np.concatenate([kernel.read() for kernel in kernels], axis=1),
    )


def join_head_norms(
    own: Mapping[str, StoredTensor], _: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Norms of queries and keys, of which each head has one, as one tensor each."""
    joined, norms = {}, defaultdict[str, dict[int, StoredTensor]](dict)
    for name, tensor in own.items():
        if norm := _NORM_OF_A_HEAD.fullmatch(name):
            norms[f"{norm[1]}_norm.weight"][int(norm[2])] = tensor
        elif name.endswith((_QUERY_NORM, _KEY_NORM)):
            joined[name] = join_flat([tensor])
        else:
            joined[name] = tensor
    in_order = {name: [heads[i] for i in sorted(heads)] for name, heads in norms.items()}
    return joined | {name: join_flat(heads) for name, heads in in_order.items()}


def keys_first(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Mamba's channels are values, keys and queries after a gate; reorder them as delta nets'."""
    space = dimensions.state_space
    if space is None:
        return dict(own)
    order, whole = (np.array(rows) for rows in space.mamba_order())
    moves: Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
        "mamba.in_proj.weight": itemgetter(whole),
        "mamba.in_proj.bias": itemgetter(whole),
        "mamba.conv1d.bias": itemgetter(order),
        MAMBA_CONVOLUTION: partial(np.take, indices=order, axis=1),
    }
    moved = dict(own)
    for name, tensor in own.items():
        for end, move in moves.items():
            if name.endswith(end):
                change = apply_change if end == MAMBA_CONVOLUTION else reorder
                moved[name] = change(tensor, move)
    return moved


def blocks_as_layers(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Nemotron-H numbers mixers and feed-forwards, and has a norm before each."""
    places = places_of_blocks(dimensions)

    def usual(block: re.Match[str]) -> str:
        if (number := int(block[1])) >= len(places):
            return block[0]
        layer, is_mixer = places[number]
        mixer = "self_attn" if dimensions.mixer(layer) == ATTENTION else "mamba"
        names = {"mixer": mixer, "norm": "input_layernorm"}
        names = names if is_mixer else {"mixer": "mlp", "norm": "post_attention_layernorm"}
        return f"layers.{layer}.{names[block[2]]}."

    renamed = {_BLOCK_OF_MODEL.sub(usual, name): tensor for name, tensor in own.items()}
    return keys_first(renamed, dimensions)


def places_of_blocks(dimensions: DecoderDimensions) -> list[tuple[int, bool]]:
    """Return the layer of each of Nemotron-H's blocks, and whether it is its mixer."""
    alone = dimensions.without_feed_forward
    return [
        (i, is_mixer)
        for i in range(dimensions.layers)
        for is_mixer in ((True,) if i in alone else (True, False))
    ]


def halves_as_layers(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Falcon-H1's layers are two each, of which the second has the state space."""

    def usual(part: re.Match[str]) -> str:
        second = part[2] not in ("self_attn", "input_layernorm")
        return f"layers.{2 * int(part[1]) + second}.{part[2]}."

    renamed = {_PART_OF_LAYER.sub(usual, name): tensor for name, tensor in own.items()}
    return keys_first(renamed, dimensions)


CODES = "mxfp4"
"""The quant_method of configurations whose experts have these codes."""

_EXPERTS = ".mlp.experts."
_LISTED = re.compile(r"\.experts\.\d+\.")
_BLOCKS, _SCALES = "_blocks", "_scales"
_IN_TURNS = ".gate_up_proj"


def experts_by_rows(own: Mapping[str, StoredTensor], _: object) -> dict[str, StoredTensor]:
    """Experts in kvcast's order; codes lose their suffixes."""
    tensors = {}
    for name, tensor in own.items():
        scales = own.get(name.removesuffix(_BLOCKS) + _SCALES)
        if _EXPERTS not in name or _LISTED.search(name):
            tensors[name] = tensor
        elif name.endswith(_BLOCKS) and scales is not None:
            whole = name.removesuffix(_BLOCKS)
            if whole not in own:  # as floats, which an adapter changed
                tensors[whole] = _of_codes(tensor, scales, whole)
        elif not name.endswith(_SCALES):
            tensors[name] = _of_floats(tensor, name)
    return tensors


def experts_in_codes(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the floats of experts' codes, by the names and in the order that floats have."""
    rows = {
        name.removesuffix(_BLOCKS): _of_codes(blocks, scales, "")
        for name, blocks in stored.items()
        if _EXPERTS in name and name.endswith(_BLOCKS)
        if (scales := stored.get(name.removesuffix(_BLOCKS) + _SCALES))
    }
    return {name: _inputs_first(tensor) for name, tensor in rows.items()}


def _inputs_first(tensor: StoredTensor) -> StoredTensor:
    *stacked, outputs, inputs = tensor.shape
    return replace(
        tensor, shape=(*stacked, inputs, outputs), read=lambda: tensor.read().swapaxes(-1, -2)
    )


def _of_floats(tensor: StoredTensor, name: str) -> StoredTensor:
    shape, is_matrix = tensor.shape, len(tensor.shape) == 3

    def read() -> NDArray[np.generic]:
        values = tensor.read()
        return _apart(values.swapaxes(1, 2) if is_matrix else values, name)

    turned = (shape[0], *shape[:0:-1]) if is_matrix else shape
    return replace(tensor, shape=turned, read=read, rows=None, blocks=None)


def _of_codes(blocks: StoredTensor, scales: StoredTensor, name: str) -> StoredTensor:
    if blocks.shape != (*scales.shape, BLOCK // 2) or len(scales.shape) != 3:
        return blocks  # of a shape that no configuration asks for
    codes = replace(blocks, read=lambda: _apart(unpack_nibbles(blocks.read()), name))
    return mxfp4_blocks(codes, replace(scales, read=lambda: _apart(scales.read(), name)), name)


def _apart(rows: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    if _IN_TURNS not in name:
        return rows
    return np.concatenate([rows[:, 0::2], rows[:, 1::2]], 1)
