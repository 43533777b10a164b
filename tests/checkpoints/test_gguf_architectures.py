"""GGUF architectures beside the Hugging Face folders that llama.cpp converts them from."""

from dataclasses import replace

import numpy as np
import pytest

from checkpoints.tiny_decoders import random_decoder, save_decoder
from kit.tiny_gguf import VOCAB, permuted, sizes, vocabulary, write
from kvcast.checkpoints.source import open_checkpoint

LAYERS, WIDTH, INNER, EXPERTS, EXPERT_INNER, SHARED = 2, 64, 48, 3, 40, 56
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "head_dim": 16,
    "pad_token_id": 0,
    "rms_norm_eps": 2**-17,
}
OF_EXPERTS = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_INNER,
}
SHORT, LONG = [1.0, 1.25, 1.5, 1.75, 2.0, 2.5], [1.0, 2.0, 4.0, 6.0, 8.0, 9.0]
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
FOUR, FOUR_BLOCKS = {"num_hidden_layers": 4}, {"block_count": 4}
WINDOW = {"attention__sliding_window": 9}
LAYER_NORM = {"attention__layer_norm_epsilon": 2**-17}
# Of the folder's configuration, and of the file beside the sizes of all.
MODELS = {
    "phi3": (
        "phi3",
        {
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "partial_rotary_factor": 0.75,
                "short_factor": SHORT,
                "long_factor": LONG,
                "attention_factor": 1.25,
                "factor": 1.0,
            },
            "sliding_window": 9,
        },
        {
            "rope__dimension_count": 12,
            "rope__scaling__original_context_length": 32,
            "rope__scaling__attn_factor": 1.25,
            "attention__sliding_window": 9,
        },
    ),
    "glm4": ("glm4", {}, {"rope__dimension_count": 8}),
    "qwen2moe": (
        "qwen2_moe",
        {**OF_EXPERTS, "shared_expert_intermediate_size": SHARED},
        {"expert_shared_feed_forward_length": SHARED},
    ),
    "qwen3moe": ("qwen3_moe", {**OF_EXPERTS, "norm_topk_prob": True}, {}),
    "gpt-oss": (
        "gpt_oss",
        {
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "sliding_window": 9,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "truncate": False, **YARN},
        },
        {
            "attention__sliding_window": 9,
            "rope__scaling__type": "yarn",
            "rope__scaling__factor": 4.0,
            "rope__scaling__original_context_length": 16,
            "expert_feed_forward_length": INNER,
        },
    ),
    "gemma": ("gemma", {}, {}),
    "gemma2": (
        "gemma2",
        {"sliding_window": 9, "query_pre_attn_scalar": 16},
        {
            "attention__sliding_window": 9,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 8.0,
            "attention_multiplier": 0.5,
            "residual_multiplier": 0.25,
            "logits_scaling": 4.0,
        },
        {
            "embedding_scale": 8.0,
            "attention__scale": 0.5,
            "residual_scale": 0.25,
            "logit_scale": 4.0,
        },
    ),
    "smollm3": ("smollm3", FOUR, FOUR_BLOCKS),
    "olmo2": ("olmo3", {**FOUR, "sliding_window": 9}, {**FOUR_BLOCKS, **WINDOW}),
    "starcoder2": ("starcoder2", {"norm_epsilon": 2**-17}, LAYER_NORM),
    "command-r": (
        "cohere",
        {"layer_norm_eps": 2**-17, "logit_scale": 0.25},
        {**LAYER_NORM, "logit_scale": 0.25},
    ),
    "cohere2": (
        "cohere2",
        {**FOUR, "sliding_window": 9, "layer_norm_eps": 2**-17, "logit_scale": 0.25},
        {**FOUR_BLOCKS, **WINDOW, **LAYER_NORM, "logit_scale": 0.25},
    ),
}
POST_NORMS = ("gpt-oss", "gemma2", "olmo2")
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}


def converted(architecture, model):
    """The tensors of a file, as llama.cpp's conversion names and orders them."""
    names = dict(NAMES)
    if architecture in POST_NORMS:
        names["post_attention_layernorm"] = "post_attention_norm"
    arrays = {}
    for name, tensor in model.state_dict().items():
        array, leaf = tensor.float().numpy(), name.rpartition(".")[2]
        before, _, number = name.removesuffix(f".{leaf}").partition("layers.")
        number, _, module = number.partition(".")
        block = f"blk.{number}." if number else ""
        if module == "mlp.experts":
            arrays |= {f"{block}{ours}": part for ours, part in experts(leaf, array, architecture)}
        elif leaf == "sinks":
            arrays[f"{block}attn_sinks.weight"] = array
        else:
            ours = names[module if number else before]
            array = array[0] if ours == "ffn_gate_inp_shexp" else array
            array = array + 1 if "gemma" in architecture and "norm" in ours else array
            arrays[f"{block}{ours}.{leaf}"] = array
    if model.config.tie_word_embeddings:
        del arrays["output.weight"]
    if architecture in ("granite", "smollm3"):  # as Llama's
        return {name: permuted(name, array) for name, array in arrays.items()}
    return arrays


def experts(leaf, array, architecture):
    """Yield gates and what they multiply apart, [experts, outputs, inputs]."""
    kind = "bias" if leaf.endswith("_bias") else "weight"
    in_turns = architecture == "gpt-oss"
    if in_turns and kind == "weight":
        array = array.swapaxes(1, 2)
    if leaf.startswith("down"):
        yield f"ffn_down_exps.{kind}", array
        return
    parts = (array[:, 0::2], array[:, 1::2]) if in_turns else np.split(array, 2, axis=1)
    for name, part in zip(("gate", "up"), parts, strict=True):
        yield f"ffn_{name}_exps.{kind}", np.ascontiguousarray(part)


@pytest.mark.parametrize("architecture", MODELS)
def test_a_file_is_the_folder_that_it_was_made_from(architecture, tmp_path):
    kind, settings, more = MODELS[architecture]
    model = random_decoder(kind, **{**SIZES, **settings})
    folder = open_checkpoint(save_decoder(model, tmp_path / "folder"))
    values = {
        "attention__layer_norm_rms_epsilon": 2**-17,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "expert_count": EXPERTS,
        "expert_used_count": 2,
        "expert_feed_forward_length": EXPERT_INNER,
        "rope__freq_base": (folder.dimensions.rotary or folder.dimensions.window_rotary).base,
        **more,
    }
    arrays = converted(architecture, model)
    if architecture == "phi3":
        arrays |= {
            f"rope_factors_{name}.weight": np.array(divisors, np.float32)
            for name, divisors in (("short", SHORT), ("long", LONG))
        }
    path = tmp_path / "model.gguf"
    write(path, architecture, sizes(architecture, **values) | vocabulary(), arrays)
    file = open_checkpoint(path)
    assert file.dimensions == replace(folder.dimensions, architecture=architecture)
    assert set(file.tensors) == set(folder.tensors)
    for name, tensor in folder.tensors.items():
        np.testing.assert_array_equal(file.tensors[name], tensor, err_msg=name)
