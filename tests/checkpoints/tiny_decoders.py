"""Tiny random decoder-only models of transformers, as folders on disk."""

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
    auto = transformers.AutoModelForCausalLM
    if name == "mistral4":  # of text alone, and counted among models with images
        auto = transformers.AutoModelForImageTextToText
    model = auto.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        for name, buffer in model.named_buffers():
            if name.endswith("_bias"):
                buffer.normal_()
    return model


def save_decoder(model, folder: Path, **options) -> Path:
    model.save_pretrained(folder, **options)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"</s>": 2}}}')
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    )
    return folder
