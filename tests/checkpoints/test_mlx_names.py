"""Folders as mlx-lm 0.32.2 converts them: other names and shapes of the same numbers.

Written here as the `sanitize` of its `models/*.py` changes tensors.
"""

import re

import pytest
import torch

from checkpoints.folder_checks import assert_same_tensors, rewrite_weights
from checkpoints.tiny_decoders import random_decoder, save_decoder
from kit.decoder_cases import CASES, LAYER_NORM_CASES, SIZES
from kit.errors import one_line
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import KvcastError

LISTED = re.compile(r"(.+)\.experts\.(\d+)\.(\w+)\.weight")
USUAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def stacked(tensors, module="switch_mlp"):
    """One tensor for the experts of a layer, whose parts have the usual names."""
    whole, experts = {}, {}
    for name, x in tensors.items():
        if each := LISTED.fullmatch(name):
            place = f"{each[1]}.{module}.{USUAL.get(each[3], each[3])}.weight"
            experts.setdefault(place, []).append(x)
        else:
            whole[name] = x
    return whole | {name: torch.stack(x) for name, x in experts.items()}


def in_halves(tensors, gate_up, down, module):
    """Gates, and what they gate, in tensors of their own."""
    parts = {}
    for name, x in tensors.items():
        if name.endswith(gate_up):
            halves = zip(("gate", "up"), x.chunk(2, -2), strict=True)
            place = name.removesuffix(gate_up) + module
            parts |= {f"{place}.{half}_proj.weight": y.contiguous() for half, y in halves}
        elif name.endswith(down):
            parts[f"{name.removesuffix(down)}{module}.down_proj.weight"] = x
        else:
            parts[name] = x
    return parts


def renamed(tensors, **patterns):
    names = {
        name: re.sub("|".join(patterns), lambda found: patterns[found[0]], name) for name in tensors
    }
    return {names[name]: x for name, x in tensors.items()}


def kernels_moved(tensors):
    moved = {n: x.movedim(2, 1).contiguous() for n, x in tensors.items() if x.dim() == 3}
    return tensors | {n: x for n, x in moved.items() if ".conv" in n or "_conv" in n}


def with_ones(tensors):
    ends = ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")
    return {n: x + 1 if n.endswith(ends) else x for n, x in tensors.items()}


def keys_absorbed(tensors, heads=4, keys=12):
    """The matrices of latents, of keys with the latents' axis first."""
    own = {}
    for name, x in tensors.items():
        if ".kv_b_proj." not in name:
            own[name] = x
            continue
        each = x.reshape(heads, -1, x.shape[-1])
        block = name.removesuffix("kv_b_proj.weight")
        own[f"{block}embed_q.weight"] = each[:, :keys].swapaxes(1, 2).contiguous()
        own[f"{block}unembed_out.weight"] = each[:, keys:].contiguous()
    return own


def of_gpt_oss(tensors):
    own = {}
    for name, x in tensors.items():
        kind = ".bias" if name.endswith("_bias") else ".weight"
        place = name.removesuffix("_bias")
        x = x if ".experts." not in name or kind == ".bias" else x.swapaxes(1, 2).contiguous()
        if place.endswith("gate_up_proj"):
            place = place.removesuffix("gate_up_proj")
            own[f"{place}gate_proj{kind}"] = x[:, 0::2].contiguous()
            own[f"{place}up_proj{kind}"] = x[:, 1::2].contiguous()
        else:
            own[place + kind if ".experts." in name else name] = x
    return own


def of_kimi(tensors):
    places = {
        "block_sparse_moe.gate.e_score": "mlp.e_score",
        "block_sparse_moe": "mlp",
        **{f"{part}_conv1d": f"{part}_conv.conv" for part in "qkv"},
    }
    return keys_absorbed(kernels_moved(stacked(renamed(tensors, **places))))


TYPES = {
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "minimax_m2"), stacked),
    **dict.fromkeys(("afmoe", "dots1"), lambda tensors: stacked(tensors, "experts")),
    "granitemoe": lambda tensors: in_halves(
        tensors, "input_linear.weight", "output_linear.weight", "switch_mlp"
    ),
    "gemma4_text": lambda tensors: in_halves(
        tensors, "experts.gate_up_proj", "experts.down_proj", "experts.switch_glu"
    ),
    "gpt_oss": of_gpt_oss,
    "deepseek_v3": lambda tensors: keys_absorbed(stacked(tensors)),
    "kimi_linear": of_kimi,
    "lfm2": kernels_moved,
    "lfm2_moe": lambda tensors: stacked(kernels_moved(renamed(tensors, **USUAL))),
    "qwen3_next": lambda tensors: with_ones(kernels_moved(stacked(tensors))),
    "gpt_neox": lambda tensors: renamed(tensors, **{"gpt_neox.layers": "model.h"}),
    "apertus": lambda tensors: {
        name: x.squeeze() if ".alpha_" in name else x for name, x in tensors.items()
    },
}


def folders(path, kind):
    fields = next(fields for own, fields in (CASES | LAYER_NORM_CASES).values() if own == kind)
    if kind == "gemma4_text":
        own = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24}
        fields = {**fields, **own, "enable_moe_block": True, "use_double_wide_mlp": False}
    model = random_decoder(kind, **{**SIZES, **fields})
    return [save_decoder(model, path / name) for name in ("usual", "converted")]


@pytest.mark.parametrize("kind", TYPES)
def test_converted_folders_have_the_same_tensors(kind, tmp_path):
    usual, converted = folders(tmp_path, kind)
    rewrite_weights(converted, TYPES[kind])
    expected, checkpoint = map(open_checkpoint, (usual, converted))
    assert checkpoint.dimensions == expected.dimensions
    assert_same_tensors(checkpoint.tensors, expected.tensors)


def test_multipliers_that_mlx_has_in_weights_are_one_line(tmp_path):
    _, converted = folders(tmp_path, "falcon_h1")
    rewrite_weights(converted, kernels_moved)
    words = one_line(KvcastError, open_checkpoint, converted)
    assert "MLX multiplies weights of falcon_h1" in words
