"""What kvcast refuses to read, and in which words: a row for each, by the kind of checkpoint.

Damage that is not one row but a property, such as every truncation, is in the readers' own tests.
"""

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from checkpoints.folder_checks import without
from checkpoints.refusals import (
    FAILED,
    MISSING,
    SHARD,
    UNREADABLE,
    Case,
    Refusal,
    also,
    each_saying,
    refusals,
    renamed,
)
from checkpoints.test_gguf_reader import gemma, llama3_divisors, with_divisors
from checkpoints.test_gguf_text import sentencepiece
from checkpoints.test_mistral_layout import PARAMS
from checkpoints.tiny_decoders import LLAMA3, SETTINGS
from checkpoints.tiny_tensorflow import (
    DATA,
    HEADER,
    RELEASES,
    block,
    entry,
    field,
    index,
    sealed,
    varint,
)
from checkpoints.tiny_whisper import SCALE, TIED, ct2_bytes, ct2_variables, quantised_variables
from kit.random_unilms import TOKENS, tokenizer_json
from kit.tiny_gguf import EXPERTS, HEAD_DIM, finish, sizes, tensors, tiny_llama, vocabulary, write

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
VOCAB = "vocab.txt"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PART = "model-00002-of-0000"

# A row is a line.
# fmt: off


def led_to(name: Any) -> Callable[[bytes], bytes]:
    def change(contents: bytes) -> bytes:
        weight_map = json.loads(contents)["weight_map"]
        weight_map["model.decoder.layer_norm.weight"] = name
        return json.dumps({"weight_map": weight_map}).encode()

    return change


EMBEDDING = "model.decoder.embed_tokens.weight"
WHISPER = [
    *refusals("whisper", CONFIG, FAILED,
        ({"num_mel_bins": 6}, ("encoder.conv1.weight", "[8, 5, 3]", "[8, 6, 3]")),
        *(({"decoder_layers": layers}, "decoder.layers.") for layers in (1, 4, 1_000)),
        ({"decoder_layers": 10**12}, "1000000000000 layers are more than any model has"),
        ({"model_type": "bloom"}, ", whisper, "),
        ({"d_model": None}, "d_model is missing"),
        ({"d_model": "8"}, "d_model is missing or not a whole number"),
        ({"d_model": -8}, "d_model must be a positive whole number"),
        ({"encoder_attention_heads": 3}, "not a multiple of 3 heads"),
        ({"activation_function": "relu"}, "activation_function must be 'gelu'"),
        ({"scale_embedding": True}, "scale_embedding must be False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings must be True"),
        *(({name: 36}, f"{name} must be 4 times d_model, 32, not 36")
          for name in ("encoder_ffn_dim", "decoder_ffn_dim")),
    ),
    *(Refusal("whisper", {CONFIG: text}, CONFIG, UNREADABLE)
      for text in ("", "{", "[]", b"\xff", "[" * 100_000)),
    *refusals("whisper", WEIGHTS, FAILED,
        (also("proj_out.weight", lambda t: t[EMBEDDING] + 1), "output head differs"),
        (also("adapter", torch.zeros(2)), "adapter"),
        (without("decoder.layers.1.fc1.bias"), "decoder.layers.1.fc1.bias"),
        (also("model.decoder.layer_norm.weight", torch.ones(8, dtype=torch.float64)), "F64"),
    ),
    Refusal("whisper", {WEIGHTS: also("a\n\x1b[2J", torch.zeros(2))}, "\\x1b", UNREADABLE),
    Refusal("whisper", {GENERATION: {"suppress_tokens": [1, "2"]}}, "suppress_tokens", UNREADABLE),
    *(Refusal("whisper", renamed(WEIGHTS, pickle), ("pickled", "safetensors"), MISSING)
      for pickle in ("pytorch_model.bin", "model.pt")),
    *(Refusal("whisper", {name: None}, name, MISSING) for name in (CONFIG, TOKENIZER)),
    *refusals("whisper in shards", INDEX, FAILED, *((led_to(name), "which is not a") for name in (
        "../outside.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "", ".", "x.bin",
        "a\n.safetensors", 3,
    ))),
    Refusal("whisper in shards", {f"{PART}3.safetensors": None}, f"{PART}3.safetensors", MISSING),
    Refusal("whisper in shards", {INDEX: "{}"}, "weight_map", UNREADABLE),
]

# Downloads that are not whole.

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
HALF = "m.safetensors.incomplete"
DOWNLOADS = [
    *(Refusal(whole, {file: POINTER}, (f"{file} is a Git LFS pointer", "git lfs pull"), UNREADABLE)
      for whole, files in (
        ("whisper", (CONFIG, WEIGHTS, TOKENIZER)), ("llama", (WEIGHTS, TOKENIZER)),
        ("t5", (TOKENIZER,)), ("ct2", ("model.bin",)), ("gguf", ("m.gguf",)),
        ("whisper in shards", (f"{PART}3.safetensors",)),
      ) for file in files),
    *(Refusal("whisper", {WEIGHTS: None, f"{folder}{HALF}": ""},
              (f"download incomplete ({HALF}): run the download again"), MISSING)
      for folder in ("", ".cache/huggingface/download/")),
    Refusal("whisper in shards", {f"{PART}3.safetensors": None, HALF: ""},
            "download incomplete", MISSING),
    Refusal("whisper", {WEIGHTS: None},
            "download incomplete (no model.safetensors): run the download again", MISSING),
]

# CTranslate2, and the parts of a Whisper's tokenizer.

CT2 = ct2_variables()
BIN = ct2_bytes(CT2, TIED)


def ct2_with(name: str, array: np.ndarray) -> bytes:
    return ct2_bytes({**CT2, name: array}, TIED)


def ct2_without(name: str) -> bytes:
    aliases = () if name == TIED[0][1] else TIED
    return ct2_bytes({other: array for other, array in CT2.items() if other != name}, aliases)


def ct2_scaled(scale: np.ndarray) -> bytes:
    return ct2_bytes({**quantised_variables(), SCALE: scale}, TIED)


def lying(position: int, layout: str, value: int) -> bytes:
    contents = bytearray(BIN)
    struct.pack_into(layout, contents, position, value)
    return bytes(contents)


COUNT = 4 + 2 + len("WhisperSpec\0") + 4
AXES = COUNT + 4 + 2 + struct.unpack_from("<H", BIN, COUNT + 4)[0]
KIND = AXES + 1 + 3 * 4
ALIASES = len(BIN) - 4 - sum(2 + len(text) + 1 for pair in TIED for text in pair)
HEAD = {"decoder/projection/weight": CT2["decoder/embeddings/weight"] + 1}
GAMMA, HEADS, MOST = "encoder/layer_norm/gamma", "encoder/num_heads", 0xFFFFFFFF
LINEAR = "self_attention/linear_0/weight"
CTRANSLATE2 = [
    *refusals("ct2", "model.bin", FAILED,
        (ct2_bytes(CT2, TIED, version=5), "version 6"),
        (ct2_bytes(CT2, TIED, version=0x04034B50), "version 6"),
        (ct2_bytes(CT2, TIED, specification="TransformerSpec"), "supported: WhisperSpec"),
        (ct2_bytes(CT2, TIED, revision=4), "revision 4"),
        *((ct2_without(name), "model.bin") for name in (
            HEADS, "encoder/conv1/weight", "decoder/embeddings/weight",
            "decoder/position_encodings/encodings", "decoder/layer_0/attention/linear_1/bias",
            f"decoder/layer_0/{LINEAR}",
        )),
        (ct2_with("adapter/weight", np.zeros((2, 2), np.float32)), "adapter/weight"),
        (ct2_with(f"decoder/layer_2/{LINEAR}", np.zeros((12, 4), np.float32)), "decoder/layer_2/"),
        (ct2_with(GAMMA, np.zeros(5, np.float32)), "[5]"),
        (ct2_with(GAMMA, np.zeros(4, np.int32)), "int32 without a scale"),
        (ct2_with(GAMMA, np.zeros(4, np.int8)), "int8 without a scale"),
        (ct2_with(HEADS, np.array(2.0, np.float32)), "no number encoder/num_heads"),
        (ct2_with(HEADS, np.array(3, np.int16)), "not a multiple of 3 heads"),
        (ct2_scaled(np.ones(4, np.float32)), "another shape"),
        (ct2_bytes({**CT2, **HEAD}), "output head differs"),
    ),
    *refusals("ct2", "model.bin", UNREADABLE,
        *((ct2_bytes(CT2, TIED, specification=name), "is not text") for name in (
            "Whisper\nSpec", "Whisper\x1b[2J", "Whisper\0Spec", "W\x80",
        )),
        *((ct2_scaled(np.full(16, scale, np.float32)), "not a positive number") for scale in (
            0.0, -1.0, np.nan, np.inf,
        )),
        (lying(COUNT, "<I", MOST), "4294967295 variables"),
        (lying(ALIASES, "<I", MOST), "4294967295 aliases"),
        (lying(COUNT + 4, "<H", 0xFFFF), "name of a variable"),
        (lying(AXES, "<B", 200), "200 axes"),
        (lying(AXES + 1, "<I", MOST), "bytes for shape"),
        (lying(KIND, "<B", 6), "unknown kind 6"),
        (lying(KIND + 1, "<I", MOST), "bytes for shape"),
        (ct2_bytes(CT2, [("a", "no/such")]), "leads nowhere"),
        (ct2_bytes(CT2, [(HEADS, "decoder/num_heads")]), "leads nowhere"),
        (BIN.replace(b"encoder/conv2/bias", b"encoder/conv1/bias"), "occurs twice"),
        (BIN + b"\0", "1 bytes follow its end"),
    ),
    Refusal("ct2", {TOKENIZER: None}, TOKENIZER, MISSING),
    *refusals("ct2", "preprocessor_config.json", FAILED,
        ({"feature_size": 128}, "feature_size is 128, and this model needs"),
        ({"chunk_length": 10}, "chunk_length is 10, and this model needs"),
        ({"sampling_rate": 8000}, "sampling_rate is 8000, and this model needs"),
        ({"hop_length": 80}, "hop_length is 80, and this model needs"),
    ),
    Refusal("ct2", {TOKENIZER: None, "vocab.json": "{}"}, ("no tokenizer.json", "merges.txt"),
            MISSING),
    *(Refusal("ct2", {TOKENIZER: None, **files}, words, UNREADABLE) for files, words in (
        ({"vocabulary.json": "{}"}, "not a list of tokens"),
        ({"vocabulary.json": '["a", 1]'}, "not a list of tokens"),
        ({"vocabulary.json": "["}, "not valid JSON"),
        ({"vocabulary.json": '["a"]'}, "has no <|endoftext|>"),
        ({"vocabulary.txt": "a\nb\n"}, "has no <|endoftext|>"),
        ({"vocabulary.txt": b"\xff"}, "not UTF-8"),
        ({"vocab.json": "[]", "merges.txt": ""}, "not a JSON object"),
        ({"vocab.json": '{"a": "b"}', "merges.txt": ""}, "a token has no number"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b c\n"}, "not two tokens"),
        ({"vocab.json": '{"a": 0}', "merges.txt": b"\xff"}, "not UTF-8"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "", "added_tokens.json": '{"b": -1}'},
         "a token has no number"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "",
          TOKENIZER_CONFIG: '{"added_tokens_decoder": {"x": {"content": "b"}}}'},
         "no text or number"),
    )),
]

# Decoders of Hugging Face.

KEYS = "layers.2.self_attn.k_proj.weight"
EXPERT = "experts.2.w3.weight"
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
DECODERS = [
    *refusals("llama", CONFIG, FAILED, *each_saying(CONFIG,
        ({"model_type": "bloom"}, "model_type 'bloom' is not supported"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "24"}, "hidden_size must be a whole number"),
        ({"hidden_size": True}, "hidden_size must be a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a whole number from 1"),
        ({"num_key_value_heads": 3}, "4 heads are not a multiple of 3"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be a whole number from 1 to"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a number above 0"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is too large"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps must be a number above 0"),
        ({"hidden_act": "mish"}, "activation 'mish' is not supported"),
        ({"hidden_act": "xielu"}, "gates with xielu are not supported"),
        ({"hidden_act": ["silu"]}, "is not supported (supported: silu"),
        ({"attention_bias": "no"}, "attention_bias must be true or false"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"layer_types": ["full_attention"]}, "layer_types must list 4 layers"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types other than"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window is missing"),
        ({"rope_parameters": 3}, "rope_parameters must be an object"),
        ({"rope_parameters": {"rope_type": "axial"}}, "rope type 'axial' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "short_factor is missing"),
        ({"rope_scaling": LONGROPE | {"long_factor": [1.0] * 3}}, "needs 4 divisors"),
        ({"rope_scaling": LONGROPE | {"long_factor": [1.0, -1.0]}}, "each of long_factor must be"),
        ({"rope_scaling": LONGROPE | {"short_factor": 1.0}}, "short_factor must list numbers"),
        ({"rope_scaling": LONGROPE | {"factor": -1}}, "factor must be a number above 0"),
        ({"rope_scaling": LONGROPE | {"type": "yarn"}}, "yarn has no long_factor"),
        ({"rope_scaling": {"type": "dynamic"}}, "factor is missing"),
        ({"rope_scaling": {"type": "proportional", "partial_rotary_factor": 2}}, "share of a head"),
        ({"rope_parameters": {"llama_4_scaling_beta": 0.1}}, "llama_4_scaling_beta is not"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "out of range"),
        ({"rope_scaling": {**LLAMA3, "rope_type": "llama3", "high_freq_factor": 1.0}}, "in this"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 0}}, "truncate must be true"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor must be 1"),
    )),
    *refusals("llama", CONFIG, FAILED,
        ({"model_type": "bloom"}, ("whisper", *SETTINGS, "gemma3")),
        # 4 and 2 heads give as many rows of queries, keys and values as 6 heads and 1.
        ({"num_attention_heads": 6, "num_key_value_heads": 1},
         ("self_attn.q_proj.weight has shape [32, 24]", "[48, 24]")),
        *(({"num_hidden_layers": layers}, "layers.") for layers in (5, 1_000)),
        *(({name: {"quant_method": kind}}, f"{name} of the kind {kind!r}, which is not read")
          for name, kind in (
            ("quantization_config", "quanto"),
            ("compression_config", "compressed-tensors"),
        )),
        ({"quantization_config": {"bits": 4}}, "quantization_config of the kind 'None'"),
        ({"mlp_bias": True}, "layers.0.mlp.gate_proj.bias"),
        *(({"model_type": "qwen3_5_text", name: value}, line) for name, value, line in (
            ("layer_types", ["linear_attention"], "layer_types must list 4 layers"),
            ("layer_types", ["conv"] * 4, "layer_types other than linear_attention, full"),
            ("full_attention_interval", 0, "full_attention_interval must be a whole number"),
            ("attn_output_gate", False, "attn_output_gate must be true"),
            ("attention_bias", True, "attention_bias is not supported"),
            ("linear_num_key_heads", 7, "32 heads of values are not a multiple of 7"),
            ("linear_key_head_dim", -1, "linear_key_head_dim must be a whole number"),
            ("linear_value_head_dim", 10**6, "heads of a state are larger than any model's"),
            ("linear_conv_kernel_dim", 10**6, "a convolution of 1000000 positions"),
        )),
        *(({"model_type": "kimi_linear", "num_key_value_heads": 4, name: value}, line)
          for name, value, line in (
            ("mla_use_nope", False, "mla_use_nope must be True, not False"),
            ("moe_router_activation_func", "softmax", "_func must be 'sigmoid', not 'softmax'"),
            ("routed_expert_hidden_size", 8, "routed_expert_hidden_size must be None, not 8"),
            ("moe_layer_freq", 2, "moe_layer_freq must be 1, not 2"),
            ("hidden_act", "gelu", "hidden_act must be silu"),
            ("linear_num_heads", 0, "linear_num_heads must be a whole number"),
            ("linear_attn_config", 5, "linear_attn_config must be an object"),
            ("linear_attn_config", {"head_dim": 10**6}, "heads of a state are larger than any"),
            ("linear_attn_config", {"gate_lower_bound": -5.0}, "gate_lower_bound must be None"),
            ("linear_attn_config", {"full_attn_layers": [1], "kda_layers": "2"},
             "linear_attn_config: kda_layers must list numbers of layers"),
            ("linear_attn_config", {"full_attn_layers": [0], "kda_layers": [1, 2, 3]},
             "full_attn_layers and kda_layers must number the layers from 1 to 4"),
        )),
        *(({"model_type": "bailing_hybrid", "num_key_value_heads": 4, name: value}, line)
          for name, value, line in (
            ("q_lora_rank", 16, "q_lora_rank must be None, not 16"),
            ("rope_interleave", False, "rope_interleave must be True, not False"),
            ("layer_group_size", 0, "layer_group_size must be a whole number"),
            ("kda_lower_bound", 1.0, "kda_lower_bound must be a number below 0"),
            ("kda_lower_bound", "-1", "kda_lower_bound must be a number below 0"),
            ("kda_safe_gate", 1, "kda_safe_gate must be true or false"),
        )),
        *(({"model_type": "granitemoehybrid", "mamba_n_heads": 4, name: value}, line)
          for name, value, line in (
            ("layer_types", "mamba", "layer_types must be a list of names"),
            ("layer_types", ["mamba"], "layer_types must list 4 layers"),
            ("layer_types", ["conv"] * 4, "layer_types other than linear_attention, full"),
            ("position_embedding_type", "alibi", "position_embedding_type 'alibi' is not"),
            ("time_step_limit", [0.0, 1.0], "time_step_limit is not supported"),
            ("hidden_act", "gelu", "hidden_act must be silu"),
            ("mamba_d_head", 7, "mamba_n_heads 4 of mamba_d_head 7 are not mamba_expand"),
            ("mamba_d_state", -1, "mamba_d_state must be a whole number"),
            ("mamba_d_state", 10**6, "heads of a state are larger than any model's"),
            ("mamba_n_groups", 3, "4 heads of values are not a multiple of 3"),
            ("mamba_d_conv", 10**6, "a convolution of 1000000 positions"),
            ("num_local_experts", -1, "num_local_experts must be a whole number"),
            ("num_experts_per_tok", 9, "9 of 8 experts is not possible"),
            ("shared_intermediate_size", -1, "shared_intermediate_size must be a whole number"),
        )),
        ({"model_type": "bamba", "attn_layer_indices": 3}, "attn_layer_indices must be a list"),
        *(({"model_type": "granite", name: value}, line) for name, value, line in (
            ("residual_multiplier", 1e-300, "a factor of 1e-300 on each block's result"),
            ("residual_multiplier", -1.0, "residual_multiplier must be a number above 0"),
            ("logits_scaling", 5e-324, "logit_scale must be a finite number above 0"),
            ("attention_multiplier", 0, "attention_multiplier must be a number above 0"),
        )),
        ({"model_type": "granite", "embedding_multiplier": 1e308, "residual_multiplier": 0.1},
         "embedding_scale must be a finite number above 0"),
        *(({"model_type": "granite_swa", "layer_rope_theta": bases}, line) for bases, line in (
            ([0, 100.0], "layer_rope_theta must list 4 layers"),
            ("0000", "layer_rope_theta must list 4 layers"),
            ([0, 0, 0, -1.0], "each of layer_rope_theta must be a number above 0"),
            ([0, 0, 0, "1"], "each of layer_rope_theta must be a number above 0"),
            ([0, 0, 0, 0.5], "rotary base 0.5 or factor 1.0 is out of range"),
        )),
        ({"model_type": "hunyuan_v1_dense",
          "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": -1}}, "alpha must be a"),
        *(({"model_type": "olmo_hybrid", name: value}, line) for name, value, line in (
            ("layer_types", ["full_attention"] * 4, "layers with states have sizes"),
            ("linear_num_key_heads", 3, "4 heads of values are not a multiple of 3"),
            ("linear_key_head_dim", -1, "linear_key_head_dim must be a whole number"),
            ("linear_allow_neg_eigval", 1, "linear_allow_neg_eigval must be true or false"),
        )),
        *(({"model_type": "nemotron_h", **fields}, line) for fields, line in (
            ({}, "layers_block_type 'moe' is not supported"),
            ({"hybrid_override_pattern": "M-x"}, "layers_block_type 'x' is not supported"),
            ({"hybrid_override_pattern": "-M"}, "with mlp that follows no mixer"),
            ({"layers_block_type": ["mamba", "mlp", "mlp"]}, "with mlp that follows no mixer"),
            ({"layers_block_type": "M-"}, "layers_block_type must be a list of names"),
            ({"layers_block_type": []}, "with mlp that follows no mixer"),
            ({"hybrid_override_pattern": "M*", "mamba_hidden_act": "gelu"}, "mamba_hidden_act"),
        )),
        *(({"model_type": "falcon_h1", "mamba_d_ssm": 32, "mamba_n_heads": 4, name: value}, line)
          for name, value, line in (
            ("mamba_d_head", 7, "mamba_n_heads 4 of mamba_d_head 7 are not"),
            ("projectors_bias", True, "projectors_bias must be mamba_proj_bias"),
            ("ssm_multipliers", [1.0] * 4, "ssm_multipliers must list 5 numbers"),
            ("mlp_multipliers", 1.0, "mlp_multipliers must list numbers above 0"),
            ("key_multiplier", 0, "key_multiplier must be a number above 0"),
        )),
        *(({"model_type": "muse_glimmer_text", "layer_rope_theta": bases}, "must list 0 or")
          for bases in ([0, 5.0, 0, 0], [0], "0000", [[], 0, 0, 0])),
        ({"model_type": "muse_glimmer_text", "post_norm_eps": 0}, "post_norm_eps must be a number"),
        *(({"model_type": "gemma3n_text", "num_kv_shared_layers": 0, name: value}, line)
          for name, value, line in (
            ("intermediate_size", [8, 8], "must be one, or list one for each of 4 layers"),
            ("intermediate_size", [8, 8, 8, -8], "intermediate_size must be a whole number"),
            ("activation_sparsity_pattern", 0.5, "activation_sparsity_pattern must list numbers"),
            ("activation_sparsity_pattern", [0.5], "1 sparsities are not one for each layer"),
            ("altup_num_inputs", 9, "9 streams of a token"),
            ("altup_active_idx", 4, "stream 4 is none of 4"),
            ("num_kv_shared_layers", 4, "leave a kind of layers without any"),
        )),
        ({"model_type": "lfm3", "use_attention_gate": 1}, "use_attention_gate must be true or"),
        *(({"model_type": "smollm3", "no_rope_layers": layers}, "no_rope_layers must list 0 or 1")
          for layers in ([1, 1, 1], [1, 1, 1, 2], "1111", [])),
        ({"model_type": "smollm3", "no_rope_layer_interval": 0}, "no_rope_layer_interval must be"),
        *(({"model_type": "mistral_large4", "num_key_value_heads": 4, name: value}, line)
          for name, value, line in (
            ("no_rope_layers", [1, 1, 1], "no_rope_layers must list 0 or 1"),
            ("kv_source_layers", [0, 1, 2], "kv_source_layers must list 4 layers"),
            ("kv_source_layers", [0, 2, 2, 3], "layer 1 cannot read layer 2"),
            ("kv_source_layers", [0, 0, 1, 3], "layer 2 cannot read layer 1"),
            ("kv_source_layers", [0, 1, 2, 0], "no layer before layer 3 rotates as it does"),
            ("indexer_types", ["full"] * 3, "indexer_types must list full or shared"),
            ("indexer_types", ["shared"] * 4, "another's choice are some after the first"),
            ("index_head_dim", 8, "no narrower than their rotated channels"),
            ("q_lora_rank", 16, "q_lora_rank must be None"),
            ("norm_topk_prob", False, "norm_topk_prob must be True"),
            ("final_logit_softcapping", 0, "final_logit_softcapping must be a number above 0"),
        )),
        ({"model_type": "exaone4", "sliding_window": 4, "sliding_window_pattern": "LLLG"},
         "sliding_window_pattern must be a whole number"),
        ({"model_type": "starcoder2", "use_bias": 1}, "use_bias must be true or false"),
        *(({"model_type": "opt", name: value}, line) for name, value, line in (
            ("do_layer_norm_before", False, "do_layer_norm_before must be true"),
            ("_remove_final_layer_norm", True, "_remove_final_layer_norm must be false"),
            ("layer_norm_elementwise_affine", False, "elementwise_affine must be true"),
            ("word_embed_proj_dim", 12, "word_embed_proj_dim must be hidden_size"),
        )),
        *(({"model_type": "falcon", **fields}, line) for fields, line in (
            ({"alibi": True}, "alibi must be false"),
            ({"new_decoder_architecture": True, "parallel_attn": False}, "must be true with new"),
            ({"new_decoder_architecture": True, "num_kv_heads": 3}, "not a multiple of 3"),
        )),
        *(({"model_type": "gpt_neo", "attention_types": groups}, line) for groups, line in (
            (None, "attention_types must list groups"),
            ([["global", 2]], "attention_types must list groups"),
            ([[["global"], 10**12]], "attention_types must list groups"),
            ([[["global"], 2]], "layer_types must list 4 layers"),
            ([[["far"], 4]], "layer_types other than"),
            ([[[[]], 4]], "layer_types other than"),
        )),
        ({"model_type": "gptj", "rotary_dim": 7, "head_dim": None}, "rotary_dim must be a whole"),
        ({"model_type": "gpt_bigcode", "multi_query": False}, "multi_query must be true"),
        ({"model_type": "olmo", "clip_qkv": -1.0}, "clip_qkv must be a number above 0"),
        ({"model_type": "arcee", "hidden_act": "relu3"}, "activation 'relu3' is not supported"),
        ({"hidden_act": "relu2"}, "gates with relu_squared are not supported"),
        *(({"model_type": "dots1", "n_routed_experts": 8, "n_shared_experts": 1,
            "num_experts_per_tok": 2, "moe_intermediate_size": 8, **fields}, line)
          for fields, line in (
            ({"n_group": 3}, "2 of 8 experts in 1 of 3 groups is not possible"),
            ({"n_group": 2, "topk_group": 3}, "2 of 8 experts in 3 of 2 groups is not possible"),
            ({"n_group": 8, "topk_group": 4}, "2 of 8 experts in 4 of 8 groups is not possible"),
            ({"routed_scaling_factor": 0}, "routed_scaling_factor must be a number above 0"),
            ({"first_k_dense_replace": 4}, "dense_layers must number some of the layers"),
            ({"first_k_dense_replace": 10**12}, "first_k_dense_replace must be a whole number"),
            ({"n_shared_experts": -1}, "n_shared_experts must be a whole number from 0"),
            ({"n_shared_experts": None}, "n_shared_experts is missing"),
        )),
        *(({"model_type": "ernie4_5_moe", name: value}, line) for name, value, line in (
            ("use_bias", True, "use_bias is not supported in models with experts"),
            ("moe_norm_min", 0.01, "moe_norm_min above 1e-09 is not supported"),
            ("moe_layer_interval", 0, "moe_layer_interval must be a whole number from 1"),
            ("moe_layer_end_index", -2, "moe_layer_end_index must be a whole number from -1"),
        )),
        *(({"model_type": "minimax_m2", name: value}, line) for name, value, line in (
            ("scoring_func", "softmax", "scoring_func must be 'sigmoid', not 'softmax'"),
            ("use_routing_bias", False, "use_routing_bias must be True, not False"),
            ("use_qk_norm", False, "use_qk_norm must be True, not False"),
            ("shared_intermediate_size", 8, "shared_intermediate_size must be 0, not 8"),
            ("rotary_dim", 0, "rotary_dim must be a whole number from 1"),
        )),
        *(({"model_type": "afmoe", name: value}, line) for name, value, line in (
            ("score_func", "softmax", "score_func must be 'sigmoid', not 'softmax'"),
            ("route_norm", False, "route_norm must be True, not False"),
            ("global_attn_every_n_layers", 0, "global_attn_every_n_layers must be a whole"),
            ("mup_enabled", 1, "mup_enabled must be true or false"),
        )),
        ({"model_type": "lfm2_moe", "moe_intermediate_size": 8, "use_expert_bias": 1},
         "use_expert_bias must be true or false"),
    ),
    *refusals("gemma3_text", CONFIG, FAILED,
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping must be a number above 0"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be a number above 0"),
    ),
    *refusals("gemma4_text", CONFIG, FAILED, *each_saying(CONFIG,
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is not supported"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping must be a number above 0"),
        ({"num_kv_shared_layers": 3}, "3 layers that share caches leave a kind"),
        ({"num_kv_shared_layers": 4}, "4 layers that share caches leave a kind"),
        ({"num_kv_shared_layers": 10**9}, "num_kv_shared_layers must be a whole number from 0"),
        ({"vocab_size_per_layer_input": 18}, "vocab_size_per_layer_input must be vocab_size"),
        ({"hidden_size_per_layer_input": -1}, "hidden_size_per_layer_input must be a whole"),
        ({"hidden_size_per_layer_input": 2**31 - 1}, "for each layer: not possible"),
        ({"layer_types": ["conv"] * 4}, "layer_types other than full_attention and"),
        ({"layer_types": 3}, "layer_types must list 4 layers"),
        ({"per_layer_config": []}, "per_layer_config must be an object"),
        ({"per_layer_config": {"4": {}}}, "per_layer_config of layer '4': there are 4 layers"),
        ({"per_layer_config": {"-1": {}}}, "there are 4 layers"),
        ({"per_layer_config": {"9" * 5000: {}}}, "there are 4 layers"),
        ({"per_layer_config": {"1": {"skip": ["mlp"]}}}, "only head_dim and num_key_value_heads"),
        ({"per_layer_config": {"1": {"head_dim": 0}}}, "head_dim must be a whole number from 1"),
        ({"per_layer_config": {"1": {"head_dim": 7}}}, "head_dim must be even, not 7"),
        ({"per_layer_config": {"0": {"num_key_value_heads": 3}}}, "not a multiple of 3 kv_heads"),
        ({"per_layer_config": {"1": {"head_dim": 16}}}, "layer 3 attends otherwise than layer 1"),
        ({"per_layer_config": None, "global_head_dim": 0}, "global_head_dim must be a whole"),
        ({"attention_k_eq_v": 1}, "attention_k_eq_v must be true or false"),
        ({"enable_moe_block": True}, "num_experts is missing"),
        ({"enable_moe_block": True, "num_experts": 3, "top_k_experts": 4,
          "moe_intermediate_size": 8}, "4 of 3 experts is not possible"),
        ({"rope_parameters": {"full_attention": {"rope_type": "proportional",
          "partial_rotary_factor": 0.0}}}, "partial_rotary_factor must be a number above 0"),
    )),
    *refusals("lfm2", CONFIG, FAILED, *each_saying(CONFIG,
        ({"conv_L_cache": 0}, "conv_L_cache must be a whole number from 1"),
        ({"conv_L_cache": 10**6}, "a convolution of 1000000 positions is not possible"),
        ({"conv_bias": "no"}, "conv_bias must be true or false"),
        ({"layer_types": ["conv", "mamba"] * 2}, "layer_types other than conv, full_attention"),
        ({"layer_types": None, "full_attn_idxs": 3}, "full_attn_idxs must be a list"),
        ({"block_multiple_of": -1}, "block_multiple_of must be a whole number from 1"),
        ({"block_ffn_dim_multiplier": 1e308}, "intermediate_size must be a whole number from 1"),
        ({"block_ff_dim": 1}, "intermediate_size must be a whole number from 1"),
        ({"norm_eps": 0}, "norm_eps must be a number above 0"),
    )),
    *refusals("lfm2", CONFIG, FAILED,
        ({"block_multiple_of": 2**31 - 1}, "w1.weight has shape [16, 24]"),
        ({"conv_L_cache": 3}, "conv.conv.weight has shape"),
    ),
    *(Refusal("llama", {GENERATION: {"eos_token_id": tokens}}, "eos_token_id", UNREADABLE)
      for tokens in ("2", [2, "x"], -1, 1 << 31, True, {"a": 1})),
    Refusal("llama", {GENERATION: None, CONFIG: {"eos_token_id": None}, TOKENIZER: "{}"},
            ("config.json has no eos_token_id", "tokenizer_config.json"), FAILED),
    *(Refusal("llama", {TOKENIZER_CONFIG: {"added_tokens_decoder": tokens}},
              "tokenizer_config.json is damaged: added_tokens_decoder", UNREADABLE)
      for tokens in ([1], {"x": {"content": "a"}}, {"1": {}}, {"1": "a"})),
    *(Refusal(name, {WEIGHTS: without(KEYS)}, KEYS, FAILED) for name in SETTINGS),
    Refusal("mixtral", {CONFIG: {"num_local_experts": 2}},
            "block_sparse_moe.gate.weight has shape [3, 24]", FAILED),
    Refusal("mixtral", {WEIGHTS: without(f"layers.1.block_sparse_moe.{EXPERT}")}, EXPERT, FAILED),
    *(Refusal("llama", {name: "{}"}, f"weights in codes ({name}), which is not read", FAILED)
      for name in ("quantize_config.json", "quant_config.json")),
    Refusal("llama", {WEIGHTS: also("model.norm.weight", torch.ones(24).long())}, "is I64", FAILED),
    Refusal("llama in shards", {f"{PART}8.safetensors": None}, f"{PART}8.safetensors", MISSING),
    Refusal("llama", {TOKENIZER: None}, "save_pretrained", MISSING),
    *(Refusal("llama", {file: "["}, file, UNREADABLE) for file in (TOKENIZER_CONFIG, GENERATION)),
]

# T5.



def encoder_alone(tensors: Any) -> Any:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("decoder")}


T5 = [
    *refusals("t5", CONFIG, FAILED, *each_saying(CONFIG,
        ({"model_type": "longt5"}, "model_type 'longt5' is not supported"),
        ({"d_model": "32"}, "d_model must be a whole number"),
        ({"num_heads": 0}, "num_heads must be a whole number from 1"),
        ({"num_layers": 10**12}, "num_layers must be a whole number from 1 to 10000"),
        ({"num_decoder_layers": True}, "num_decoder_layers must be a whole number"),
        ({"layer_norm_epsilon": 0}, "layer_norm_epsilon must be a number above 0"),
        ({"relative_attention_num_buckets": 6}, "6 buckets over a distance of 128"),
        ({"relative_attention_max_distance": 16}, "32 buckets over a distance of 16"),
        ({"dense_act_fn": "mish"}, "feed_forward_proj 'relu' of 'mish' is not supported"),
        ({"feed_forward_proj": "gated-a-b", "dense_act_fn": None}, "feed_forward_proj 'gated-a-b'"),
        ({"feed_forward_proj": "plain-relu"}, "feed_forward_proj 'plain-relu'"),
        ({"is_gated_act": "no"}, "is_gated_act must be true or false"),
        ({"scale_decoder_outputs": 1}, "scale_decoder_outputs must be true or false"),
        ({"scale_decoder_outputs": None, "tie_word_embeddings": "yes"},
         "tie_word_embeddings must be true or false"),
        ({"decoder_start_token_id": -1}, "decoder_start_token_id must be a whole number from 0"),
        ({"decoder_start_token_id": 160}, "start_token 160 is not one of 160 tokens"),
    ), others={GENERATION: None}),
    *refusals("t5", CONFIG, FAILED,
        ({"vocab_size": 161}, "shared.weight has shape [160, 32], but the configuration asks for"),
        ({"d_ff": 40}, "DenseReluDense.wi.weight has shape [48, 32]"),
        ({"num_heads": 2}, "SelfAttention.relative_attention_bias.weight has shape [32, 4]"),
        ({"d_kv": 4}, "SelfAttention.q.weight has shape [32, 32]"),
        ({"num_layers": 3}, "no tensor encoder.block.2."),
        ({"num_decoder_layers": 1_000}, "no tensor decoder.block.2."),
        ({"is_gated_act": True}, "no tensor encoder.block.0.layer.1.DenseReluDense.wi_0.weight"),
    ),
    *refusals("t5", WEIGHTS, FAILED,
        (encoder_alone, "has no tensor decoder.block.0.layer."),
        (without("shared.weight"), "has no tensor shared.weight"),
        *((also(name, lambda t: t["shared.weight"] + 1), f"{name} differs from shared.weight")
         for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")),
        (also("lm_head.weight", torch.ones(7, 32)), "lm_head.weight has shape [7, 32]"),
    ),
    Refusal("t5", {TOKENIZER: None, "spiece.model": "", TOKENIZER_CONFIG: {"extra_ids": "2"}},
            "extra_ids must be a whole number from 0", FAILED),
    Refusal("t5", {GENERATION: {"decoder_start_token_id": "0"}},
            f"{GENERATION}: decoder_start_token_id must be a whole number", FAILED),
    *(Refusal("t5", {GENERATION: {"eos_token_id": tokens}}, "eos_token_id", UNREADABLE)
      for tokens in ("1", [1, -1], True)),
    Refusal("t5", {TOKENIZER: None},
            ("no tokenizer.json, spiece.model or vocab.txt in", "copy the base model's"), MISSING),
    Refusal("t5", renamed(WEIGHTS, "pytorch_model.bin"), "reads no pickled weights", MISSING),
    *(Refusal("t5", {file: "["}, file, UNREADABLE) for file in (TOKENIZER_CONFIG, GENERATION)),
]

# UniLMs, and word pieces.

CROSS = "encoder.layer.0.crossattention.x"
NO_HEAD, SAVE = "has no masked-LM head (cls.predictions.*)", "save the model from"
EMBEDDINGS = "embeddings.word_embeddings.weight"


def base_alone(tensors: Any) -> Any:
    return {
        name.partition(".")[2]: tensor
        for name, tensor in tensors.items()
        if not name.startswith("cls.")
    }


UNILMS = [
    *refusals("roformer", CONFIG, FAILED, *each_saying(CONFIG,
        ({"hidden_size": "24"}, "hidden_size must be a whole number"),
        ({"num_attention_heads": 5}, "width 24 is not a multiple of 5 heads"),
        ({"num_attention_heads": 8}, "rotary positions need an even head_dim, not 3"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be a whole number from 1 to 10000"),
        ({"type_vocab_size": 1}, "a UniLM has 2 segments, source and target: this model has 1"),
        ({"max_position_embeddings": 10**9}, "max_positions 1000000000 is more than any model has"),
        ({"layer_norm_eps": -1}, "layer_norm_eps must be a number above 0"),
        ({"hidden_act": "swish"}, "activation 'silu' is not supported: gelu"),
        ({"rotary_value": True}, "rotary_value is not supported: only queries and keys"),
        ({"rotary_value": "no"}, "rotary_value must be true or false"),
        ({"embedding_size": 0}, "embedding_size must be a whole number from 1"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type must be 'absolute'"),
    )),
    *refusals("roformer", CONFIG, FAILED,
        ({"vocab_size": 20}, "word_embeddings.weight has shape [19, 24]"),
        ({"embedding_size": 12}, "word_embeddings.weight has shape [19, 24]"),
        ({"type_vocab_size": 3}, "token_type_embeddings.weight has shape [2, 24]"),
        ({"intermediate_size": 21}, "intermediate.dense.weight has shape [20, 24]"),
        ({"max_position_embeddings": 8}, "embed_positions.weight has shape [16, 12]"),
        ({"num_attention_heads": 3}, "embed_positions.weight has shape [16, 12]"),
        ({"num_hidden_layers": 10_000}, "no tensor encoder.layer.3."),
        ({"num_hidden_layers": 2}, "has no place in a roformer model of 2 layers"),
    ),
    Refusal("bert", {CONFIG: {"max_position_embeddings": 17}},
            "position_embeddings.weight has shape [16, 24]", FAILED),
    Refusal("roformer", {WEIGHTS: also(f"roformer.{CROSS}", torch.ones(2))},
            f"{CROSS} has no place in a roformer", FAILED),
    *(Refusal(name, {WEIGHTS: base_alone}, (NO_HEAD, f"{SAVE} {kind}ForMaskedLM"), FAILED)
      for name, kind in (("roformer", "RoFormer"), ("bert", "Bert"))),
    *refusals("bert", WEIGHTS, FAILED,
        (without("pooler.dense.weight"), "pooler.dense.bias has no place in a bert model"),
        (also("cls.predictions.decoder.weight", lambda t: t[f"bert.{EMBEDDINGS}"] + 1),
         f"cls.predictions.decoder.weight differs from {EMBEDDINGS}: not a UniLM"),
        (also("cls.predictions.decoder.bias", lambda t: t["cls.predictions.bias"] + 1),
         "cls.predictions.decoder.bias differs from cls.predictions.bias: not a UniLM"),
        (also("bert.embeddings.other_ids", torch.arange(4)), "other_ids is I64"),
    ),
    Refusal("bert", {VOCAB: None},
            ("no vocab.txt and no tokenizer.json", "copy the base model's"), MISSING),
    Refusal("bert", {VOCAB: "[CLS]\n[UNK]\n"}, (VOCAB, "has no [SEP]"), FAILED),
    Refusal("bert", {VOCAB: b"[CLS]\n\xff\n"}, f"{VOCAB} is damaged: not UTF-8", UNREADABLE),
    *refusals("bert", TOKENIZER_CONFIG, FAILED,
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class 'BertJapaneseTokenizer'"),
        ({"tokenizer_class": 3}, "tokenizer_class 3 is not supported (supported: BertTokenizer"),
        ({"do_lower_case": 1}, "do_lower_case must be true or false"),
        ({"strip_accents": "no"}, "strip_accents must be true or false"),
        ({"strip_accents": False}, "strip_accents other than do_lower_case is not supported"),
        ({"do_lower_case": False, "strip_accents": True}, "strip_accents other than do_lower_case"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars must be true"),
        ({"cls_token": "<s>"}, "cls_token must be [CLS], not '<s>'"),
        ({"sep_token": {"content": "</s>"}}, "sep_token must be [SEP], not '</s>'"),
    ),
    *(Refusal("bert", {VOCAB: None, TOKENIZER: tokenizer_json(**fields)},
              "is not a WordPiece tokenizer", FAILED) for fields in (
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]]}},
        {"model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(TOKENS)}}},
        {"model": 3},
        {"added_tokens": 3},
    )),
    *refusals("bert", TOKENIZER, UNREADABLE,
        ("[", TOKENIZER),
        ("3", TOKENIZER),
        *((tokenizer_json(added_tokens=[added]), "tokenizer.json is damaged") for added in (
            3, {"id": 1}, {"id": "1", "content": "x"},
        )),
        (tokenizer_json(model={"type": "WordPiece", "vocab": {"a": "b"}}), "a token has no number"),
        others={VOCAB: None},
    ),
]

# Mistral's own layout.

LAYOUT, CONSOLIDATED, WK = "mistral's layout", "consolidated.safetensors", "attention.wk.weight"
MISTRAL = [
    *refusals(LAYOUT, "params.json", FAILED, *each_saying("params.json",
        *(({name: None}, f"{name} is missing") for name in PARAMS),
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported"),
        ({"lora": {"rank": 2}}, "lora is not supported"),
        ({"quantization": {"qformat_weight": "fp8_e4m3"}}, "quantization is not supported"),
        ({"n_layers": 10**12}, "n_layers must be a whole number"),
        ({"n_kv_heads": 3}, "4 heads are not a multiple of 3"),
        ({"sliding_window": [5, 5, 5]}, "sliding_window must list a window for each of 4 layers"),
        ({"sliding_window": []}, "sliding_window must list"),
        ({"sliding_window": "5"}, "sliding_window must be a whole number"),
        ({"rope_theta": 0}, "rope_theta must be a number above 0"),
        ({"moe": 3}, "moe must be an object"),
        ({"moe": {"num_experts": 2}}, "num_experts_per_tok is missing"),
        ({"yarn": {"factor": 2}}, "original_max_position_embeddings is missing"),
    )),
    *refusals(LAYOUT, CONSOLIDATED, FAILED,
        (without(f"layers.3.{WK}"), f"layers.3.{WK}"),
        (also(f"layers.3.{WK}", torch.ones(15, 24)), f"layers.3.{WK} has shape [15, 24]"),
        (also("adapter.weight", torch.ones(1)), "adapter.weight has no place"),
    ),
    Refusal(LAYOUT, {"tekken.json": None}, "no tekken.json or tokenizer.model*", MISSING),
    Refusal(LAYOUT, renamed(CONSOLIDATED, "consolidated.00.pth"), ("pickled", "safetensors"),
            MISSING),
]

# bert4keras.


def named(path: Path) -> str:
    return "bert_config.json" if path.suffix == ".json" else path.name


def another_model(folder: Path) -> None:
    for path in folder.glob("bert_model.ckpt*"):
        path.unlink()
    for path in (DATA / "kinds").glob("float16.ckpt*"):
        (folder / path.name).write_bytes(path.read_bytes())


BERT4KERAS = [
    *(Refusal(release, {path.name: None}, (f"no {named(path)} in ", "fetch"), MISSING)
      for release in RELEASES for path in sorted((DATA / release).iterdir())
      if path.suffix != ".index"),
    *refusals("roformer-sim", "bert_config.json", FAILED,
        ({"hidden_size": 12}, "asks for"),
        ({"embedding_size": 8}, "word_embeddings has shape [11, 6]"),
        ({"vocab_size": 12}, "asks for [12, 6]"),
        ({"vocab_size": 10}, "has 11 tokens, but the configuration 10"),
        ({"num_hidden_layers": 3}, "no tensor bert/encoder/layer_2/attention"),
        ({"num_hidden_layers": 1}, "bert/encoder/layer_1/attention/output"),
        ({"type_vocab_size": 3}, "token_type_embeddings has shape [2, 6]"),
        *(({name: True}, f"bert_config.json: {name} is not supported") for name in (
            "residual_attention_scores", "hierarchical_position", "use_relative_position",
        )),
    ),
    *refusals("simbert", "bert_config.json", FAILED,
        ({"max_position_embeddings": 8}, "position_embeddings has shape [9, 8]"),
        ({"intermediate_size": 16}, "intermediate/dense/kernel has shape [12, 8]"),
        ({"hidden_act": "tanh"}, "hidden_act must be one of gelu"),
    ),
    *refusals("t5-pegasus", CONFIG, FAILED,
        ({"attention_head_size": 3}, "encoder/block_000/layer_000/SelfAttention"),
        ({"num_hidden_layers": 3}, "no tensor encoder/block_002/layer_000"),
        ({"num_hidden_layers": 1}, "decoder/block_001/layer_000"),
        ({"intermediate_size": 12}, "DenseReluDense/wi_0/kernel has shape [10, 6]"),
        ({"hidden_act": "relu"}, "only gated T5 is supported"),
    ),
    Refusal("t5-pegasus", {CONFIG: {"model_type": "t5"}}, "no model.safetensors", MISSING),
    Refusal("t5-pegasus", {"model.ckpt-2.index": ""},
            "holds several checkpoints (model.ckpt-2.index, model.ckpt.index)", FAILED),
    Refusal("simbert", {VOCAB: "a\nb\n[CLS]\n"}, f"{VOCAB} has no [SEP]", FAILED),
    Refusal("simbert", {VOCAB: b"[CLS]\n[SEP]\n\xff\n"}, f"{VOCAB} is damaged: not UTF-8",
            UNREADABLE),
    Refusal("simbert", another_model,
            "neither bert/embeddings/word_embeddings nor shared/embedding", FAILED),
]

# GGUF: what the file is, its container, its model, its tokenizer.


def header(*parts: bytes, tensors: int = 0, values: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, values) + b"".join(parts)


def text(contents: str | bytes) -> bytes:
    contents = contents if isinstance(contents, bytes) else contents.encode()
    return struct.pack("<Q", len(contents)) + contents


def tensor(name: str, *axes: int, kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, kind, offset)


def with_tensors(*described: bytes, room: int = 64) -> bytes:
    return header(*described, tensors=len(described)) + bytes(room)


def with_values(*values: bytes) -> bytes:
    return header(*values, values=len(values))


def array(item: int, count: int, more: bytes = b"") -> bytes:
    return with_values(text("a") + struct.pack("<IIQ", ARRAY, item, count) + more)


def aligned(alignment: int) -> bytes:
    value = text("general.alignment") + struct.pack("<II", 4, alignment)
    return header(value, tensor("t", 4), values=1, tensors=1) + bytes(64)


U8, ARRAY, STRING = 0, 9, 8
VALUE = text("a") + struct.pack("<IB", U8, 1)
SHARED = header(tensor("a", 9), tensor("b", 8, offset=32), tensors=2)
GGUF_FILES = [
    *refusals("gguf", "m.gguf", UNREADABLE,
        ("", "is empty"),
        (header(tensors=2**60), "cannot hold"),
        (header(values=2**60), "cannot hold"),
        (with_values(VALUE, VALUE), "value a occurs twice"),
        (with_values(text("a\nb") + VALUE[9:]), "the name of a value is not text"),
        (with_values(text(b"\xff") + VALUE[9:]), "the name of a value is not text"),
        (with_values(text("a") + struct.pack("<IB", 99, 1)), "unknown type 99"),
        (array(ARRAY, 1), "unknown type 9"),
        (array(STRING, 2**61), "cannot hold"),
        (array(STRING, 1, struct.pack("<Q", 2**62)), "a ends too early"),
        (array(STRING, 1, text(b"\xff")), "not a list of texts"),
        (array(U8, 2**62), "ends too early"),
        (with_tensors(tensor("t", *[1] * 5)), "5 axes"),
        (with_tensors(tensor("t")), "0 axes"),
        (with_tensors(tensor("t", 0)), "cannot have shape [0]"),
        (with_tensors(tensor("t", 33, kind=8)), "cannot have shape [33]"),
        (with_tensors(tensor("t", 4, kind=77)), "unknown type 77"),
        (with_tensors(tensor("t", 2**62, 2**62)), "its place"),
        (with_tensors(tensor("t", 4, offset=2**63)), "its place"),
        (with_tensors(tensor("t", 4, offset=8)), "its place"),
        (with_tensors(tensor("t", 4), tensor("t", 4, offset=32), room=96), "tensor t occurs twice"),
        (SHARED + bytes(-len(SHARED) % 32 + 96), "tensor b does not lie in its place"),
        *((aligned(alignment), "") for alignment in (0, 3, 2**31)),
    ),
    *refusals("gguf", "m.gguf", FAILED,
        (b"GGML" + bytes(60), "is not a GGUF file"),
        (b"GGUF" + (1).to_bytes(4, "little") + bytes(60), "version 1"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(60), "big-endian"),
    ),
]


def made(make: Callable[[Path, Any], object], *cases: Case) -> list[Refusal]:
    return [
        Refusal("gguf", lambda folder, what=what: make(folder / "m.gguf", what), words, FAILED)
        for what, words in cases
    ]


def of_unknown_blocks(path: Path, _: object) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    kind = gguf.GGMLQuantizationType.Q8_K
    writer.add_tensor("t", np.zeros((1, 292), np.uint8), raw_dtype=kind)
    finish(writer)


def spelled(path: Path, **more: Any) -> None:
    write(path, "llama", sizes("llama") | vocabulary(**more), ARRAYS)


LLAMA, ARRAYS = sizes("llama") | vocabulary(), tensors()
SMALL = {"token_embd.weight": ARRAYS["token_embd.weight"][:50]}
TWO_EXPERTS = sizes("llama", expert_count=2, expert_used_count=2) | vocabulary()
TYPE, FACTOR = "rope__scaling__type", "rope__scaling__factor"
HALF = HEAD_DIM // 2
GGUF_MODELS = [
    *made(lambda path, what: write(path, "llama", *what),
        ((LLAMA, tensors(head_norms=True)), "has no place"),
        ((LLAMA, {"output_norm.weight": np.ones(3)}), "no tensor token_embd.weight"),
        ((LLAMA, ARRAYS | SMALL), "do not fit 50 embeddings"),
        ((LLAMA | {"split.count": 3}, ARRAYS), "one of 3 parts"),
        ((TWO_EXPERTS, tensors(experts=EXPERTS)), "does not hold 2 experts"),
    ),
    *made(lambda path, name: write(path, name, sizes(name) | vocabulary(), ARRAYS),
        ("bert", "architecture 'bert' is not supported"),
    ),
    *made(lambda path, kind: write(path, "dots1",
                                   sizes("dots1", expert_gating_func=kind) | vocabulary(), ARRAYS),
        (1, "dots1.expert_gating_func must be 2"),
        (0, "dots1.expert_gating_func must be 2"),
    ),
    *made(lambda path, value: write(path, "afmoe", sizes(
            "afmoe", expert_count=2, expert_used_count=1, expert_feed_forward_length=8,
            expert_weights_norm=value) | vocabulary(), ARRAYS),
        (False, "route_norm must be True, not False"),
    ),
    *made(lambda path, pattern: gemma(path, 4, attention__sliding_window_pattern=pattern),
        ([False, True, True], "one for each layer"),
    ),
    *made(of_unknown_blocks, (None, "is Q8_K, not one of F32")),
    *made(lambda path, what: with_divisors(path, *what),
        ((np.zeros(HALF, np.float32),), "below 1"),
        ((np.full(HALF, np.nan, np.float32),), "below 1"),
        ((np.ones(3, np.float32),), "has shape [3]"),
        ((llama3_divisors(8.0), {TYPE: "linear", FACTOR: 2.0}), "both by"),
        ((llama3_divisors(8.0), {"rope__scale_linear": 2.0}), "both by"),
    ),
    *made(lambda path, more: tiny_llama(path, **more),
        ({"block_count": None}, "llama.block_count is missing"),
        ({"block_count": 2**31}, "block_count must be a whole number"),
        ({"block_count": 3}, "no tensor blk.2.attn_norm.weight"),
        ({"block_count": 1}, "tensor blk.1.attn_"),
        ({"context_length": 2**32 - 1}, "context_length must be"),
        ({"embedding_length": "many"}, "embedding_length must be"),
        ({"embedding_length": 2**31 - 1}, "has shape"),
        *(({name: sizes}, f"{name.replace('__', '.')} must be one number, the same for each")
          for name in ("feed_forward_length", "attention__head_count", "attention__head_count_kv")
          for sizes in ([2, 4], [2, 2, 2])),
        ({"attention__head_count": 0}, "head_count must be"),
        ({"attention__head_count": 5}, "multiple"),
        ({"attention__key_length": 15, "attention__value_length": 15}, "must be even"),
        ({"attention__value_length": 8}, "value_length must be 16"),
        ({"rope__dimension_count": 8}, "dimension_count must be 16"),
        ({"attention__layer_norm_rms_epsilon": math.nan}, "epsilon must be"),
        ({"rope__freq_base": 0.5}, "out of range"),
        ({TYPE: "longrope", FACTOR: 2.0}, "'longrope' is not"),
        ({TYPE: "linear"}, "scaling.factor is missing"),
        ({TYPE: "yarn", FACTOR: 2.0, "rope__scaling__yarn_log_multiplier": -2.0},
         "yarn_log_multiplier"),
        ({"expert_count": 2}, "expert_used_count is missing"),
        ({"expert_count": 2, "expert_used_count": 2}, "no tensor blk.0.ffn_gate_inp"),
    ),
    *made(lambda path, more: spelled(path, **{"pre": "gpt-2"} | more), *each_saying("m.gguf: ",
        ({"eos_token_id": None, "tokens": ["a", "b"], "token_type": None},
         "nothing would end a text"),
        ({"model": "rwkv"}, "tokenizer 'rwkv' is not supported"),
        ({"model": None}, "tokenizer 'None' is not supported"),
        ({"pre": "bloom\n"}, "pre-tokenizer 'bloom\\n' is not supported"),
        ({"tokens": None}, "tokens is not a list of texts"),
        ({"tokens": "abc"}, "tokens is not a list of texts"),
        ({"tokens": ["a", "a"]}, "has a token twice"),
        ({"tokens": ["a", "b" * 2000]}, "too long"),
        ({"token_type": [1, 2]}, "token_type is not a number for each token"),
        ({"token_type": "x"}, "token_type is not a number for each token"),
        ({"merges": None}, "merges is not a list of texts"),
        ({"merges": ["ab"]}, "not two tokens"),
        ({"merges": ["h zzz"]}, "cannot be built"),
        ({"eos_token_id": 10_000}, "eos_token_id must be a whole number from 0"),
        ({"bos_token_id": -1.0}, "bos_token_id must be"),
        ({"add_bos_token": 1}, "add_bos_token must be true or false"),
        (sentencepiece(scores=None), "scores is not a number for each token"),
        (sentencepiece(scores=[math.nan] * 270), "scores is not a number for each token"),
        (sentencepiece(unknown_token_id=300), "unknown_token_id must be"),
    )),
]

# TensorFlow's index, whose tensors are all read.


def only(*pairs: Any, **options: Any) -> bytes:
    return index(block([HEADER, *pairs], **options))


def shaped(content: bytes) -> bytes:
    return field(1, 1) + field(2, content) + field(5, 24)


GOOD = entry((2, 3), 0, 24)
TENSORFLOW = [
    *refusals("index", "m.ckpt.index", UNREADABLE, *each_saying("fetch it again",
        (index(), "no sensible number of shards"),
        (only((b"a", GOOD), compression=2), "a block cannot be read"),
        (index(block([(b"a", GOOD)])), "it has no header"),
        (index(block([(b"", field(1, 100_000))])), "no sensible number of shards"),
        (index(block([(b"", field(1, b"x"))])), "no sensible number of shards"),
        (only((b"a\nb", GOOD)), "name of a tensor is not text"),
        (only((b"\xff", GOOD)), "name of a tensor is not text"),
        (only((b"a" * 257, GOOD)), "a name cannot be read"),
        (only(((1, b"a"), GOOD)), "a name cannot be read"),
        (only((b"b", GOOD), (b"a", GOOD)), "names are not in order"),
        (only((b"a", GOOD), (b"a", GOOD)), "names are not in order"),
        (only((b"a", entry((2, 3), 0, 24, shard=1))), "tensor a lies in shard 1 of 1"),
        (only((b"a", entry((2, 3), 25, 24))), "ends within tensor a"),
        (only((b"a", entry((2, 3), 2**64 - 24, 24))), "ends within tensor a"),
        (only((b"a", entry((2, 2**63), 0, 24))), "tensor a has no sensible shape"),
        (only((b"a", entry((1,) * 9, 0, 4))), "tensor a has no sensible shape"),
        (only((b"a", shaped(field(2, field(1, b"x"))))), "tensor a has no sensible shape"),
        (only((b"a", GOOD), (b"b", entry((2,), 16, 8))), "tensors a and b share bytes"),
        (only((b"a", field(1, b"float"))), "the description of tensor a cannot be read"),
        (only((b"a", field(2, 1))), "the description of tensor a cannot be read"),
        (only((b"a", varint(1 << 3 | 3))), "not a protocol buffer"),
        (only((b"a", b"\x80" * 12)), "a number has no end"),
        (only((b"a", b"\x12\x7f")), "an entry ends too early"),
        (index(block([HEADER]), handles=[(0, 2**40)]), "a block does not lie within it"),
        (index(block([HEADER]), handles=[(0, 13), (0, 13)]), "its blocks overlap"),
        (index(sealed(struct.pack("<I", 2**31) + b"\0")), "a block cannot be read"),
        (index(sealed(b"\0\0\0\0")), "a block cannot be read"),
    )),
    *refusals("index", "m.ckpt.index", UNREADABLE,
        (only((b"a", entry((2, 3), 0, 20))), "20 bytes do not make float32 (2, 3)"),
        (only((b"a", entry((2, 2**62), 0, 24))), "24 bytes do not make float32"),
    ),
    *refusals("index", "m.ckpt.index", FAILED,
        (only(compression=1), "compressed with Snappy: save it again"),
        (index(block([(b"", field(1, 1) + field(2, 1))])), "big-endian: save it again"),
    ),
    Refusal("index", {"m.ckpt.index": only((b"a", GOOD)), SHARD: None},
            (f"no {SHARD} in ", "fetch all"), MISSING),
]
# fmt: on

ROWS: tuple[Refusal, ...] = (
    *(*WHISPER, *DOWNLOADS, *CTRANSLATE2, *DECODERS, *T5, *UNILMS, *MISTRAL, *BERT4KERAS),
    *(*GGUF_FILES, *GGUF_MODELS, *TENSORFLOW),
)
