"""Gemma's model types in Hugging Face layout: a row for each."""

from collections.abc import Mapping
from dataclasses import replace

from kvcast.checkpoints.decoder.fields import (
    gemma1,
    gemma2,
    gemma3,
    gemma3n,
    gemma4,
    muse_glimmer,
    restate_gemma3n,
    restate_gemma4,
    windowed_but_every_fourth_from_the_last,
    windowed_but_every_nth,
)
from kvcast.checkpoints.decoder.model_type import DEFAULTS, IMAGES, DecoderType
from kvcast.checkpoints.decoder.rotary import FULL, SHARE, SLIDING
from kvcast.checkpoints.decoder.tensor_names import (
    GEMMA_3N_NAMES,
    GEMMA_4_NAMES,
    GEMMA_NAMES,
    MUSE_GLIMMER_NAMES,
)
from kvcast.checkpoints.decoder.tensors import head_norms_of_ones, scale_routers

_GEMMA_1 = DecoderType(
    defaults={
        **DEFAULTS,
        "hidden_act": "gelu_pytorch_tanh",
        "num_key_value_heads": 16,
        "head_dim": 256,
        "attention_bias": False,
        "use_bidirectional_attention": False,
        "tie_word_embeddings": True,
    },
    particulars=gemma1,
    norms_less_one=True,
)


_GEMMA_2 = replace(
    _GEMMA_1,
    defaults={
        **_GEMMA_1.defaults,
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    windowed=windowed_but_every_nth,
    particulars=gemma2,
    names=GEMMA_NAMES,
)

_GEMMA_3 = DecoderType(
    # Published configurations of the larger models list little more than what differs from the 2B.
    defaults={
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 256,
        "attention_bias": False,
        "use_bidirectional_attention": False,
        "tie_word_embeddings": True,
    },
    windowed=windowed_but_every_nth,
    particulars=gemma3,
    names=GEMMA_NAMES,
    norms_less_one=True,
    foreign=IMAGES,
)


_GEMMA_4 = DecoderType(
    defaults={
        "vocab_size": 262_144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_parameters": {
            FULL: {"rope_type": "proportional", SHARE: 0.25, "rope_theta": 1_000_000.0},
            SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "sliding_window": 512,
        "final_logit_softcapping": None,
        "attention_bias": False,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
        "tie_word_embeddings": True,
    },
    restated=restate_gemma4,
    particulars=gemma4,
    names=GEMMA_4_NAMES,
    prepare=scale_routers,
    foreign=(*IMAGES, "audio_tower.", "embed_vision.", "embed_audio."),
)


_GEMMA_4_UNIFIED = replace(
    _GEMMA_4,
    defaults={
        **_GEMMA_4.defaults,
        "max_position_embeddings": 262_144,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
    },
)


_MUSE_GLIMMER = DecoderType(
    defaults={
        "post_norm_eps": 1e-8,
        **DEFAULTS,
        "hidden_activation": "silu",
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "sliding_window": 2048,
        "final_logit_softcapping": 20.0,
        "qk_scale_factor": 3.87,
        "output_multiplier": 0.19611613513818404,
    },
    windowed=windowed_but_every_fourth_from_the_last,
    particulars=muse_glimmer,
    names=MUSE_GLIMMER_NAMES,
    norms_less_one=True,
    whole_norms=(".norm.weight", "q_norm.weight", "k_norm.weight"),
    prepare=head_norms_of_ones,
    foreign=(*IMAGES, "vision_adapter.", "vision_projection."),
)


_GEMMA_3N = DecoderType(
    defaults={
        **DEFAULTS,
        "vocab_size": 262_400,
        "hidden_size": 2048,
        "intermediate_size": 16_384,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 32_768,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 512,
        "final_logit_softcapping": 30.0,
        "attention_bias": False,
        "num_kv_shared_layers": 15,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
        "altup_num_inputs": 4,
        "altup_active_idx": 0,
        "altup_correct_scale": True,
        "laurel_rank": 64,
        "tie_word_embeddings": True,
    },
    windowed=lambda _fields, layer: (layer + 1) % 5 != 0,
    restated=restate_gemma3n,
    particulars=gemma3n,
    names=GEMMA_3N_NAMES,
    foreign=_GEMMA_4.foreign,
)


GEMMA_TYPES: Mapping[str, DecoderType] = {
    "gemma3n_text": _GEMMA_3N,
    "gemma3n": _GEMMA_3N,
    "muse_glimmer_text": _MUSE_GLIMMER,
    "muse_glimmer": _MUSE_GLIMMER,
    "gemma": _GEMMA_1,
    "gemma2": _GEMMA_2,
    "gemma3_text": _GEMMA_3,
    "gemma3": _GEMMA_3,
    "gemma4_text": _GEMMA_4,
    "gemma4": _GEMMA_4,
    "gemma4_unified_text": _GEMMA_4_UNIFIED,
    "gemma4_unified": _GEMMA_4_UNIFIED,
}
