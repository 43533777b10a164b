"""Model types whose layers differ from Llama's, exported: a bundle computes what native does."""

from typing import Any

import numpy as np
import pytest

from kit.decoder_cases import LOCAL_EXPERTS, LONGROPE, MULTIPLIERS, TRAINED, TWO, WINDOW
from kit.decoder_cases import SIZES as CASE_SIZES
from kit.marks import slow, soak
from kit.models import checkpoint_of, open_folder, random_programs, write
from kit.rounding import assert_logits_equal
from kvcast.checkpoints.decoder.huggingface import decoder_dimensions
from kvcast.families.decoder import DecoderDimensions
from kvcast.runtimes.native.target import NativeTarget
from kvcast.spec.runtimes import BundlePrecision

STEPS = 6
SIZES = {**CASE_SIZES, **TWO, "vocab_size": 61, "hidden_size": 64, "intermediate_size": 48}
WINDOWS = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
TYPES: dict[str, dict[str, Any]] = {
    "gemma2": {**WINDOWS, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 5.0},
    "phi3": {**LONGROPE, **TRAINED},
    "granite": MULTIPLIERS,
    "smollm3": {"no_rope_layers": [0, 1]},
    "olmo3": WINDOWS,
    "exaone4": WINDOWS,
    "cohere": {"use_qk_norm": True, "logit_scale": 1.0},
    "cohere2": {**WINDOWS, "logit_scale": 1.0},
    "starcoder2": {"sliding_window": WINDOW},
    "stablelm": {"use_parallel_residual": True, "qk_layernorm": True},
    "glm4": {},
    "gpt_neox": {"num_key_value_heads": 4},
    "phi": {"qk_layernorm": True},
    "gpt2": {"num_key_value_heads": 4, "scale_attn_by_inverse_layer_idx": True},
    "qwen3_moe": EXPERTS,
    "dots1": {
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
    },
    "gpt_oss": {**LOCAL_EXPERTS, "sliding_window": WINDOW, "swiglu_limit": 0.75},
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_bias": True, "block_multiple_of": 16},
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 12,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
}
PAIRS = [("onnx", "lfm2"), *(slow("onnx", kind) for kind in TYPES if kind != "lfm2")]
# Lowering takes long: windows on one runtime, frequencies that depend on the length on the other.
PAIRS += [slow("executorch", "cohere2"), slow("aoti", "phi3")]
PAIRS += [soak("executorch", kind) for kind in ("phi3", "granite", "gpt_neox", "lfm2")]
PAIRS += [soak("aoti", kind) for kind in ("gemma2", "cohere2", "granite", "dots1")]


def dimensions_of(kind: str) -> DecoderDimensions:
    return decoder_dimensions({"model_type": kind, **SIZES, **TYPES[kind]}, kind)


def natively(programs: Any) -> Any:
    precision = BundlePrecision(quantize="none")
    return NativeTarget().open_checkpoint(checkpoint_of(programs), precision, 1)


@pytest.mark.parametrize(("runtime", "kind"), PAIRS)
def test_a_bundle_writes_natives_tokens(runtime: str, kind: str, tmp_path: Any) -> None:
    """Of prompts that are longer than windows, in chunks, of rows that do not go on together."""
    programs = random_programs(dimensions_of(kind))
    write(programs, tmp_path / "bundle", runtime=runtime)
    written = []
    for model in (open_folder(tmp_path / "bundle"), natively(programs)):
        cache = model.new_cache(2, 128)
        random = np.random.default_rng(0)
        _, cache = model.decode([random.integers(0, 61, 23)], cache, rows=[1])
        logits, cache = model.decode([random.integers(0, 61, size) for size in (37, 5)], cache)
        each = [logits[:, -1].copy()]
        for step in range(STEPS):
            rows = [0, 1] if step % 2 else [0]
            new = [each[-1][min(row, len(each[-1]) - 1)].argmax(keepdims=True) for row in rows]
            logits, cache = model.decode(new, cache, rows=rows)
            each.append(logits[:, -1].copy())
        cache = model.reset(cache, [1])
        logits, cache = model.decode([random.integers(0, 61, 9)], cache, rows=[1])
        each.append(logits[:, -1].copy())
        written.append(np.concatenate(each))
    assert_logits_equal(*written, programs.dimensions)
    np.testing.assert_array_equal(*(logits.argmax(-1) for logits in written))


@pytest.mark.slow
def test_quantised_experts_are_chosen_and_weighed_as_native_does(tmp_path: Any) -> None:
    programs = random_programs(dimensions_of("dots1"))
    tokens, found = np.random.default_rng(0).integers(0, 61, 40), []
    for runtime in ("aoti", "native"):
        write(programs, tmp_path / runtime, "int4", runtime=runtime)
        model = open_folder(tmp_path / runtime)
        found.append(model.decode([tokens], model.new_cache(1, 40), positions=range(40))[0][0])
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)
