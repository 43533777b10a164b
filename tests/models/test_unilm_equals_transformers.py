"""UniLM generators read from files against transformers' RoFormer and BERT, masked as a UniLM.

The oracle sees source and target at once. Eager and ONNX Runtime see the source and then one token
after the other.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kit.marks import soak
from kit.models import open_folder, whole_logits, write
from kit.random_unilms import MODELS, random_unilm, save_unilm
from kit.rounding import FAULTS, assert_equal_but_for_rounding, plant
from kvcast.checkpoints.source import open_checkpoint
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerPrefix

VOCAB, WIDTH = 160, 48
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 80,
    "num_attention_heads": 3,
    "max_position_embeddings": 96,
    "layer_norm_eps": 1e-5,
}
LENGTHS = (5, 1, 23, 11)
POOLER = {
    f"pooler.{name}": np.random.default_rng(0).normal(0, 0.2, shape).astype(np.float32)
    for name, shape in (("weight", (WIDTH, WIDTH)), ("bias", (WIDTH,)))
}


@torch.no_grad()
def oracle_run(model, source, target):
    """Logits [s + t, vocab] and hidden states [s + t, width] in transformers, all at once."""
    tokens = torch.from_numpy(np.concatenate([source, target]))[None]
    count = tokens.shape[1]
    mask = torch.full((1, 1, count, count), torch.finfo(torch.float32).min)
    for query in range(count):
        mask[..., query, : max(query + 1, len(source))] = 0
    segments = (torch.arange(count) >= len(source)).long()[None]
    result = model(tokens, attention_mask=mask, token_type_ids=segments, output_hidden_states=True)
    logits = result.prediction_logits if "prediction_logits" in result else result.logits
    return logits[0].numpy(), result.hidden_states[-1][0].numpy()


@pytest.fixture(scope="module", params=MODELS)
def models(request, tmp_path_factory):
    """The oracle, and the programs with its weights and a pooler."""
    oracle = random_unilm(request.param, **SIZES)
    read = open_checkpoint(save_unilm(oracle, tmp_path_factory.mktemp("unilm") / "model"))
    dimensions, tensors = replace(read.dimensions, pooled=True), {**read.tensors, **POOLER}
    return oracle, TorchModel.from_tensors(dimensions, tensors)


@pytest.fixture(scope="module")
def exported(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unilm") / "bundle"
    write(models[1], folder)
    return open_folder(folder)


# test_cache_checks.py holds their graphs beside eager.
@pytest.fixture(params=["eager", soak("onnx")])
def pair(request, models):
    oracle, programs = models
    eager = request.param == "eager"
    runtime = EagerPrefix(programs) if eager else request.getfixturevalue("exported")
    return oracle, runtime, programs.weights


def random_rows(lengths, seed):
    generator = np.random.default_rng(seed)
    return [generator.integers(0, VOCAB, length) for length in lengths]


@pytest.mark.parametrize(("source_length", "target_length"), [(9, 0), (1, 12), (17, 8), (60, 30)])
def test_source_and_target_at_once(models, source_length, target_length):
    oracle, programs = models
    source, target = random_rows((source_length, target_length), seed=1)
    expected, _ = oracle_run(oracle, source, target)
    actual = whole_logits(programs, source, target)
    assert_equal_but_for_rounding(actual, expected, programs.weights)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_constant_exceeds_the_tolerance(fault, monkeypatch, models):
    plant(fault, monkeypatch)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_source_and_target_at_once(models, 17, 8)


def test_every_position_of_a_source(pair):
    oracle, runtime, weights = pair
    (source,) = random_rows([23], seed=2)
    logits, _ = runtime.decode([source], runtime.new_cache(1, 23), positions=range(23))
    expected, _ = oracle_run(oracle, source, source[:0])
    assert_equal_but_for_rounding(logits[0], expected, weights)


def test_targets_of_sources_of_different_lengths_token_by_token(pair):
    oracle, runtime, weights = pair
    sources = random_rows(LENGTHS, seed=3)
    targets = np.random.default_rng(4).integers(0, VOCAB, (len(sources), 12))
    cache = runtime.new_cache(len(sources), max(LENGTHS) + 12)
    logits, cache = runtime.decode(sources, cache)
    steps = [logits[:, 0].copy()]
    for tokens in targets.T:
        logits, cache = runtime.decode([token[None] for token in tokens], cache)
        steps.append(logits[:, 0].copy())
    for source, target, actual in zip(sources, targets, np.stack(steps, axis=1), strict=True):
        expected, _ = oracle_run(oracle, source, target)
        assert_equal_but_for_rounding(actual, expected[len(source) - 1 :], weights)


def test_embeddings_are_the_first_hidden_state_through_the_pooler(pair):
    oracle, runtime, weights = pair
    sources = random_rows(LENGTHS, seed=5)
    first = np.stack([oracle_run(oracle, source, source[:0])[1][0] for source in sources])
    expected = first @ POOLER["pooler.weight"].T + POOLER["pooler.bias"]
    embedded = runtime.embed(sources)
    assert embedded.dtype == np.float32
    assert_equal_but_for_rounding(embedded, expected, weights)
