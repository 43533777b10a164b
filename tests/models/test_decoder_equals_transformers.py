"""Decoder-only models against transformers' on random weights, in eager and on ONNX Runtime.

Prompts are several times as long as the windows; the oracle sees all of a prompt at once.
"""

import json

import numpy as np
import pytest
import torch
import transformers

from kit.models import open_folder, write
from kvcast.checkpoints.source import open_checkpoint
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.decoder import EagerDecoderOnly
from kvcast.runtimes.native.target import NativeTarget
from kvcast.spec.runtimes import BundlePrecision

WINDOW, VOCAB, LENGTH = 7, 131, 45
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        "long_factor": [1.0, 2.0, 4.0, 6.0, 8.0, 9.0],
    }
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 10,
}
TRAINED = {"original_max_position_embeddings": 32}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
}
_TWO = {"num_hidden_layers": 2}
_GEMMA_4 = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
    "sliding_window": WINDOW,
    "global_head_dim": 24,
    "hidden_size_per_layer_input": 0,
    "rms_norm_eps": 0.01,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.5,
            "rope_theta": 500.0,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
# Which experts are chosen hangs on little, and more so behind more layers.
_OF_TWO = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
_DELTA_NETS = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_STATE_SPACES = {"mamba_n_heads": 4, "mamba_d_state": 16, "mamba_d_conv": 3}
_GRANITE_4 = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 0.5,
    "rms_norm_eps": 0.02,
    "shared_intermediate_size": 40,
    **_STATE_SPACES,
}
_GPT2 = {"num_hidden_layers": 2, "hidden_size": 64, "num_key_value_heads": 4}
MODELS = {
    "mistral with its window": ("mistral", {"sliding_window": WINDOW}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "llama 2": ("llama", {}),
    "llama 3 with scaled rotation": ("llama", {"rope_parameters": LLAMA3}),
    "llama with biases and a tied head": (
        "llama",
        {"attention_bias": True, "tie_word_embeddings": True},
    ),
    "qwen 2": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "qwen 3": ("qwen3", {}),
    "gemma 3": (
        "gemma3_text",
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
            "sliding_window_pattern": 3,
        },
    ),
    "phi 3 longer than trained": ("phi3", {"hidden_size": 64, **LONGROPE, **TRAINED}),
    "phi 3 no longer than trained": (
        "phi3",
        {"hidden_size": 64, **LONGROPE, "original_max_position_embeddings": 256},
    ),
    "phi 3 with a window": ("phi3", {"hidden_size": 64, "sliding_window": WINDOW}),
    "ministral": (
        "ministral",
        {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "ministral 3": (
        "ministral3",
        {
            "rope_parameters": {
                **YARN,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
                "llama_4_scaling_beta": 0.5,
            }
        },
    ),
    "glm": ("glm", {"attention_bias": True}),
    "glm 4": ("glm4", {"attention_bias": False, "partial_rotary_factor": 0.75}),
    "qwen 2 with experts": (
        "qwen2_moe",
        {
            **EXPERTS,
            "shared_expert_intermediate_size": 40,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 3,
        },
    ),
    "qwen 2 with normalised experts": (
        "qwen2_moe",
        {
            **EXPERTS,
            "shared_expert_intermediate_size": 40,
            "norm_topk_prob": True,
            "qkv_bias": False,
        },
    ),
    "qwen 3 with experts": (
        "qwen3_moe",
        {
            **EXPERTS,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "attention_bias": True,
        },
    ),
    "gpt oss": (
        "gpt_oss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "swiglu_limit": 0.75,
            "swiglu_alpha": 1.3,
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
    "gpt oss without biases in attention": (
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 4, "attention_bias": False},
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama with biases in its feed-forward and relu": (
        "llama",
        {"mlp_bias": True, "hidden_act": "relu", "num_hidden_layers": 2},
    ),
    "gemma": ("gemma", {**_TWO, "hidden_act": "gelu", "attention_bias": True}),
    "gemma 2": (
        "gemma2",
        {
            **_TWO,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
        },
    ),
    "granite": (
        "granite",
        {
            **_TWO,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.4,
            "logits_scaling": 0.5,
            "attention_bias": True,
            "mlp_bias": True,
            "rms_norm_eps": 0.02,
        },
    ),
    "granite with experts": (
        "granitemoe",
        {
            **_TWO,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.4,
            "logits_scaling": 0.5,
            "rms_norm_eps": 0.02,
        },
    ),
    "smollm 3 with windows where nothing is rotated": (
        "smollm3",
        {
            "no_rope_layer_interval": 2,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "attention_bias": True,
        },
    ),
    "smollm 3 with a list of layers": ("smollm3", {**_TWO, "no_rope_layers": [0, 1]}),
    "olmo 2": ("olmo2", {**_TWO, "attention_bias": True, "rms_norm_eps": 0.01}),
    "olmo 3": (
        "olmo3",
        {
            "sliding_window": WINDOW,
            "rope_parameters": {
                "full_attention": _YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "exaone 4": ("exaone4", {"sliding_window": WINDOW, "rope_parameters": LLAMA3}),
    "exaone 4 without a window": (
        "exaone4",
        {**_TWO, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "starcoder 2": ("starcoder2", {**_TWO, "sliding_window": WINDOW, "norm_epsilon": 0.01}),
    "stablelm": (
        "stablelm",
        {**_TWO, "hidden_size": 64, "use_qkv_bias": True, "partial_rotary_factor": 0.5},
    ),
    "stablelm with parallel blocks and norms of heads": (
        "stablelm",
        {
            **_TWO,
            "hidden_size": 64,
            "use_parallel_residual": True,
            "tie_word_embeddings": True,
            "qk_layernorm": True,
        },
    ),
    "cohere": (
        "cohere",
        {
            **_TWO,
            "hidden_size": 64,
            "logit_scale": 0.5,
            "layer_norm_eps": 0.01,
            "use_qk_norm": True,
        },
    ),
    "cohere 2": (
        "cohere2",
        {"hidden_size": 64, "sliding_window": WINDOW, "attention_bias": True, "logit_scale": 2.0},
    ),
    "gpt neox": ("gpt_neox", {**_TWO, "hidden_size": 64, "num_key_value_heads": 4}),
    "gpt neox one block after the other": (
        "gpt_neox",
        {
            **_TWO,
            "hidden_size": 64,
            "num_key_value_heads": 4,
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 1.0},
        },
    ),
    "phi": ("phi", {**_TWO, "hidden_size": 64}),
    "phi with norms of queries and keys": (
        "phi",
        {**_TWO, "hidden_size": 64, "qk_layernorm": True, "partial_rotary_factor": 0.25},
    ),
    "gpt 2": ("gpt2", _GPT2),
    "gpt 2 with unscaled attention": (
        "gpt2",
        {
            **_GPT2,
            "scale_attn_weights": False,
            "scale_attn_by_inverse_layer_idx": True,
            "n_inner": 80,
            "activation_function": "relu",
        },
    ),
    "helium": ("helium", {**_TWO, "hidden_size": 64, "attention_bias": True, "mlp_bias": True}),
    "starcoder 2 without biases": (
        "starcoder2",
        {**_TWO, "use_bias": False, "hidden_act": "gelu", "tie_word_embeddings": False},
    ),
    "lfm2": (
        "lfm2",
        {
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "conv_L_cache": 4,
            "conv_bias": True,
            "block_multiple_of": 16,
            "block_ffn_dim_multiplier": 1.3,
        },
    ),
    "qwen 3.5": (
        "qwen3_5_text",
        _DELTA_NETS,
    ),
    "gemma 4 whose layers share caches": (
        "gemma4_text",
        {
            **_GEMMA_4,
            "num_hidden_layers": 5,
            "layer_types": [
                "sliding_attention",
                *(["sliding_attention", "full_attention"] * 2),
            ],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma 4 whose keys are values": (
        "gemma4_text",
        {
            **_GEMMA_4,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "attention_bias": True,
            "use_bidirectional_attention": "vision",
        },
    ),
    "gemma 4 unified": ("gemma4_unified_text", {**_GEMMA_4, "num_kv_shared_layers": 1}),
    "gemma 4 with experts": (
        "gemma4_text",
        {
            **_GEMMA_4,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "qwen 3 next": (
        "qwen3_next",
        {
            **_DELTA_NETS,
            **_OF_TWO,
            **EXPERTS,
            "shared_expert_intermediate_size": 40,
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
        },
    ),
    "qwen 3.5 with experts": (
        "qwen3_5_moe_text",
        {**_DELTA_NETS, **_OF_TWO, **EXPERTS, "shared_expert_intermediate_size": 40},
    ),
    "granite with a shared expert": (
        "granitemoeshared",
        {
            **_TWO,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 40,
            "residual_multiplier": 0.4,
        },
    ),
    "bamba": (
        "bamba",
        {**_TWO, **_STATE_SPACES, "attn_layer_indices": [1], "mlp_bias": True},
    ),
    "granite 4": (
        "granitemoehybrid",
        {
            **_GRANITE_4,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_hidden_layers": 3,
            "num_local_experts": 0,
            "mamba_n_groups": 2,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
        },
    ),
    "granite 4 with experts": (
        "granitemoehybrid",
        {
            **_GRANITE_4,
            **_TWO,
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "position_embedding_type": "rope",
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
}
# Of these there are no graphs.
WITHOUT_GRAPHS = (
    *("lfm2", "qwen 3.5", "gemma 4 whose layers share caches", "gemma 4 whose keys are values"),
    *("gemma 4 with experts", "gemma 4 unified", "qwen 3 next", "qwen 3.5 with experts"),
    *("granite 4", "granite 4 with experts", "bamba"),
)


# The cache contract holds every feature on ONNX Runtime beside eager, which runs all of these.
EXPORTED = ("qwen 2",)
# An operation of each kind; native runs all types, and equals eager in its own tests.
EAGER = (
    *("gemma 3", "qwen 2 with experts", "gpt oss", "cohere", "gpt 2", "lfm2", "qwen 3.5"),
    "gemma 4 whose layers share caches",
)
NOT_QUICK = {
    "eager": {model: pytest.mark.slow for model in MODELS if model not in EAGER},
    "onnx": {model: pytest.mark.soak for model in MODELS if model not in EXPORTED}
    | dict.fromkeys(("granite", "olmo 3", "starcoder 2"), pytest.mark.slow),
}
PAIRS = [
    pytest.param(
        (model, runtime),
        id=f"{model} {runtime}",
        marks=NOT_QUICK.get(runtime, {}).get(model, ()),
    )
    for model in MODELS
    for runtime in ("eager", "onnx", "native")
    if runtime != "onnx" or model not in WITHOUT_GRAPHS
]


_LESS_ONE = (
    *("gemma", "gemma2", "gemma3_text"),
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
)
_WHOLE = (
    *("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight"),
    *("layernorm_1.weight", "layernorm_2.weight", "router.scale", "per_expert_scale"),
)


def oracle_and_checkpoint(model, folder):
    """Return transformers' model with random weights, and what is read of what it writes."""
    kind, settings = MODELS[model]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        kind, **{**SIZES, **settings}, attn_implementation="eager"
    )
    oracle = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            # Gemma and Qwen 3.5 keep their norms' weights less one.
            less_one = kind in _LESS_ONE and "linear_attn" not in name
            is_whole = name.endswith(_WHOLE) and not less_one
            parameter.normal_(mean=float(is_whole), std=0.15)
        for name, buffer in oracle.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.normal_(mean=1.0, std=0.15)
    oracle.save_pretrained(folder / "checkpoint")
    (folder / "checkpoint" / "tokenizer.json").write_text("{}")
    about = json.loads((folder / "checkpoint" / "config.json").read_text("utf-8"))
    # Some configurations have no end token, which a checkpoint needs.
    about["eos_token_id"] = about.get("eos_token_id") or 2
    (folder / "checkpoint" / "config.json").write_text(json.dumps(about), "utf-8")
    return oracle, open_checkpoint(folder / "checkpoint")


@pytest.fixture(scope="module", params=PAIRS)
def pair(request, tmp_path_factory):
    """The oracle, and a runtime with its weights."""
    model, runtime = request.param
    folder = tmp_path_factory.mktemp("model")
    oracle, checkpoint = oracle_and_checkpoint(model, folder)
    if runtime == "native":
        return oracle, natively(checkpoint, "none")
    programs = TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    if runtime == "eager":
        return oracle, EagerDecoderOnly(programs)
    write(programs, folder / "bundle")
    return oracle, open_folder(folder / "bundle")


def natively(checkpoint, quantize):
    return NativeTarget().open_checkpoint(checkpoint, BundlePrecision(quantize=quantize), 1)


@torch.no_grad()
def expected(oracle, tokens):
    # transformers' Gemma 3 reads this soft cap and does not use it unless it is told here.
    cap = getattr(oracle.config, "attn_logit_softcapping", None)
    told = {"softcap": cap} if oracle.config.model_type == "gemma3_text" and cap else {}
    # transformers' longrope depends on a sequence's length: all are as long as the longest here.
    padded = torch.from_numpy(np.pad(tokens, (0, LENGTH - len(tokens))))
    return oracle(padded[None], **told).logits[0, : len(tokens)].numpy()


@pytest.mark.parametrize("chunk", [1, 3, WINDOW, WINDOW + 5, LENGTH])
def test_logits_of_every_position_whatever_the_chunk(pair, chunk):
    oracle, runtime = pair
    tokens = np.random.default_rng(1).integers(0, VOCAB, LENGTH)
    cache, logits = runtime.new_cache(1, LENGTH), []
    for start in range(0, LENGTH, chunk):
        piece = tokens[start : start + chunk]
        step, cache = runtime.decode([piece], cache, positions=range(len(piece)))
        logits.append(step[0].copy())
    whole = expected(oracle, tokens)
    assert np.abs(whole).max() > 0.5, "logits near zero would agree by themselves"
    np.testing.assert_allclose(np.concatenate(logits), whole, atol=1e-4)


def test_ragged_rows_equal_each_prompt_alone(pair):
    oracle, runtime = pair
    generator = np.random.default_rng(2)
    counts, steps = (4, 1, 33, 17), 6
    texts = [generator.integers(0, VOCAB, count + steps) for count in counts]
    whole = [expected(oracle, text) for text in texts]
    cache = runtime.new_cache(len(texts), LENGTH)
    new = [text[:count] for text, count in zip(texts, counts, strict=True)]
    for step in range(steps):
        logits, cache = runtime.decode(new, cache)
        for row, logits_v, count in zip(whole, logits, counts, strict=True):
            np.testing.assert_allclose(logits_v[-1], row[count + step - 1], atol=1e-4)
        new = [
            text[count + step : count + step + 1] for text, count in zip(texts, counts, strict=True)
        ]


@pytest.mark.parametrize("model", MODELS)
def test_int8_of_kvcasts_own_kernels_follows_transformers(model, tmp_path):
    oracle, checkpoint = oracle_and_checkpoint(model, tmp_path)
    runtime = natively(checkpoint, "int8")
    tokens = np.random.default_rng(1).integers(0, VOCAB, 4 * WINDOW)
    logits, cache = runtime.decode([tokens[:-1]], runtime.new_cache(1, LENGTH))
    step, _ = runtime.decode([tokens[-1:]], cache)
    actual = np.stack([logits[0][-1], step[0][-1]])
    whole = expected(oracle, tokens)[-2:]
    assert np.corrcoef(actual.ravel(), whole.ravel())[0, 1] > 0.99
