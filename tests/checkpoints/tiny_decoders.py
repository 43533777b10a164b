"""Tiny random decoder-only models of transformers, and their tensors by canonical names."""

import json
from pathlib import Path

import torch
import transformers

SIZES = {
    "vocab_size": 19,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
_PLAIN = {"rope_type": "default", "rope_theta": 50_000.0}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
# Every setting that affects tensors or dimensions differs from its default at least once.
SETTINGS = {
    "llama": {"attention_bias": True, "rope_parameters": _PLAIN},
    "mistral": {"sliding_window": 5, "rope_parameters": _PLAIN},
    "mixtral": {"num_local_experts": 3, "num_experts_per_tok": 2},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 3},
    "qwen3": {"tie_word_embeddings": True},
    "gemma3_text": {
        "sliding_window": 7,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window_pattern": 3,
    },
    "gemma4_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 1,
        "use_double_wide_mlp": True,
        "sliding_window": 7,
        "global_head_dim": 12,
        "hidden_size_per_layer_input": 6,
        "vocab_size_per_layer_input": 19,
        "final_logit_softcapping": 30.0,
    },
    "lfm2": {
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "conv_L_cache": 5,
        "conv_bias": True,
        "block_multiple_of": 4,
        "block_ffn_dim_multiplier": 1.3,
        "norm_eps": 1e-4,
    },
}
# LFM2's names of tensors, beside those of the others.
_RENAMED = {
    "embedding_norm.": "norm.",
    ".operator_norm.": ".input_layernorm.",
    ".ffn_norm.": ".post_attention_layernorm.",
    ".self_attn.out_proj.": ".self_attn.o_proj.",
    ".q_layernorm.": ".q_norm.",
    ".k_layernorm.": ".k_norm.",
    ".feed_forward.w1.": ".mlp.gate_proj.",
    ".feed_forward.w3.": ".mlp.up_proj.",
    ".feed_forward.w2.": ".mlp.down_proj.",
}


# Gemma 4's.
_OF_ALL_LAYERS = {
    "layer_embedding.weight": "embed_tokens_per_layer",
    "layer_projection.weight": "per_layer_model_projection",
    "layer_projection_norm.weight": "per_layer_projection_norm",
}
_OF_A_LAYER = {
    "layer_input.gate.weight": "per_layer_input_gate",
    "layer_input.out.weight": "per_layer_projection",
    "layer_input_norm.weight": "post_per_layer_input_norm",
}


def random_decoder(name, seed=0, **settings):
    """Return a model for generation with every parameter random, norms and biases too."""
    torch.manual_seed(seed)
    of_type, fields = transformers.CONFIG_MAPPING[name], {**SIZES, **SETTINGS.get(name, {})}
    given = {
        field: value
        for field, value in {**fields, **settings}.items()
        if not isinstance(getattr(of_type, field, None), property)  # it follows from others
    }
    config = transformers.AutoConfig.for_model(name, **given)
    return _randomised(transformers.AutoModelForCausalLM.from_config(config))


def random_gemma_with_images():
    """Gemma 3 as published with a vision tower, which is not read."""
    torch.manual_seed(0)
    config = transformers.Gemma3Config(
        text_config={**SIZES, **SETTINGS["gemma3_text"]},
        vision_config={
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 14,
            "patch_size": 7,
        },
        mm_tokens_per_image=4,
    )
    return _randomised(transformers.Gemma3ForConditionalGeneration(config))


def random_gemma_4_that_sees_and_hears():
    """Gemma 4 as published with towers for images and sound, which are not read."""
    torch.manual_seed(0)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    image = {"intermediate_size": 8, "num_key_value_heads": 2, "head_dim": 4, "patch_size": 2}
    config = transformers.Gemma4Config(
        text_config={**SIZES, **SETTINGS["gemma4_text"]},
        vision_config={**small, **image, "position_embedding_size": 16},
        audio_config={**small, "output_proj_dims": 8, "subsampling_conv_channels": [4, 4]},
    )
    return _randomised(transformers.Gemma4ForConditionalGeneration(config))


def random_mistral_with_images():
    """Mistral 3 with a Ministral as its decoder and a vision tower, which is not read."""
    torch.manual_seed(0)
    config = transformers.Mistral3Config(
        text_config={**SIZES, "model_type": "ministral3"},
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "head_dim": 4,
            "image_size": 14,
            "patch_size": 7,
        },
    )
    return _randomised(transformers.Mistral3ForConditionalGeneration(config))


def _randomised(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model.eval()


def save_decoder(model, folder: Path, **options) -> Path:
    """Save a model beside the smallest files of a tokenizer."""
    model.save_pretrained(folder, **options)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"</s>": 2}}}')
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    )
    return folder


def _usual(name):
    for own, usual in _RENAMED.items():
        name = name.replace(own, usual)
    return name


def tensors_by_our_names(model, prefix="model"):
    """Rearrange transformers' state dict, in which experts are already stacked."""
    state = {_usual(name): tensor.float() for name, tensor in model.state_dict().items()}
    kind = model.config.get_text_config().model_type
    gemma, more = kind.startswith("gemma"), 1 if kind == "gemma3_text" else 0
    ours = {
        "embedding.weight": state[f"{prefix}.embed_tokens.weight"],
        "norm.weight": state[f"{prefix}.norm.weight"] + more,
    }
    if f"{prefix}.embed_tokens_per_layer.weight" in state:
        for name, own in _OF_ALL_LAYERS.items():
            ours[name] = state[f"{prefix}.{own}.weight"]
    if not model.config.tie_word_embeddings:
        ours["head.weight"] = state["lm_head.weight"]
    for i in range(model.config.get_text_config().num_hidden_layers):
        layer = f"{prefix}.layers.{i}"
        at = {name.removeprefix(f"{layer}."): tensor for name, tensor in state.items()}
        if "conv.conv.weight" in at:
            layer_tensors = {"attention_norm.weight": at["input_layernorm.weight"]}
            for leaf in ("weight", "bias"):
                layer_tensors[f"convolution.input.{leaf}"] = at[f"conv.in_proj.{leaf}"]
                layer_tensors[f"convolution.out.{leaf}"] = at[f"conv.out_proj.{leaf}"]
            layer_tensors["convolution.kernel"] = at["conv.conv.weight"][:, 0].T
            layer_tensors["convolution.bias"] = at["conv.conv.bias"]
        else:
            layer_tensors = {
                "attention_norm.weight": at["input_layernorm.weight"] + more,
                "attention.out.weight": at["self_attn.o_proj.weight"],
            }
        for leaf in ("weight", "bias"):
            if f"self_attn.q_proj.{leaf}" in at:
                names = [f"self_attn.{part}_proj.{leaf}" for part in "qkv"]
                parts = [at[name] for name in names if name in at]
                layer_tensors[f"attention.qkv.{leaf}"] = torch.cat(parts)
        if "self_attn.o_proj.bias" in at:
            layer_tensors["attention.out.bias"] = at["self_attn.o_proj.bias"]
        if "self_attn.q_norm.weight" in at:
            layer_tensors["attention.query_norm.weight"] = at["self_attn.q_norm.weight"] + more
            if "self_attn.k_norm.weight" in at:
                layer_tensors["attention.key_norm.weight"] = at["self_attn.k_norm.weight"] + more
        if gemma:
            for name, own in (
                ("attention_post_norm", "post_attention_layernorm"),
                ("feed_forward_norm", "pre_feedforward_layernorm"),
                ("feed_forward_post_norm", "post_feedforward_layernorm"),
            ):
                layer_tensors[f"{name}.weight"] = at[f"{own}.weight"] + more
        else:
            layer_tensors["feed_forward_norm.weight"] = at["post_attention_layernorm.weight"]
        if "layer_scalar" in at:
            layer_tensors["scale"] = at["layer_scalar"]
            for name, own in _OF_A_LAYER.items():
                layer_tensors[name] = at[f"{own}.weight"]
        if "mlp.gate.weight" in at:
            layer_tensors["feed_forward.router.weight"] = at["mlp.gate.weight"]
            layer_tensors["feed_forward.gate_up"] = at["mlp.experts.gate_up_proj"]
            layer_tensors["feed_forward.down"] = at["mlp.experts.down_proj"]
        else:
            gate_up = [at["mlp.gate_proj.weight"], at["mlp.up_proj.weight"]]
            layer_tensors["feed_forward.gate_up.weight"] = torch.cat(gate_up)
            layer_tensors["feed_forward.down.weight"] = at["mlp.down_proj.weight"]
        ours |= {f"layers.{i}.{name}": tensor for name, tensor in layer_tensors.items()}
    return {f"decoder.{name}": tensor.numpy() for name, tensor in ours.items()}
