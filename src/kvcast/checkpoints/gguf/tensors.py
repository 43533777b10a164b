"""GGUF tensor names, and transforms of tensors where a name table is not enough."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.decoder.tensors import places_of_blocks
from kvcast.checkpoints.tensor_names import (
    apply_change,
    by_part,
    join_flat,
    pick,
    reorder,
    transpose,
)
from kvcast.errors import KvcastError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.mixers import DeltaNet

LAYER = "decoder.layers.{i}"
NAMES: Mapping[str, Sequence[str]] = {
    "decoder.embedding.weight": ("token_embd.weight",),
    "decoder.norm.weight": ("output_norm.weight",),
    "decoder.head.weight": ("output.weight",),
    f"{LAYER}.attention_norm.weight": ("blk.{i}.attn_norm.weight",),
    f"{LAYER}.attention.qkv.weight": tuple(f"blk.{{i}}.attn_{x}.weight" for x in "qkv"),
    f"{LAYER}.attention.qkv.bias": tuple(f"blk.{{i}}.attn_{x}.bias" for x in "qkv"),
    f"{LAYER}.attention.out.weight": ("blk.{i}.attn_output.weight",),
    f"{LAYER}.attention.out.bias": ("blk.{i}.attn_output.bias",),
    f"{LAYER}.attention.query_norm.weight": ("blk.{i}.attn_q_norm.weight",),
    f"{LAYER}.attention.key_norm.weight": ("blk.{i}.attn_k_norm.weight",),
    f"{LAYER}.attention_post_norm.weight": ("blk.{i}.post_attention_norm.weight",),
    f"{LAYER}.feed_forward_norm.weight": ("blk.{i}.ffn_norm.weight",),
    f"{LAYER}.feed_forward.gate_up.weight": (
        "blk.{i}.ffn_gate.weight",
        "blk.{i}.ffn_up.weight",
    ),
    f"{LAYER}.feed_forward.up.weight": ("blk.{i}.ffn_up.weight",),
    f"{LAYER}.feed_forward.down.weight": ("blk.{i}.ffn_down.weight",),
    f"{LAYER}.feed_forward_post_norm.weight": ("blk.{i}.post_ffw_norm.weight",),
    f"{LAYER}.feed_forward.router.weight": ("blk.{i}.ffn_gate_inp.weight",),
    # Files stack the experts; `_read_tensors` splits them.
    f"{LAYER}.feed_forward.gate_up": (
        "blk.{i}.ffn_gate_exps.weight.{e}",
        "blk.{i}.ffn_up_exps.weight.{e}",
    ),
    f"{LAYER}.feed_forward.down": ("blk.{i}.ffn_down_exps.weight.{e}",),
    f"{LAYER}.feed_forward.shared.gate_up.weight": (
        "blk.{i}.ffn_gate_shexp.weight",
        "blk.{i}.ffn_up_shexp.weight",
    ),
    f"{LAYER}.feed_forward.shared.down.weight": ("blk.{i}.ffn_down_shexp.weight",),
    f"{LAYER}.feed_forward.shared.gate.weight": ("blk.{i}.ffn_gate_inp_shexp.weight",),
    f"{LAYER}.feed_forward.router.bias": ("blk.{i}.ffn_gate_inp.bias",),
    f"{LAYER}.feed_forward.choice_bias": ("blk.{i}.exp_probs_b.bias",),
    f"{LAYER}.feed_forward.gate_up_bias": (
        "blk.{i}.ffn_gate_exps.bias.{e}",
        "blk.{i}.ffn_up_exps.bias.{e}",
    ),
    f"{LAYER}.feed_forward.down_bias": ("blk.{i}.ffn_down_exps.bias.{e}",),
    f"{LAYER}.attention.sinks": ("blk.{i}.attn_sinks.weight",),
    "decoder.norm.bias": ("output_norm.bias",),
    f"{LAYER}.attention_norm.bias": ("blk.{i}.attn_norm.bias",),
    f"{LAYER}.feed_forward_norm.bias": ("blk.{i}.ffn_norm.bias",),
    f"{LAYER}.feed_forward.up.bias": ("blk.{i}.ffn_up.bias",),
    f"{LAYER}.feed_forward.down.bias": ("blk.{i}.ffn_down.bias",),
    "decoder.head.bias": ("output.bias",),
    "decoder.positions": ("position_embd.weight",),
}
"""Names of the files' tensors, by canonical name."""
FUSED_GATE_UP = {f"{LAYER}.feed_forward.gate_up.weight": ("blk.{i}.ffn_up.weight",)}
FUSED_QKV = {
    f"{LAYER}.attention.qkv.{leaf}": (f"blk.{{i}}.attn_qkv.{leaf}",) for leaf in ("weight", "bias")
}
NORM_AFTER_ATTENTION = {
    f"{LAYER}.feed_forward_norm.weight": ("blk.{i}.post_attention_norm.weight",)
}
FUSED_EXPERTS = {f"{LAYER}.feed_forward.gate_up": ("blk.{i}.ffn_gate_up_exps.weight.{e}",)}
STATE_SPACE_NAMES = {
    **NAMES,
    **{
        f"{LAYER}.state_space.{ours}": (f"blk.{{i}}.{theirs}",)
        for ours, theirs in {
            "in.weight": "ssm_in.weight",
            "kernel": "ssm_conv1d.weight",
            "kernel_bias": "ssm_conv1d.bias",
            "decay": "ssm_a",
            "step_bias": "ssm_dt.bias",
            "skip": "ssm_d",
            "norm.weight": "ssm_norm.weight",
            "out.weight": "ssm_out.weight",
        }.items()
    },
}
XIELU_NAMES = {
    **NAMES,
    **{
        f"{LAYER}.feed_forward.xielu.{ours}": (f"blk.{{i}}.act_fn.{theirs}",)
        for ours, theirs in {"slope": "beta", "rise": "alpha_p", "fall": "alpha_n"}.items()
    },
}
LFM2_NAMES = {
    **NAMES,
    "decoder.norm.weight": ("token_embd_norm.weight",),
    f"{LAYER}.convolution.kernel": ("blk.{i}.shortconv.conv.weight",),
    f"{LAYER}.convolution.bias": ("blk.{i}.shortconv.conv.bias",),
    **{
        f"{LAYER}.convolution.{ours}.{leaf}": (f"blk.{{i}}.shortconv.{theirs}_proj.{leaf}",)
        for ours, theirs in (("input", "in"), ("out", "out"))
        for leaf in ("weight", "bias")
    },
}
QWEN35_NAMES = {
    **NAMES,
    **NORM_AFTER_ATTENTION,
    f"{LAYER}.attention.gate.weight": ("blk.{i}.attn_q_gate.weight",),
    f"{LAYER}.delta.input.weight": tuple(
        f"blk.{{i}}.{name}.weight" for name in ("ssm_qkv", "attn_gate", "ssm_beta", "ssm_alpha")
    ),
    f"{LAYER}.delta.kernel": ("blk.{i}.ssm_conv1d.weight",),
    f"{LAYER}.delta.decay": ("blk.{i}.ssm_a",),
    f"{LAYER}.delta.step_bias": ("blk.{i}.ssm_dt.bias",),
    f"{LAYER}.delta.norm.weight": ("blk.{i}.ssm_norm.weight",),
    f"{LAYER}.delta.out.weight": ("blk.{i}.ssm_out.weight",),
}
GEMMA4_NAMES = {
    **NAMES,
    "decoder.layer_embedding.weight": ("per_layer_token_embd.weight",),
    "decoder.layer_projection.weight": ("per_layer_model_proj.weight",),
    "decoder.layer_projection_norm.weight": ("per_layer_proj_norm.weight",),
    f"{LAYER}.layer_input.gate.weight": ("blk.{i}.inp_gate.weight",),
    f"{LAYER}.layer_input.out.weight": ("blk.{i}.proj.weight",),
    f"{LAYER}.layer_input_norm.weight": ("blk.{i}.post_norm.weight",),
    f"{LAYER}.scale": ("blk.{i}.layer_output_scale.weight",),
    f"{LAYER}.feed_forward_own_norm.weight": ("blk.{i}.post_ffw_norm_1.weight",),
    f"{LAYER}.experts_norm.weight": ("blk.{i}.pre_ffw_norm_2.weight",),
    f"{LAYER}.experts_post_norm.weight": ("blk.{i}.post_ffw_norm_2.weight",),
    f"{LAYER}.experts.router.weight": ("blk.{i}.ffn_gate_inp.weight",),
    f"{LAYER}.experts.router_norm.weight": ("blk.{i}.ffn_gate_inp.scale",),
    f"{LAYER}.experts.scales": ("blk.{i}.ffn_down_exps.scale",),
    f"{LAYER}.experts.gate_up": ("blk.{i}.ffn_gate_up_exps.weight.{e}",),
    f"{LAYER}.experts.down": ("blk.{i}.ffn_down_exps.weight.{e}",),
}
AFMOE_NAMES = {**NAMES, f"{LAYER}.attention.gate.weight": ("blk.{i}.attn_gate.weight",)}
CHOICE_BIAS = ".exp_probs_b.bias"
_BLOCK = re.compile(r"blk\.(\d{1,9})\.(\w+)")
QUERY_NORM, KEY_NORM = ".attn_q_norm.weight", ".attn_k_norm.weight"


_QUERY, _QUERY_GATE = ".attn_q.weight", ".attn_q_gate.weight"
_QKV, _CONVOLVED = ".attn_qkv.weight", ".ssm_qkv.weight"
_KERNEL, _GATE, _OUT = ".ssm_conv1d.weight", ".attn_gate.weight", ".ssm_out.weight"
DECAY = ".ssm_a"
_OF_HEADS = (".ssm_beta.weight", ".ssm_alpha.weight", ".ssm_dt.bias", DECAY)


def delta_net_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """In other formats' order, gates and convolved channels under separate names."""
    sizes = dimensions.delta
    if sizes is not None and sizes.key_heads != sizes.value_heads:
        stored = {name: _beside_their_key(name, tensor, sizes) for name, tensor in stored.items()}
    return _as_elsewhere(stored, dimensions)


def grouped_delta_net_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Return the same of files whose value heads are grouped by key head."""
    sizes = dimensions.delta
    if sizes is None:
        return _as_elsewhere(stored, dimensions)
    each = sizes.value_heads // sizes.key_heads
    keys, values = sizes.key_dim, each * sizes.value_dim
    projections: Mapping[str, Mapping[str, Sequence[int]]] = {
        ".ssm_ba.weight": {".ssm_beta.weight": (each,), ".ssm_alpha.weight": (each,)},
        ".ssm_in.weight": {_QKV: (keys, keys, values), _GATE: (values,)},  # of older files
    }
    apart: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        whole = next((end for end in projections if name.endswith(end)), None)
        if whole is None:
            apart[name] = tensor
        else:
            layer, parts = name.removesuffix(whole), projections[whole]
            divided = by_part(tensor, sizes.key_heads, parts)
            apart |= {layer + part: rows for part, rows in divided.items()}
    return _as_elsewhere(apart, dimensions)


def _as_elsewhere(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    own: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        if name.endswith(_QUERY) and tensor.shape[0] == 2 * dimensions.heads * dimensions.head_dim:
            rows = np.arange(tensor.shape[0]).reshape(-1, 2, dimensions.head_dim)
            query, gate = (pick(tensor, rows[:, part].ravel()) for part in range(2))
            own |= {name: query, name.replace(_QUERY, _QUERY_GATE): gate}
        elif name.endswith(DECAY):
            own[name] = apply_change(tensor, partial(logarithms, name))
        else:
            # Attention has queries, keys and values by the same name, whose heads turn.
            is_kernel = name.endswith(_KERNEL)
            own[name.replace(_QKV, _CONVOLVED)] = transpose(tensor) if is_kernel else tensor
    return own


def _beside_their_key(name: str, tensor: StoredTensor, sizes: DeltaNet) -> StoredTensor:
    if name.endswith((_QKV, _KERNEL)):
        return reorder(tensor, partial(_group_heads, sizes, 2 * sizes.keys, sizes.value_dim))
    if name.endswith(_GATE):
        return reorder(tensor, partial(_group_heads, sizes, 0, sizes.value_dim))
    if name.endswith(_OF_HEADS):
        return reorder(tensor, partial(_group_heads, sizes, 0, 1))
    if name.endswith(_OUT):  # its columns, along which codes are in blocks
        return apply_change(
            tensor, lambda matrix: _group_heads(sizes, 0, sizes.value_dim, matrix.T).T
        )
    return tensor


def _group_heads(sizes: DeltaNet, first: int, size: int, rows: NDArray[Any]) -> NDArray[Any]:
    """Reorder the heads, of `size` rows each, that begin after the `first` rows."""
    turns = rows[first:].reshape(-1, sizes.key_heads, size, *rows.shape[1:])
    heads = turns.swapaxes(0, 1).reshape(rows[first:].shape)
    return np.concatenate([rows[:first], heads])


def logarithms(name: str, decay: NDArray[Any]) -> NDArray[np.float32]:
    """Logarithms of minus a tensor; KvcastError for values above 0."""
    if not (decay <= 0).all():
        raise KvcastError(f"tensor {name} is damaged: a number in it is above 0")
    with np.errstate(divide="ignore"):
        logarithms: NDArray[np.float32] = np.log(-decay.astype(np.float32))
    return logarithms


_SHORT_KERNEL = ".shortconv.conv.weight"
_STEPS = (DECAY, ".ssm_d", ".ssm_norm.weight")


def gemma4_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Omit keys and values of layers that read another's cache; divide norms of routers."""
    layers = range(dimensions.reading, dimensions.layers)
    unread = {
        f"blk.{i}.attn_{name}.weight" for i in layers for name in ("k", "v", "k_norm", "v_norm")
    }

    def scale(weight: NDArray[Any]) -> NDArray[np.float32]:
        return weight.astype(np.float32) * np.float32(dimensions.width**-0.5)

    return {
        name: apply_change(tensor, scale) if name.endswith(".ffn_gate_inp.scale") else tensor
        for name, tensor in stored.items()
        if name not in unread
    }


def transpose_kernels(
    stored: Mapping[str, StoredTensor], _: DecoderDimensions
) -> dict[str, StoredTensor]:
    """[width, length] to [length, width]."""
    return {
        name: transpose(tensor) if name.endswith(_SHORT_KERNEL) else tensor
        for name, tensor in stored.items()
    }


def state_space_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """In Mamba's layout, keys before values among convolved channels."""
    space = dimensions.state_space
    if space is None:
        return dict(stored)
    channels, inputs = (np.array(order) for order in space.mamba_order())

    def own(name: str, tensor: StoredTensor) -> StoredTensor:
        if name.endswith(".ssm_in.weight") and tensor.shape[0] == len(inputs):
            return pick(tensor, inputs)
        if name.endswith(".ssm_conv1d.bias") and tensor.shape == channels.shape:
            return pick(tensor, channels)
        if name.endswith(".ssm_conv1d.weight") and tensor.shape[0] == len(channels):
            return transpose(pick(tensor, channels))
        if name.endswith(_STEPS):
            tensor = join_flat([tensor])
        return apply_change(tensor, partial(logarithms, name)) if name.endswith(DECAY) else tensor

    return {name: own(name, tensor) for name, tensor in stored.items()}


def nemotron_h_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Rename blocks, of which each has a norm, by their layers."""
    places = places_of_blocks(dimensions)

    def usual(block: re.Match[str]) -> str:
        if (number := int(block[1])) >= len(places):
            return block[0]
        layer, is_mixer = places[number]
        norm = "ffn_norm" if block[2] == "attn_norm" and not is_mixer else block[2]
        return f"blk.{layer}.{norm}"

    own = state_space_tensors(stored, dimensions)
    return {_BLOCK.sub(usual, name): tensor for name, tensor in own.items()}


def falcon_h1_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Make two layers of each, of which the second has the state space.

    The conversion names a norm without `.weight`.
    """

    def usual(part: re.Match[str]) -> str:
        second = not part[2].startswith("attn_")
        return f"blk.{2 * int(part[1]) + second}.{part[2]}"

    named = {
        f"{name}.weight" if name.endswith(".ffn_norm") else name: tensor
        for name, tensor in state_space_tensors(stored, dimensions).items()
    }
    return {_BLOCK.sub(usual, name): tensor for name, tensor in named.items()}


def norms_of_ones(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """OLMo's norms have no weights."""
    ones = StoredTensor(
        shape=(dimensions.width,), read=lambda: np.ones(dimensions.width, np.float32)
    )
    layers = [
        f"blk.{i}.{name}_norm.weight" for i in range(dimensions.layers) for name in ("attn", "ffn")
    ]
    return {**dict.fromkeys(("output_norm.weight", *layers), ones), **stored}


def second_norm_first(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Rename a block's norms if it has two: attn_norm_2 is attention's, attn_norm the MLP's."""
    if dimensions.shared_norm:
        return dict(stored)
    usual = {".attn_norm_2.": ".attn_norm.", ".attn_norm.": ".ffn_norm."}
    renamed = {}
    for name, tensor in stored.items():
        file_name = next((part for part in usual if part in name), None)
        renamed[name.replace(file_name, usual[file_name]) if file_name else name] = tensor
    return renamed
