"""Random models of transformers that read a source and write a target, as folders on disk.

BART, its relatives, T5Gemma and T5Gemma 2.

Every field that changes a result has another value in one of KINDS.
"""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from kit.in_transformers import tiny_unigram

VOCAB, START, PAD, END = 96, 5, 0, 1  # as the tokenizer's
POSITIONS = 40
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": POSITIONS,
    "decoder_start_token_id": START,
    "bos_token_id": 3,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "forced_eos_token_id": None,
}
_GEMMA_DECODER: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": POSITIONS,
    "query_pre_attn_scalar": 20,
    "sliding_window": 7,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 10.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "rms_norm_eps": 0.01,
    "bos_token_id": START,
    "pad_token_id": PAD,
    "eos_token_id": END,
}
_GEMMA_ENCODER: dict[str, Any] = {
    **_GEMMA_DECODER,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "head_dim": 8,
    "sliding_window": 5,
    "attention_bias": True,
}
_GEMMA2_DECODER: dict[str, Any] = {
    **_GEMMA_DECODER,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
    },
}
_GEMMA2_ENCODER: dict[str, Any] = {
    "text_config": {
        **_GEMMA2_DECODER,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "query_pre_attn_scalar": 6,
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 6,
        "attention_bias": True,
        "rms_norm_eps": 0.02,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "mm_tokens_per_image": 4,
    "eoi_token_index": 33,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("bart", {}),
    "bart-scaled": ("bart", {"scale_embedding": True, "activation_function": "relu"}),
    "marian": ("marian", {"scale_embedding": True, "activation_function": "swish"}),
    "marian-apart": (
        "marian",
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 80},
    ),
    "mbart": ("mbart", {"activation_function": "gelu_new"}),
    "pegasus": ("pegasus", {"activation_function": "relu"}),
    "m2m_100": ("m2m_100", {"scale_embedding": False, "pad_token_id": PAD}),
    "blenderbot": ("blenderbot", {"encoder_layers": 1}),
    "blenderbot-small": ("blenderbot-small", {"scale_embedding": True}),
    "t5gemma": ("t5gemma", {"encoder": _GEMMA_ENCODER, "decoder": _GEMMA_DECODER}),
    "t5gemma-plain": (
        "t5gemma",
        {
            "encoder": {**_GEMMA_ENCODER, "attn_logit_softcapping": None},
            "decoder": {
                **_GEMMA_DECODER,
                "attn_logit_softcapping": None,
                "final_logit_softcapping": None,
                "attention_bias": True,
                "hidden_activation": "silu",
            },
            "tie_word_embeddings": False,
        },
    ),
    "t5gemma2": ("t5gemma2", {"encoder": _GEMMA2_ENCODER, "decoder": _GEMMA2_DECODER}),
    "t5gemma2-apart": (
        "t5gemma2",
        {
            "encoder": {
                **_GEMMA2_ENCODER,
                "text_config": {
                    **_GEMMA2_ENCODER["text_config"],
                    "layer_types": None,
                    "sliding_window_pattern": 2,
                    "sliding_window": 5,
                    "hidden_activation": "silu",
                },
            },
            "decoder": {
                **_GEMMA2_DECODER,
                "final_logit_softcapping": None,
                "attention_bias": True,
                "sliding_window": 2 * POSITIONS,
            },
            "tie_word_embeddings": False,
        },
    ),
}


def random_bart(kind: str, seed: int = 0) -> Any:
    """One of KINDS, every weight random and large enough to move the logits."""
    model_type, settings = KINDS[kind]
    torch.manual_seed(seed)
    sizes = {} if "encoder" in settings else _SIZES
    config = AutoConfig.for_model(model_type, **sizes | settings)
    model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                # T5Gemma keeps its norms' weights less one.
                parameter.normal_(float(not model_type.startswith("t5gemma")), 0.2)
            elif parameter.requires_grad:  # sinusoidal positions are fixed
                # Attention that moves texts, and biases that do not decide them alone.
                mixes = "out_proj" in name or "fc2" in name
                parameter.normal_(0, 0.05 if "bias" in name else 0.6 if mixes else 0.3)
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.normal_(0, 0.4)
                buffer[0, END] = 1.5  # or nothing ends before its length
    return model


def save_bart(model: Any, folder: Path) -> Path:
    """Save a whole Hugging Face folder."""
    model.save_pretrained(folder)
    tiny_unigram().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return folder
