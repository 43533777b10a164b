"""Decoder-only models against transformers' on random weights, in eager and on ONNX Runtime.

Prompts are several times as long as the windows; the oracle sees all of a prompt at once.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kit.decoder_cases import LENGTH, VOCAB, WINDOW
from kit.models import open_folder, write
from kit.random_decoders import MODELS, oracle_and_checkpoint
from kit.rounding import assert_equal_but_for_rounding
from kit.seeing_cases import SIGHTS
from kvcast.checkpoints.decoder.kimi import KIMI_TYPES
from kvcast.checkpoints.decoder.latents import LATENT_TYPES
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerDecoderOnly
from kvcast.runtimes.native.target import NativeTarget
from kvcast.spec.runtimes import BundlePrecision

# Of these there are no graphs.
WITHOUT_GRAPHS = (
    *("lfm2", "qwen 3.5", "gemma 4 whose layers share caches", "gemma 4 whose keys are values"),
    *("gemma 4 with experts", "gemma 4 unified", "qwen 3 next", "qwen 3.5 with experts"),
    *("lfm2 with experts", "lfm2 of experts alone"),
    *(model for model, (kind, _) in MODELS.items() if kind in {**LATENT_TYPES, **KIMI_TYPES}),
    *("granite 4", "granite 4 with experts", "bamba", "lfm 2 vl", "gemma 3n"),
    "gemma 3n of other streams",
    *(model for model, (kind, _) in MODELS.items() if kind in ("nemotron_h", "falcon_h1")),
)


# The cache contract holds every feature on ONNX Runtime beside eager, which runs all of these.
EXPORTED = ("qwen 2",)
# An operation of each kind; native runs all types, and equals eager in its own tests.
EAGER = (
    *("gemma 3", "qwen 2 with experts", "gpt oss", "cohere", "gpt 2", "lfm2", "qwen 3.5"),
    "gemma 4 whose layers share caches",
)
# Of which other types have all parts.
ALIKE = (
    *("gpt_bigcode", "gpt_neo", "gptj", "opt", "falcon", "jais2", "olmo"),
    *("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "axk1", "mistral4", "deepseek_v32"),
    "bailing_hybrid",
    *("dots1", "ernie4_5_moe", "minimax_m2", "afmoe", "lfm2_moe"),
    *("seed_oss", "arcee", "internlm3", "ernie4_5", "olmoe", "granite_swa", "nemotron_h"),
    *SIGHTS,
)
ALIKE_MODELS = [model for model, (kind, _) in MODELS.items() if kind in ALIKE]
NOT_QUICK = {
    "native": dict.fromkeys(ALIKE_MODELS, pytest.mark.slow),
    "native int8": dict.fromkeys(ALIKE_MODELS, pytest.mark.soak),
    "eager": {model: pytest.mark.soak for model in MODELS if model not in EAGER},
    "onnx": {model: pytest.mark.soak for model in MODELS if model not in EXPORTED}
    | dict.fromkeys(("granite", "olmo 3", "starcoder 2"), pytest.mark.slow),
}


def cases(*runtimes):
    """Return each model on each runtime, all of a model in succession."""
    return [
        pytest.param(
            model, runtime, marks=NOT_QUICK[runtime].get(model, ()), id=f"{model} {runtime}"
        )
        for model in MODELS
        for runtime in runtimes
        if runtime != "onnx" or model not in WITHOUT_GRAPHS
    ]


# Steps to more than a window past the chunk before, chunks as long as a window and longer.
CHUNKS = (WINDOW + 5, *(1,) * 10, 3, 3, WINDOW, *(1,) * 10)
on_each_runtime = pytest.mark.parametrize(
    ("original", "runtime"), cases("native", "eager", "onnx"), indirect=True, scope="module"
)


@pytest.fixture(scope="module")
def original(request, tmp_path_factory):
    """The oracle, and its checkpoint."""
    return oracle_and_checkpoint(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def runtime(original, request, tmp_path_factory):
    _, checkpoint = original
    if request.param.startswith("native"):
        precision = BundlePrecision(quantize="int8" if "int8" in request.param else "none")
        return NativeTarget().open_checkpoint(checkpoint, precision, 1)
    programs = TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    if request.param == "eager":
        return EagerDecoderOnly(programs)
    folder = tmp_path_factory.mktemp("bundles") / "bundle"
    write(programs, folder)
    return open_folder(folder)


@torch.no_grad()
def expected(oracle, *texts):
    """Return transformers' logits of each text."""
    # transformers' Gemma 3 reads this soft cap and does not use it unless it is passed.
    cap = getattr(oracle.config, "attn_logit_softcapping", None)
    options = {"softcap": cap} if oracle.config.model_type == "gemma3_text" and cap else {}
    # transformers' longrope depends on a sequence's length: all are as long as the longest here.
    padded = np.stack([np.pad(tokens, (0, LENGTH - len(tokens))) for tokens in texts])
    logits = oracle(torch.from_numpy(padded), **options).logits.numpy()
    return [row[: len(tokens)] for row, tokens in zip(logits, texts, strict=True)]


@pytest.mark.parametrize("chunks", [(LENGTH,), CHUNKS], ids=["at once", "in chunks and steps"])
@on_each_runtime
def test_logits_of_every_position_whatever_the_chunk(original, runtime, chunks):
    oracle, checkpoint = original
    tokens = np.random.default_rng(1).integers(0, VOCAB, LENGTH)
    cache, logits = runtime.new_cache(1, LENGTH), []
    for piece in np.split(tokens, np.cumsum(chunks)[:-1]):
        step, cache = runtime.decode([piece], cache, positions=range(len(piece)))
        logits.append(step[0].copy())
    [whole] = expected(oracle, tokens)
    assert_equal_but_for_rounding(np.concatenate(logits), whole, checkpoint.tensors)


@on_each_runtime
def test_ragged_rows_equal_each_prompt_alone(original, runtime):
    oracle, checkpoint = original
    generator = np.random.default_rng(2)
    counts, steps = (4, 1, 33, 17), 6
    texts = [generator.integers(0, VOCAB, count + steps) for count in counts]
    cache = runtime.new_cache(len(texts), LENGTH)
    new, rows = [text[:count] for text, count in zip(texts, counts, strict=True)], []
    for step in range(steps):
        logits, cache = runtime.decode(new, cache)
        rows.append(logits[:, -1].copy())
        new = [
            text[count + step : count + step + 1] for text, count in zip(texts, counts, strict=True)
        ]
    wholes = expected(oracle, *texts)
    for row, whole, count in zip(np.stack(rows, axis=1), wholes, counts, strict=True):
        assert_equal_but_for_rounding(row, whole[count - 1 : count - 1 + steps], checkpoint.tensors)


@pytest.mark.parametrize(
    ("original", "runtime"), cases("native int8"), indirect=True, scope="module"
)
def test_int8_of_kvcasts_own_kernels_follows_transformers(original, runtime):
    oracle, _ = original
    tokens = np.random.default_rng(1).integers(0, VOCAB, 4 * WINDOW)
    prompt, fresh = tokens[:-1], runtime.new_cache(1, LENGTH)
    logits, cache = runtime.decode([prompt], fresh, positions=range(len(prompt)))
    step, _ = runtime.decode([tokens[-1:]], cache)
    [whole] = expected(oracle, tokens)
    each = zip([*logits[0], step[0][-1]], whole, strict=True)
    # The median token: some take another expert, or read other positions.
    assert np.median([np.corrcoef(*pair)[0, 1] for pair in each]) > 0.99


@pytest.mark.parametrize("original", ["llama 2"], indirect=True)
@pytest.mark.parametrize("fault", [{"norm_eps": 1e-4}, {"attention_scale": 0.2503}], ids=str)
def test_a_wrong_constant_exceeds_the_tolerance(fault, original):
    _, checkpoint = original
    wrong = TorchModel.from_tensors(replace(checkpoint.dimensions, **fault), checkpoint.tensors)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_ragged_rows_equal_each_prompt_alone(original, EagerDecoderOnly(wrong))
