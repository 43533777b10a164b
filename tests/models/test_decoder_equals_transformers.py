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
}


# The cache contract holds every feature on ONNX Runtime beside eager, which runs all of these.
EXPORTED = ("qwen 2",)
PAIRS = [
    pytest.param(
        (model, runtime),
        id=f"{model} {runtime}",
        marks=pytest.mark.soak if runtime == "onnx" and model not in EXPORTED else [],
    )
    for model in MODELS
    for runtime in ("eager", "onnx")
]


@pytest.fixture(scope="module", params=PAIRS)
def pair(request, tmp_path_factory):
    """The oracle, and a runtime with its weights."""
    model, runtime = request.param
    kind, settings = MODELS[model]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        kind, **{**SIZES, **settings}, attn_implementation="eager"
    )
    oracle = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            # Gemma keeps its norms' weights less one.
            is_whole = "norm" in name and kind != "gemma3_text"
            parameter.normal_(mean=float(is_whole), std=0.15)
    folder = tmp_path_factory.mktemp("model")
    oracle.save_pretrained(folder / "checkpoint")
    (folder / "checkpoint" / "tokenizer.json").write_text("{}")
    about = json.loads((folder / "checkpoint" / "config.json").read_text("utf-8"))
    # Some configurations have no end token, which a checkpoint needs.
    about["eos_token_id"] = about.get("eos_token_id") or 2
    (folder / "checkpoint" / "config.json").write_text(json.dumps(about), "utf-8")
    checkpoint = open_checkpoint(folder / "checkpoint")
    programs = TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    if runtime == "eager":
        return oracle, EagerDecoderOnly(programs)
    write(programs, folder / "bundle")
    return oracle, open_folder(folder / "bundle")


@torch.no_grad()
def expected(oracle, tokens):
    # transformers' Gemma 3 reads this soft cap and does not use it unless it is told here.
    cap = getattr(oracle.config, "attn_logit_softcapping", None)
    told = {} if cap is None else {"softcap": cap}
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
    prompts = [generator.integers(0, VOCAB, count) for count in (4, 1, 33, 17)]
    cache = runtime.new_cache(len(prompts), LENGTH)
    logits, cache = runtime.decode(prompts, cache)
    for _ in range(6):
        for prompt, row in zip(prompts, logits, strict=True):
            np.testing.assert_allclose(row[-1], expected(oracle, prompt)[-1], atol=1e-4)
        new = generator.integers(0, VOCAB, len(prompts))
        logits, cache = runtime.decode([token[None] for token in new], cache)
        prompts = [np.append(old, token) for old, token in zip(prompts, new, strict=True)]
