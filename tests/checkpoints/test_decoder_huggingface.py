import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from checkpoints.folder_checks import assert_same_tensors, rewrite_weights
from checkpoints.tiny_decoders import (
    LLAMA3,
    SETTINGS,
    SIZES,
    random_decoder,
    random_gemma_4_that_sees_and_hears,
    random_gemma_with_images,
    random_mistral_with_images,
    save_decoder,
    tensors_by_our_names,
)
from checkpoints.tiny_whisper import edit_json
from kvcast.checkpoints.decoder.huggingface import TYPES, decoder_dimensions
from kvcast.checkpoints.source import fingerprint, open_checkpoint
from kvcast.families.decoder import DECODER
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.decoder_shapes import tensor_shapes
from kvcast.families.mixers import DeltaNet, StateSpace
from kvcast.spec.position_encodings import Rotary

COMMON = {
    "vocab_size": 19,
    "width": 24,
    "inner": 20,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "max_positions": 64,
    "norm_eps": 1e-6,
    "attention_scale": 8**-0.5,
}
GEMMA = {
    **COMMON,
    "windows": (7, 7, None, 7),
    "rotary": Rotary(base=1_000_000.0),
    "window_rotary": Rotary(base=10_000.0),
    "attention_scale": 0.25,
    "activation": "gelu_tanh",
    "query_key_norm": True,
    "post_norms": True,
    "embedding_scale": math.sqrt(24),
    "attention_softcap": 50.0,
    "logit_softcap": 30.0,
    "tied": True,
}
DIMENSIONS = {
    "llama": DecoderDimensions(
        architecture="llama",
        **COMMON,
        windows=(None,) * 4,
        rotary=Rotary(base=50_000.0),
        qkv_bias=True,
        out_bias=True,
        tied=False,
    ),
    "mistral": DecoderDimensions(
        architecture="mistral",
        **COMMON,
        windows=(5,) * 4,
        rotary=Rotary(base=50_000.0),
        tied=False,
    ),
    "mixtral": DecoderDimensions(
        architecture="mixtral",
        **{**COMMON, "norm_eps": 1e-5},
        windows=(None,) * 4,
        rotary=Rotary(base=1_000_000.0),
        tied=False,
        experts=3,
        experts_per_token=2,
    ),
    "qwen2": DecoderDimensions(
        architecture="qwen2",
        **COMMON,
        windows=(None, None, None, 6),
        rotary=Rotary(base=10_000.0),
        qkv_bias=True,
        tied=False,
    ),
    "qwen3": DecoderDimensions(
        architecture="qwen3",
        **COMMON,
        windows=(None,) * 4,
        rotary=Rotary(base=10_000.0),
        query_key_norm=True,
        tied=True,
    ),
    "gemma3_text": DecoderDimensions(architecture="gemma3_text", **GEMMA),
    "gemma4_text": DecoderDimensions(
        architecture="gemma4_text",
        **{**COMMON, "attention_scale": 1.0},
        windows=(7, None, 7, None),
        rotary=Rotary(base=1_000_000.0, scaling="proportional", partial=0.25),
        window_rotary=Rotary(base=10_000.0),
        activation="gelu_tanh",
        query_key_norm=True,
        post_norms=True,
        embedding_scale=math.sqrt(24),
        logit_softcap=30.0,
        tied=True,
        layer_head_dims=(8, 12, 8, 12),
        layer_kv_heads=(2, 2, 2, 2),
        layer_inners=(20, 20, 20, 40),
        sources=(0, 1, 2, 1),
        value_norm=True,
        layer_embedding=6,
        layer_scales=True,
    ),
    "lfm2": DecoderDimensions(
        architecture="lfm2",
        # 20 * 2 / 3 * 1.3, in whole numbers at each step, and of these the next multiple of 4.
        **{**COMMON, "norm_eps": 1e-4, "inner": 16},
        windows=(None,) * 4,
        rotary=Rotary(base=1_000_000.0),
        query_key_norm=True,
        tied=True,
        mixers=("convolution", "convolution", "attention", "convolution"),
        convolution=5,
        convolution_bias=True,
    ),
}


@pytest.fixture(params=SETTINGS)
def name(request):
    return request.param


@pytest.fixture
def llama(tmp_path):
    return save_decoder(random_decoder("llama"), tmp_path / "llama")


@pytest.fixture
def gemma(tmp_path):
    return save_decoder(random_decoder("gemma3_text"), tmp_path / "gemma")


def test_every_tensor_and_dimension_is_what_transformers_saved(name, tmp_path):
    model = random_decoder(name)
    checkpoint = open_checkpoint(save_decoder(model, tmp_path / "model"))
    assert checkpoint.dimensions == DIMENSIONS[name]
    assert_same_tensors(checkpoint.tensors, tensors_by_our_names(model))
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    assert shapes == tensor_shapes(checkpoint.dimensions)


def test_a_model_without_its_head_class_and_prefix_reads_the_same(tmp_path):
    model = random_decoder("qwen3")
    folder = save_decoder(model.model, tmp_path / "model")
    assert "norm.weight" in load_file(folder / "model.safetensors")
    assert_same_tensors(open_checkpoint(folder).tensors, tensors_by_our_names(model))


@pytest.mark.parametrize("name", ["mixtral", "gemma3_text"])
def test_bfloat16_and_shards_read_like_float32_in_one_file(name, tmp_path):
    model = random_decoder(name).to(torch.bfloat16)
    folder = save_decoder(model, tmp_path / "model", max_shard_size="10KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert_same_tensors(open_checkpoint(folder).tensors, tensors_by_our_names(model))


def test_gemmas_one_is_added_in_single_precision(tmp_path):
    model = random_decoder("gemma3_text").half()
    weight = open_checkpoint(save_decoder(model, tmp_path / "model")).tensors["decoder.norm.weight"]
    assert weight.dtype == np.float32
    np.testing.assert_array_equal(weight, 1 + model.model.norm.weight.detach().float().numpy())


IMAGE_PREFIXES = {
    "as published": {},
    "as transformers has them in memory": {
        "language_model.model.": "model.language_model.",
        "vision_tower.": "model.vision_tower.",
        "multi_modal_projector.": "model.multi_modal_projector.",
    },
}


@pytest.mark.parametrize("renaming", IMAGE_PREFIXES.values(), ids=IMAGE_PREFIXES)
def test_of_a_gemma_with_images_the_text_model_is_read(renaming, tmp_path):
    model = random_gemma_with_images()
    folder = save_decoder(model, tmp_path / "model")

    def rename(tensors):
        for old, new in renaming.items():
            tensors = {
                new + name.removeprefix(old) if name.startswith(old) else name: tensor
                for name, tensor in tensors.items()
            }
        return tensors

    rewrite_weights(folder, rename)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.dimensions == DecoderDimensions(architecture="gemma3", **GEMMA)
    expected = tensors_by_our_names(model, "model.language_model")
    assert_same_tensors(checkpoint.tensors, expected)
    # Only text_config names an end token.
    assert json.loads(checkpoint.text["text.json"])["end_tokens"] == [1]


def test_of_a_gemma_4_that_sees_and_hears_the_text_model_is_read(tmp_path):
    model = random_gemma_4_that_sees_and_hears()
    checkpoint = open_checkpoint(save_decoder(model, tmp_path / "model"))
    assert checkpoint.dimensions == replace(DIMENSIONS["gemma4_text"], architecture="gemma4")
    assert_same_tensors(checkpoint.tensors, tensors_by_our_names(model, "model.language_model"))
    assert checkpoint.tensors.unused == ()


def test_of_a_mistral_with_images_the_text_model_is_read(tmp_path):
    model = random_mistral_with_images()
    checkpoint = open_checkpoint(save_decoder(model, tmp_path / "model"))
    rotary = Rotary(
        base=1e6,
        scaling="yarn",
        factor=16.0,
        high_frequency=32.0,
        trained_positions=16_384,
        attention_factor=1.0,
        query_beta=0.1,
    )
    assert checkpoint.dimensions == DecoderDimensions(
        architecture="mistral3",
        **COMMON | {"norm_eps": 1e-5},
        windows=(None,) * 4,
        rotary=rotary,
        tied=True,
    )
    expected = tensors_by_our_names(model, "model.language_model")
    assert_same_tensors(checkpoint.tensors, expected)


PUBLISHED = {
    "Qwen/Qwen3.5-0.8B": (
        {
            "model_type": "qwen3_5", "tie_word_embeddings": True, "vision_config": {},
            "text_config": {
                "vocab_size": 248_320, "hidden_size": 1024, "intermediate_size": 3584,
                "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2,
                "head_dim": 256, "hidden_act": "silu", "max_position_embeddings": 262_144,
                "rms_norm_eps": 1e-6, "attn_output_gate": True, "full_attention_interval": 4,
                "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                "linear_value_head_dim": 128, "linear_num_key_heads": 16,
                "linear_num_value_heads": 16,
                "rope_parameters": {
                    "rope_type": "default", "rope_theta": 10_000_000, "mrope_interleaved": True,
                    "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                },
            },
        },
        {
            "mixers": ("delta", "delta", "delta", "attention") * 6, "attention_gate": True,
            "delta": DeltaNet(
                key_heads=16, value_heads=16, key_dim=128, value_dim=128, convolution=4
            ),
            "head_dim": 256, "kv_heads": 2, "tied": True, "query_key_norm": True,
            "rotary": Rotary(base=10_000_000.0, partial=0.25),
        },
    ),
    "ibm-granite/granite-4.0-h-tiny": (
        {
            "model_type": "granitemoehybrid", "vocab_size": 100_352, "hidden_size": 1536,
            "intermediate_size": 512, "shared_intermediate_size": 1024, "num_hidden_layers": 40,
            "num_attention_heads": 12, "num_key_value_heads": 4, "num_local_experts": 64,
            "num_experts_per_tok": 6, "hidden_act": "silu", "max_position_embeddings": 131_072,
            "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4,
            "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1,
            "mamba_n_heads": 48, "mamba_proj_bias": False, "embedding_multiplier": 12,
            "attention_multiplier": 0.0078125, "residual_multiplier": 0.22, "logits_scaling": 6,
            "position_embedding_type": "nope", "rms_norm_eps": 1e-5, "rope_theta": 10_000,
            "tie_word_embeddings": True, "attention_bias": False,
            "layer_types": [*["mamba"] * 5, "attention", *["mamba"] * 4] * 4,
        },
        {
            "mixers": (*("state_space",) * 5, "attention", *("state_space",) * 4) * 4,
            "state_space": StateSpace(
                key_heads=1, value_heads=48, key_dim=128, value_dim=64, convolution=4,
                norm_eps=1e-5,
            ),
            "rotary": None, "inner": 512, "experts": 64, "experts_per_token": 6,
            "shared_inner": 1024, "shared_gated": False, "head_dim": 128, "tied": True,
        },
    ),
    "microsoft/Phi-4-mini-instruct": (
        {
            "model_type": "phi3", "vocab_size": 200_064, "hidden_size": 3072,
            "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 24,
            "num_key_value_heads": 8, "max_position_embeddings": 131_072, "hidden_act": "silu",
            "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
            "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "sliding_window": 262_144,
            "tie_word_embeddings": True, "attention_bias": False,
            "rope_scaling": {
                "type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48,
            },
        },
        {
            "head_dim": 128, "windows": (None,) * 32, "tied": True, "norm_eps": 1e-5,
            "rotary": Rotary(
                base=10_000.0, scaling="longrope", factor=32.0, trained_positions=4096,
                partial=0.75, divisors=(1.0,) * 48, long_divisors=(2.0,) * 48,
            ),
        },
    ),
    "microsoft/Phi-3-mini-4k-instruct": (
        {
            "model_type": "phi3", "vocab_size": 32_064, "hidden_size": 3072,
            "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 32, "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
            "rope_scaling": None, "rope_theta": 10_000.0, "sliding_window": 2047,
        },
        {"head_dim": 96, "windows": (2047,) * 32, "rotary": Rotary(base=10_000.0)},
    ),
    "zai-org/GLM-4-9B-0414": (
        {
            "model_type": "glm4", "vocab_size": 151_552, "hidden_size": 4096,
            "intermediate_size": 13_696, "num_hidden_layers": 40, "num_attention_heads": 32,
            "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 32_768,
            "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
            "attention_bias": False,
        },
        {"post_norms": True, "rotary": Rotary(base=10_000.0, partial=0.5), "qkv_bias": False},
    ),
    "Qwen/Qwen3-30B-A3B": (
        {
            "model_type": "qwen3_moe", "vocab_size": 151_936, "hidden_size": 2048,
            "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 40_960,
            "rope_theta": 1e6, "rms_norm_eps": 1e-6, "moe_intermediate_size": 768,
            "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False,
            "sliding_window": None, "max_window_layers": 48, "attention_bias": False,
        },
        {
            "inner": 768, "experts": 128, "experts_per_token": 8, "experts_normalised": True,
            "dense_layers": (), "shared_inner": 0, "windows": (None,) * 48,
            "query_key_norm": True, "qkv_bias": False,
        },
    ),
    "Qwen/Qwen1.5-MoE-A2.7B": (
        {
            "model_type": "qwen2_moe", "vocab_size": 151_936, "hidden_size": 2048,
            "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16,
            "num_key_value_heads": 16, "max_position_embeddings": 8192, "rope_theta": 1e6,
            "rms_norm_eps": 1e-6, "moe_intermediate_size": 1408, "num_experts": 60,
            "num_experts_per_tok": 4, "norm_topk_prob": False, "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": 5632, "use_sliding_window": False,
            "sliding_window": 32_768, "max_window_layers": 21,
        },
        {
            "inner": 1408, "experts": 60, "experts_per_token": 4, "experts_normalised": False,
            "shared_inner": 5632, "qkv_bias": True, "out_bias": False, "dense_layers": (),
        },
    ),
    "Qwen/Qwen2.5-VL-3B-Instruct": (
        {
            "model_type": "qwen2_5_vl", "vocab_size": 151_936, "hidden_size": 2048,
            "intermediate_size": 11_008, "num_hidden_layers": 36, "num_attention_heads": 16,
            "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 128_000,
            "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "tie_word_embeddings": True,
            "use_sliding_window": False, "sliding_window": 32_768, "max_window_layers": 70,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
            "vision_config": {"depth": 32, "hidden_size": 1280},
        },
        {
            "head_dim": 128, "windows": (None,) * 36, "tied": True, "qkv_bias": True,
            "rotary": Rotary(base=1_000_000.0),
        },
    ),
    "tiiuae/falcon-7b": (
        {
            "model_type": "falcon", "vocab_size": 65_024, "hidden_size": 4544, "alibi": False,
            "num_hidden_layers": 32, "num_attention_heads": 71, "bias": False,
            "layer_norm_epsilon": 1e-5, "multi_query": True, "parallel_attn": True,
            "new_decoder_architecture": False,
        },
        {
            "head_dim": 64, "kv_heads": 1, "inner": 18_176, "max_positions": 2048, "tied": True,
            "parallel": True, "shared_norm": True, "gated": False, "activation": "gelu",
            "rotary": Rotary(base=10_000.0), "qkv_bias": False,
        },
    ),
    "EleutherAI/gpt-neo-125m": (
        {
            "model_type": "gpt_neo", "vocab_size": 50_257, "hidden_size": 768, "num_layers": 12,
            "num_heads": 12, "intermediate_size": None, "max_position_embeddings": 2048,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "window_size": 256,
            "attention_types": [[["global", "local"], 6]],
            "attention_layers": ["global", "local"] * 6,
        },
        {
            "windows": (None, 256) * 6, "inner": 3072, "attention_scale": 1.0, "rotary": None,
            "learned_positions": True, "qkv_bias": False, "out_bias": True, "tied": True,
        },
    ),
    "openai/gpt-oss-20b": (
        {
            "model_type": "gpt_oss", "vocab_size": 201_088, "hidden_size": 2880,
            "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131_072,
            "sliding_window": 128, "rope_theta": 150_000, "rms_norm_eps": 1e-5,
            "num_local_experts": 32, "num_experts_per_tok": 4, "swiglu_limit": 7.0,
            "attention_bias": True, "initial_context_length": 4096,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "truncate": False, "original_max_position_embeddings": 4096,
            },
        },
        {
            "windows": (128, None) * 12, "sinks": True, "expert_bias": True, "qkv_bias": True,
            "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "experts": 32, "experts_per_token": 4,
            "rotary": Rotary(
                base=150_000.0, scaling="yarn", factor=32.0, high_frequency=32.0,
                trained_positions=4096, truncate=False,
            ),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize(("config", "dimensions"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_configurations_mean_their_models(config, dimensions):
    read = decoder_dimensions(config, "config.json")
    assert {name: getattr(read, name) for name in dimensions} == dimensions


def published(folder, drop=(), **fields):
    """Rewrite config.json in the spelling from before transformers 5."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name in ("rope_parameters", "layer_types", "_sliding_window_pattern", *drop):
        config.pop(name, None)
    path.write_text(json.dumps({**config, **fields}))
    return open_checkpoint(folder).dimensions


ROTARIES = [
    (None, Rotary(base=7.0)),
    ({"type": "linear", "factor": 2.0}, Rotary(base=7.0, scaling="linear", factor=2.0)),
    (
        {**LLAMA3, "rope_type": "llama3"},
        Rotary(base=7.0, scaling="llama3", factor=32.0, trained_positions=16),
    ),
    (
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        Rotary(
            base=7.0, scaling="yarn", factor=4.0, trained_positions=16, high_frequency=32.0
        ),
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8, "beta_slow": 2, "mscale": 1.0,
         "mscale_all_dim": 1.0},
        Rotary(
            base=7.0,
            scaling="yarn",
            factor=4.0,
            trained_positions=64,
            low_frequency=2.0,
            high_frequency=8.0,
            attention_factor=1.0,
        ),
    ),
    (
        {"type": "dynamic", "factor": 2.0},
        Rotary(base=7.0, scaling="dynamic", factor=2.0, trained_positions=64),
    ),
    (
        {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        Rotary(base=7.0, scaling="proportional", partial=0.25),
    ),
    (
        {"type": "su", "short_factor": [1, 1, 1, 2.0], "long_factor": [1.0, 2, 3, 4],
         "original_max_position_embeddings": 16, "attention_factor": 1.5},
        Rotary(
            base=7.0,
            scaling="longrope",
            factor=4.0,
            trained_positions=16,
            divisors=(1.0, 1.0, 1.0, 2.0),
            long_divisors=(1.0, 2.0, 3.0, 4.0),
            attention_factor=1.5,
        ),
    ),
    (
        {"type": "yarn", "factor": 4.0, "truncate": False},
        Rotary(
            base=7.0,
            scaling="yarn",
            factor=4.0,
            trained_positions=64,
            high_frequency=32.0,
            truncate=False,
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("scaling", "rotary"), ROTARIES)
def test_rotary_scaling_is_read_in_the_published_spelling_and_in_the_new_one(
    llama, scaling, rotary
):
    assert published(llama, rope_theta=7.0, rope_scaling=scaling).rotary == rotary
    config = json.loads((llama / "config.json").read_text())
    del config["rope_theta"], config["rope_scaling"]
    new = {"rope_theta": 7.0, "rope_type": "default", **(scaling or {})}
    if "type" in new:
        new["rope_type"] = new.pop("type")
    (llama / "config.json").write_text(json.dumps({**config, "rope_parameters": new}))
    assert open_checkpoint(llama).dimensions.rotary == rotary


LFM2S = [
    ({"block_auto_adjust_ff_dim": False}, {"inner": 20}),
    ({"block_ff_dim": 31}, {"inner": 28}),
    ({"block_ffn_dim_multiplier": None}, {"inner": 13}),
    ({"tie_embedding": False}, {"tied": False}),
    ({"full_attn_idxs": [0, 2]}, {"mixers": ("attention", "convolution") * 2}),
    ({"full_attn_idxs": None, "conv_L_cache": 7}, {"mixers": (), "convolution": 0}),
]


@pytest.mark.parametrize(("fields", "expected"), LFM2S, ids=str)
def test_lfm2s_sizes_follow_from_several_fields(fields, expected):
    """In the spelling of published models, whose `layer_types` may be missing."""
    layers = {} if "full_attn_idxs" in fields else {"layer_types": SETTINGS["lfm2"]["layer_types"]}
    settings = {**SIZES, **SETTINGS["lfm2"], "layer_types": None, **layers, **fields}
    dimensions = decoder_dimensions({"model_type": "lfm2", **settings}, "config.json")
    assert {name: getattr(dimensions, name) for name in expected} == expected
    config = transformers.Lfm2Config(**{k: v for k, v in settings.items() if v is not None})
    assert tuple(config.layer_types) == tuple(
        "conv" if dimensions.mixer(i) == "convolution" else "full_attention" for i in range(4)
    )


_FULL = {"head_dim": 12, "num_key_value_heads": 1}
GEMMA_4S = [
    ({"global_head_dim": 12}, {"layer_head_dims": (8, 8, 12), "sources": (0, 1, 2)}),
    (
        {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "global_head_dim": 12},
        {"layer_kv_heads": (2, 2, 1), "keys_as_values": (2,)},
    ),
    ({"num_global_key_value_heads": 1}, {"layer_kv_heads": (2, 2, 2), "keys_as_values": ()}),
    ({"per_layer_config": {"02": _FULL}}, {"layer_head_dims": (8, 8, 12)}),
    ({"per_layer_config": {}}, {"layer_head_dims": (8, 8, 8), "layer_kv_heads": (2, 2, 2)}),
    ({"layer_types": None, "num_hidden_layers": 7}, {"windows": (7,) * 5 + (None,) * 2}),
    ({"layer_types": ["sliding_attention"] * 3}, {"windows": (7, 7, None)}),
    ({"sliding_window": 64}, {"windows": (64, 64, None)}),
    ({"hidden_size_per_layer_input": 0}, {"layer_embedding": 0}),
    ({"use_double_wide_mlp": True}, {"layer_inners": (20, 20, 20)}),
    (
        {
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 1,
            "use_double_wide_mlp": True,
        },
        {"layer_inners": (20, 20, 40), "sources": (0, 1, 0), "reading": 2},
    ),
]


@pytest.mark.parametrize(("fields", "expected"), GEMMA_4S, ids=str)
def test_what_differs_from_layer_to_layer_of_a_gemma_4(fields, expected):
    """In the spelling of published models and in that of transformers 5, as its class reads it."""
    settings = {
        **SIZES,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 7,
        "vocab_size_per_layer_input": 19,
        **fields,
    }
    dimensions = decoder_dimensions({"model_type": "gemma4_text", **settings}, "config.json")
    assert {name: getattr(dimensions, name) for name in expected} == expected
    config = transformers.Gemma4TextConfig(**settings)
    layers = config.per_layer_config
    assert [layer.head_dim for layer in layers] == [*dimensions.layer_head_dims]
    assert [layer.num_key_value_heads for layer in layers] == [*dimensions.layer_kv_heads]
    assert [kind == "full_attention" for kind in config.layer_types] == [
        window is None for window in dimensions.windows
    ]


@pytest.mark.parametrize("name", ["gemma4_text", "gemma4_unified_text"])
def test_what_a_configuration_of_gemma_4_leaves_out_is_transformers_default(name):
    config, defaults = transformers.AutoConfig.for_model(name), dict(TYPES[name].defaults)
    for field in ("rope_theta", "rope_local_base_freq"):
        del defaults[field]  # `rope_parameters` has them
    assert {layer.head_dim for layer in config.per_layer_config} == {
        defaults.pop("head_dim"),
        defaults.pop("global_head_dim"),
    }
    absent = {"hidden_size_per_layer_input", "vocab_size_per_layer_input", "enable_moe_block"}
    for field in defaults.keys() - (absent if "unified" in name else set()):
        assert getattr(config, field) == defaults[field], field


def test_gemma_4_e2bs_caches_are_those_of_its_own_layers():
    """Its configuration, the defaults left out as published."""
    config = {
        **{"model_type": "gemma4", "hidden_size": 1536, "intermediate_size": 6144},
        **{"num_hidden_layers": 35, "num_key_value_heads": 1, "num_kv_shared_layers": 20},
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
        **{"use_double_wide_mlp": True, "final_logit_softcapping": 30.0},
    }
    dimensions = decoder_dimensions(config, "config.json")
    assert dimensions.sources[13:21] == (13, 14, 13, 13, 13, 13, 14, 13)
    assert (dimensions.inner_of(14), dimensions.inner_of(15)) == (6144, 12288)
    caches = DECODER.caches(dimensions)
    kinds = [(layer.kind, layer.heads, layer.head_dim, layer.capacity) for layer in caches]
    ring, linear = ("ring", 1, 256, 512), ("linear", 1, 512, 131_072)
    shared = ("linear", 1, 256, 131_072)  # its window is that of those that read it, later
    assert kinds == [*[ring] * 4, linear, *[ring] * 4, linear, *[ring] * 3, shared, linear]


def test_keys_of_layers_that_read_those_of_others_are_no_cause_for_a_notice(tmp_path):
    folder = save_decoder(random_decoder("gemma4_text"), tmp_path / "model")
    names = [f"model.layers.3.self_attn.{name}_proj.weight" for name in "kv"]
    rewrite_weights(folder, lambda t: {**t, **{name: torch.zeros(24, 24) for name in names}})
    checkpoint = open_checkpoint(folder)
    assert sorted(checkpoint.tensors.unused) == names
    assert "notices" not in json.loads(checkpoint.text["text.json"])


def test_gemmas_published_spelling_means_the_same(gemma):
    new = open_checkpoint(gemma).dimensions
    spelling = {"rope_theta": 1e6, "rope_local_base_freq": 10_000.0, "sliding_window_pattern": 3}
    assert published(gemma, **spelling) == new
    scaled = published(gemma, **spelling, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert scaled.rotary == Rotary(base=1e6, scaling="linear", factor=8.0)
    assert scaled.window_rotary == new.window_rotary


def test_what_gemmas_published_configuration_leaves_out_is_transformers_default(tmp_path):
    """The 4B's text_config has six fields; any other wrong default would give a wrong shape."""
    from transformers import Gemma3TextConfig

    config = Gemma3TextConfig()
    for field, value in TYPES["gemma3"].defaults.items():
        if field not in ("rope_theta", "rope_local_base_freq", "sliding_window_pattern"):
            assert getattr(config, field) == value, field
    full, sliding = (config.rope_parameters[f"{kind}_attention"] for kind in ("full", "sliding"))
    assert full["rope_theta"] == TYPES["gemma3"].defaults["rope_theta"]
    assert sliding["rope_theta"] == TYPES["gemma3"].defaults["rope_local_base_freq"]
    assert config.layer_types.index("full_attention") == 5


@pytest.mark.parametrize(
    ("name", "fields", "windows"),
    [
        ("mistral", {"sliding_window": 63}, (63,) * 4),
        ("mistral", {"sliding_window": 64}, (None,) * 4),
        ("mistral", {"sliding_window": None}, (None,) * 4),
        ("mixtral", {"sliding_window": 9}, (9,) * 4),
        ("llama", {"sliding_window": 9}, (None,) * 4),
        ("qwen2", {"use_sliding_window": False, "max_window_layers": 2}, (None,) * 4),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, (6,) * 4),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
         (None, None, 5, 5)),
        ("qwen3", {"use_sliding_window": True, "sliding_window": None}, (None,) * 4),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention"] * 2},
         (None, 5, None, 5)),
    ],
)  # fmt: skip
def test_a_window_is_where_the_configuration_means_one(tmp_path, name, fields, windows):
    folder = save_decoder(random_decoder(name), tmp_path / "model")
    assert published(folder, **fields).windows == windows


def test_a_window_counts_the_query_itself_as_in_transformers(tmp_path):
    """The last query of transformers' mask sees as many positions as the dimensions' window."""
    model = random_decoder("mistral", sliding_window=5)
    (window, *_) = open_checkpoint(save_decoder(model, tmp_path / "model")).dimensions.windows
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        layer = model.model.layers[0]
        seen = {}
        layer.self_attn.register_forward_hook(
            lambda module, args, kwargs, out: seen.update(mask=kwargs["attention_mask"]),
            with_kwargs=True,
        )
        model.set_attn_implementation("eager")
        model(tokens)
    assert (seen["mask"][0, 0, -1] == 0).sum() == window == 5


def test_sizes_that_a_configuration_may_leave_out_follow_from_others(tmp_path):
    model = random_decoder("llama", head_dim=6, num_key_value_heads=4)
    folder = save_decoder(model, tmp_path / "model")
    dimensions = published(folder, drop=("head_dim", "num_key_value_heads", "hidden_act"))
    assert (dimensions.head_dim, dimensions.kv_heads) == (6, 4)
    assert dimensions.rotary == Rotary(base=10_000.0)


@pytest.mark.parametrize("name", SETTINGS)
def test_without_the_field_a_head_is_tied_as_in_transformers(name, tmp_path):
    from transformers import AutoConfig

    tied = AutoConfig.for_model(name).tie_word_embeddings
    folder = save_decoder(random_decoder(name, tie_word_embeddings=tied), tmp_path / "model")
    edit_json(folder / "config.json", tie_word_embeddings=None)
    assert open_checkpoint(folder).dimensions.tied == tied


def test_a_head_beside_a_tied_embedding_counts_only_if_it_differs(tmp_path):
    model = random_decoder("qwen3")
    folder = save_decoder(model, tmp_path / "model")

    def copied(tensors):
        return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}

    rewrite_weights(folder, copied)
    assert_same_tensors(open_checkpoint(folder).tensors, tensors_by_our_names(model))
    rewrite_weights(folder, lambda t: {**t, "lm_head.weight": t["lm_head.weight"] + 1})
    checkpoint = open_checkpoint(folder)
    assert not checkpoint.dimensions.tied
    head = model.model.embed_tokens.weight.detach().numpy() + 1
    np.testing.assert_array_equal(checkpoint.tensors["decoder.head.weight"], head)


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text"])
def test_a_tied_model_may_be_saved_under_its_heads_name(name, tmp_path):
    model = random_decoder(name)
    folder = save_decoder(model, tmp_path / "model")

    def renamed(tensors):
        return {"lm_head.weight": tensors.pop("model.embed_tokens.weight"), **tensors}

    rewrite_weights(folder, renamed)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.dimensions.tied
    assert_same_tensors(checkpoint.tensors, tensors_by_our_names(model))


TABLES = ["inv_freq", "cos_cached", "sin_cached"]
UNUSED = {
    **{f"model.rotary_emb.{table}": torch.ones(4) for table in TABLES},
    **{f"model.layers.0.self_attn.rotary_emb.{table}": torch.ones(4) for table in TABLES},
    "score.weight": torch.ones(2, 24),
    "v_head.summary.bias": torch.ones(1),
    "model.layers.4.mlp.up_proj.weight": torch.ones(20, 24),
    "model.position_ids": torch.arange(4),
    "model.mask": torch.ones(2, dtype=torch.bool),
}
INSIDE = "model.layers.3.mlp.up_proj.bias"


def test_tensors_without_use_are_listed_and_told_where_they_may_have_had_one(llama):
    read = open_checkpoint(llama)
    assert read.tensors.unused == ()
    rewrite_weights(llama, lambda tensors: tensors | UNUSED)
    checkpoint = open_checkpoint(llama)
    assert sorted(checkpoint.tensors.unused) == sorted(UNUSED)
    assert_same_tensors(checkpoint.tensors, read.tensors)
    assert "notices" not in json.loads(checkpoint.text["text.json"])
    rewrite_weights(llama, lambda tensors: {**tensors, INSIDE: torch.ones(20)})
    (notice,) = json.loads(open_checkpoint(llama).text["text.json"])["notices"]
    assert f"does not use, {INSIDE}: results may be wrong" in notice


def test_the_tokenizers_files_go_along(llama):
    (llama / "chat_template.jinja").write_text("{{ messages }} ü")
    checkpoint = open_checkpoint(llama)
    assert checkpoint.family.name == "decoder"
    assert checkpoint.source == f"Hugging Face folder {llama}"
    assert set(checkpoint.text) == {"tokenizer.json", "text.json", "chat_template.jinja"}
    assert checkpoint.text["tokenizer.json"] == (llama / "tokenizer.json").read_bytes()
    assert checkpoint.text["chat_template.jinja"] == "{{ messages }} ü".encode()
    assert json.loads(checkpoint.text["text.json"]) == {
        "end_tokens": [2],
        "bos_token": "<s>",
        "eos_token": "</s>",
    }


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", b"plain"),
        ([{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}], b"d"),
        ([{"name": "tools", "template": "t"}], None),
        ({"tools": "t", "default": "d"}, b"d"),
        ([3, {"name": "default"}], None),
        ("\ud800", b"?"),
        (3, None),
        (None, None),
    ],
)
def test_a_chat_template_may_be_in_the_tokenizers_configuration(llama, template, expected):
    edit_json(llama / "tokenizer_config.json", chat_template=template)
    assert open_checkpoint(llama).text.get("chat_template.jinja") == expected


def test_without_a_tokenizer_configuration_special_tokens_have_no_text(llama):
    (llama / "tokenizer_config.json").unlink()
    text = json.loads(open_checkpoint(llama).text["text.json"])
    assert (text["bos_token"], text["eos_token"]) == (None, None)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [3, 4]}, {"eos_token_id": 2}, [3, 4]),
        ({"eos_token_id": 3}, {"eos_token_id": 2}, [3]),
        ({}, {"eos_token_id": [1, 106]}, [1, 106]),
        (None, {"eos_token_id": 2}, [2]),
        ({"eos_token_id": []}, {}, [7]),
        (None, {}, [7]),
    ],
)
def test_end_tokens_come_from_the_first_file_that_names_any(llama, generation, config, expected):
    path = llama / "generation_config.json"
    path.unlink() if generation is None else path.write_text(json.dumps(generation))
    edit_json(llama / "config.json", **{"eos_token_id": None, **config})
    # The tokenizer's is the last resort: </s>, as its configuration names it.
    added = {"model": {"vocab": {"</s>": 6}}, "added_tokens": [{"id": 7, "content": "</s>"}]}
    (llama / "tokenizer.json").write_text(json.dumps(added))
    assert json.loads(open_checkpoint(llama).text["text.json"])["end_tokens"] == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {}),
        ({"do_sample": False, "top_k": 5, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "top_k": -1}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1},
         {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1}),
        ({"do_sample": True, "temperature": None, "top_p": 1.0, "top_k": 0, "min_p": 0},
         {"temperature": 1.0}),
        ({"no_repeat_ngram_size": 3, "forced_bos_token_id": 0},
         {"no_repeat_ngram_size": 3, "forced_bos_token_id": 0}),
        ({"no_repeat_ngram_size": 0, "repetition_penalty": 1.0, "forced_bos_token_id": None}, {}),
    ],
)  # fmt: skip
def test_generation_config_recommends_what_transformers_would_do(llama, fields, expected):
    (llama / "generation_config.json").write_text(json.dumps(fields))
    text = json.loads(open_checkpoint(llama).text["text.json"])
    assert text.get("generation", {}) == expected


def test_the_fingerprint_follows_every_file_that_matters(llama):
    seen = {fingerprint(llama)}
    (llama / "chat_template.jinja").write_text("x")
    seen.add(fingerprint(llama))
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        (llama / name).write_bytes((llama / name).read_bytes() + b"\n")
        seen.add(fingerprint(llama))
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("wrapper", "kind", "prefix", "image"),
    [
        ("cohere2_vision", "cohere2", "language_model.model.", "vision_tower."),
        ("aya_vision", "cohere2", "model.language_model.", "model.vision_tower."),
        ("llava", "mistral", "language_model.model.", "vision_tower.vision_model."),
        ("idefics3", "llama", "model.text_model.", "model.vision_model."),
        ("smolvlm", "llama", "model.text_model.", "model.connector."),
    ],
)
def test_of_a_model_with_images_the_decoder_is_read(wrapper, kind, prefix, image, tmp_path):
    folder = save_decoder(random_decoder(kind), tmp_path / "model")
    alone = open_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    outer = {"model_type": wrapper, "text_config": config}
    outer["tie_word_embeddings"] = config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(outer), "utf-8")

    def wrapped(tensors):
        own = {
            f"{prefix}{name.removeprefix('model.')}" if name.startswith("model.") else name: tensor
            for name, tensor in tensors.items()
        }
        return {**own, f"{image}encoder.layers.0.weight": torch.ones(2)}

    rewrite_weights(folder, wrapped)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.dimensions == replace(alone.dimensions, architecture=wrapper)
    assert_same_tensors(checkpoint.tensors, alone.tensors)
    assert "notices" not in json.loads(checkpoint.text["text.json"])


def sizes(layers, width, inner, heads, kv_heads, vocab, positions, **others):
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
    names += ("num_key_value_heads", "vocab_size", "max_position_embeddings")
    return dict(
        zip(names, (layers, width, inner, heads, kv_heads, vocab, positions), strict=True)
    ) | (others)


# Published configurations, but for fields without effect, and how many weights the models have.
PUBLISHED = {
    "lfm2-1.2b": (
        1_170_340_608,
        {
            "model_type": "lfm2",
            "vocab_size": 65_536,
            "hidden_size": 2048,
            "block_ff_dim": 12_288,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
            "conv_L_cache": 3,
            "conv_bias": False,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
            "norm_eps": 1e-5,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 128_000,
            "rope_theta": 1_000_000.0,
            "tie_embedding": True,
        },
        {
            "inner": 8192,
            "head_dim": 64,
            "kv_heads": 8,
            "convolution": 3,
            "tied": True,
            "convolution_bias": False,
            "norm_eps": 1e-5,
            "query_key_norm": True,
            "mixers": tuple(
                "attention" if i in (2, 5, 8, 10, 12, 14) else "convolution" for i in range(16)
            ),
        },
    ),
    "gemma-2b": (
        2_506_172_416,
        {
            "model_type": "gemma",
            **sizes(18, 2048, 16_384, 8, 1, 256_000, 8192, head_dim=256),
            **{"hidden_act": "gelu", "rms_norm_eps": 1e-6, "rope_theta": 10_000.0},
        },
        {"activation": "gelu_tanh", "embedding_scale": math.sqrt(2048), "tied": True},
    ),
    "gemma-2-2b": (
        2_614_341_888,
        {
            "model_type": "gemma2",
            **sizes(26, 2304, 9216, 8, 4, 256_000, 8192, head_dim=256),
            **{"hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6},
            **{"query_pre_attn_scalar": 256, "sliding_window": 4096, "rope_theta": 10_000.0},
            **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        },
        {"attention_scale": 1 / 16, "windows": (4096, None) * 13, "attention_softcap": 50.0},
    ),
    "SmolLM3-3B": (
        3_075_098_624,
        {
            "model_type": "smollm3",
            **sizes(36, 2048, 11_008, 16, 4, 128_256, 65_536),
            **{"rope_theta": 5_000_000.0, "no_rope_layers": [1, 1, 1, 0] * 9},
            **{"use_sliding_window": False, "layer_types": ["full_attention"] * 36},
        },
        {"unrotated": tuple(range(3, 36, 4)), "rotary": Rotary(base=5e6), "tied": True},
    ),
    "OLMo-2-0425-1B": (
        1_484_916_736,
        {
            "model_type": "olmo2",
            **sizes(16, 2048, 8192, 16, 16, 100_352, 4096, rope_theta=500_000),
            **{"rms_norm_eps": 1e-6, "attention_bias": False, "tie_word_embeddings": False},
        },
        {"pre_norms": False, "whole_query_key_norm": True, "rotary": Rotary(base=5e5)},
    ),
    "starcoder2-3b": (
        3_030_371_328,
        {
            "model_type": "starcoder2",
            **sizes(30, 3072, 12_288, 24, 2, 49_152, 16_384, rope_theta=999_999.4420358813),
            **{"norm_epsilon": 1e-5, "sliding_window": 4096, "use_bias": True},
        },
        {"windows": (4096,) * 30, "norm_bias": True, "activation": "gelu_tanh", "tied": True},
    ),
    "stablelm-2-1_6b": (
        1_644_515_328,
        {
            "model_type": "stablelm",
            **sizes(24, 2048, 5632, 32, 32, 100_352, 4096, rope_theta=10_000),
            **{"partial_rotary_factor": 0.25, "use_qkv_bias": True, "layer_norm_eps": 1e-5},
        },
        {"rotary": Rotary(base=1e4, partial=0.25), "qkv_bias": True, "out_bias": False},
    ),
    "pythia-160m": (
        162_322_944,
        {
            "model_type": "gpt_neox",
            **{"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
            **{"num_attention_heads": 12, "vocab_size": 50_304, "max_position_embeddings": 2048},
            **{"rotary_pct": 0.25, "rotary_emb_base": 10_000, "use_parallel_residual": True},
        },
        {"rotary": Rotary(base=1e4, partial=0.25), "parallel": True, "shared_norm": False},
    ),
    "phi-2": (
        2_779_683_840,
        {
            "model_type": "phi",
            **sizes(32, 2560, 10_240, 32, 32, 51_200, 2048, partial_rotary_factor=0.4),
            **{"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "qk_layernorm": False},
        },
        {"rotary": Rotary(base=1e4, partial=0.4), "head_bias": True, "shared_norm": True},
    ),
    "gpt2": (
        124_439_808,
        {
            "model_type": "gpt2",
            **{"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024},
            **{"vocab_size": 50_257, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"},
        },
        {"rotary": None, "learned_positions": True, "inner": 3072, "head_dim": 64},
    ),
}


@pytest.mark.parametrize(("weights", "config", "meaning"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_configurations_mean_models_of_the_published_size(weights, config, meaning):
    dimensions = decoder_dimensions(config, "config.json")
    assert {name: getattr(dimensions, name) for name in meaning} == meaning
    assert sum(math.prod(shape) for shape in tensor_shapes(dimensions).values()) == weights
