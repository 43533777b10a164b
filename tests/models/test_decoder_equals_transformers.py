"""Decoder-only models against transformers' on random weights, in eager and on ONNX Runtime.

Prompts are several times as long as the windows; the oracle sees all of a prompt at once.
"""

import numpy as np
import pytest
import torch

from kit.decoder_cases import LENGTH, VOCAB, WINDOW
from kit.models import open_folder, write
from kit.random_decoders import MODELS, oracle_and_checkpoint
from kit.seeing_cases import SIGHTS
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerDecoderOnly
from kvcast.runtimes.native.target import NativeTarget
from kvcast.spec.runtimes import BundlePrecision

# Of these there are no graphs.
WITHOUT_GRAPHS = (
    *("lfm2", "qwen 3.5", "gemma 4 whose layers share caches", "gemma 4 whose keys are values"),
    *("gemma 4 with experts", "gemma 4 unified", "qwen 3 next", "qwen 3.5 with experts"),
    *("granite 4", "granite 4 with experts", "bamba", "lfm 2 vl"),
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
    *("seed_oss", "arcee", "internlm3", "ernie4_5", "olmoe", *SIGHTS),
)
ON_NATIVE = {model: pytest.mark.slow for model, (kind, _) in MODELS.items() if kind in ALIKE}
NOT_QUICK = {
    "native": ON_NATIVE,
    "eager": {model: pytest.mark.slow for model in MODELS if model not in EAGER}
    | dict.fromkeys(ON_NATIVE, pytest.mark.soak),
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


@pytest.mark.parametrize(
    "model", [pytest.param(model, marks=ON_NATIVE.get(model, ())) for model in MODELS]
)
def test_int8_of_kvcasts_own_kernels_follows_transformers(model, tmp_path):
    oracle, checkpoint = oracle_and_checkpoint(model, tmp_path)
    runtime = natively(checkpoint, "int8")
    tokens = np.random.default_rng(1).integers(0, VOCAB, 4 * WINDOW)
    logits, cache = runtime.decode([tokens[:-1]], runtime.new_cache(1, LENGTH))
    step, _ = runtime.decode([tokens[-1:]], cache)
    actual = np.stack([logits[0][-1], step[0][-1]])
    whole = expected(oracle, tokens)[-2:]
    assert np.corrcoef(actual.ravel(), whole.ravel())[0, 1] > 0.99
