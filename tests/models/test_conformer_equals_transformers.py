"""What models with FastConformer encoders compute equals transformers', read from what it saves."""

from itertools import product

import numpy as np
import pytest
import torch

from kit.models import in_chunks
from kit.random_conformers import (
    BLANK,
    KINDS,
    VOCAB,
    padded,
    ragged_features,
    random_conformer,
    save_conformer,
)
from kit.rounding import FAULTS, assert_equal_but_for_rounding, plant
from kvcast.checkpoints.source import open_checkpoint, read_dimensions
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import eager_runtime
from kvcast.runtimes.native.target import NativeTarget
from kvcast.spec.runtimes import BundlePrecision
from kvcast.speech.conformer import TransducerRequest
from kvcast.speech.recognition import LogMelFeatures

FRAMES = (50, 17, 64, 1)
CHUNKS = (5, 1, 1, 3)
TRANSDUCERS = [kind for kind in KINDS if kind.startswith("parakeet")]
ATTENDING = [kind for kind in KINDS if kind not in TRANSDUCERS]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def theirs(kind):
    return random_conformer(kind)


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory):
    return save_conformer(theirs, tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def checkpoint(folder):
    return open_checkpoint(folder)


def opened(checkpoint, runtime, quantize="none"):
    if runtime == "eager":
        return eager_runtime(TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors))
    return NativeTarget().open_checkpoint(checkpoint, BundlePrecision(quantize=quantize), 1)


def heard(runtime, dimensions, features, capacity):
    """Return a cache whose row i reads input i; each is encoded alone, as an engine does."""
    cache = runtime.new_cache(len(features), capacity, inputs=len(features))
    for slot, each in enumerate(features):
        positions = np.array([dimensions.encoder.embedding_count(len(each))], np.int32)
        cache = runtime.encode(cache, [slot], each[None], positions)
    return runtime.reset(cache, range(len(features)), range(len(features)))


def test_a_checkpoint_has_the_shapes_of_its_dimensions(folder, checkpoint):
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    assert shapes == checkpoint.family.tensor_shapes(checkpoint.dimensions)
    found = vars(checkpoint.dimensions)
    of_weights = {name: found[name] for name in ("before",) if name in found}
    assert {**vars(read_dimensions(folder)), **of_weights} == found
    again = type(checkpoint.dimensions).from_json(found | {"encoder": vars(found["encoder"])})
    assert again == checkpoint.dimensions


@pytest.mark.parametrize("runtime", ["native", "eager"])
@pytest.mark.parametrize("kind", ATTENDING, indirect=True)
def test_logits_of_ragged_sounds_in_chunks_and_steps(theirs, checkpoint, runtime):
    features = ragged_features(FRAMES)
    targets = np.random.default_rng(1).integers(0, VOCAB, (len(FRAMES), sum(CHUNKS)))
    with torch.no_grad():
        output = theirs(**padded(features), decoder_input_ids=torch.from_numpy(targets))
    runtime = opened(checkpoint, runtime)
    cache = heard(runtime, checkpoint.dimensions, features, targets.shape[1])
    actual = in_chunks(runtime, cache, targets, CHUNKS)
    assert_equal_but_for_rounding(actual, output.logits.numpy(), checkpoint.tensors)


@pytest.mark.parametrize("runtime", ["native", "eager"])
@pytest.mark.parametrize("kind", TRANSDUCERS, indirect=True)
def test_logits_of_steps_at_any_positions(theirs, checkpoint, runtime):
    features, dimensions = ragged_features(FRAMES), checkpoint.dimensions
    generator = np.random.default_rng(1)
    tokens = generator.integers(0, VOCAB, (len(FRAMES), 7))
    tokens[:, 0] = BLANK
    lengths = np.array([dimensions.encoder.embedding_count(frames) for frames in FRAMES])
    at = generator.integers(0, lengths[:, None], tokens.shape)
    rows = np.arange(len(FRAMES))
    with torch.no_grad():
        if dimensions.prediction_layers:
            given = {**padded(features), "decoder_input_ids": torch.from_numpy(tokens)}
            every_rptv = theirs(**given).logits.numpy()
            expected = every_rptv[rows[:, None], at, np.arange(7)]
        else:
            expected = theirs(**padded(features)).logits.numpy()[rows[:, None], at]
    runtime = opened(checkpoint, runtime)
    cache = heard(runtime, dimensions, features, 20)
    steps = []
    for step in range(7):
        codes = tokens[:, step] + dimensions.tokens * at[:, step]
        logits, cache = runtime.decode(codes[:, None], cache)
        steps.append(logits[:, 0].copy())
        if step == 3:  # a blank leaves the states as they are
            blanks = BLANK + dimensions.tokens * at[:, step + 1]
            _, cache = runtime.decode(blanks[:, None], cache)
    assert_equal_but_for_rounding(np.stack(steps, axis=1), expected, checkpoint.tensors)
    # A row that begins anew knows nothing of what it held.
    cache = runtime.reset(cache, [1], [1])
    logits, cache = runtime.decode([[BLANK + dimensions.tokens * at[1, 0]]], cache, [1])
    assert_equal_but_for_rounding(logits[0, 0], expected[1, 0], checkpoint.tensors)


# Logits of a transducer hardly depend on an epsilon.
@pytest.mark.parametrize(
    ("kind", "fault"),
    [*product(ATTENDING, FAULTS), *product(TRANSDUCERS, ["scale"])],
    indirect=["kind"],
)
def test_a_wrong_constant_exceeds_the_tolerance(fault, monkeypatch, kind, theirs, checkpoint):
    plant(fault, monkeypatch)
    attended = test_logits_of_ragged_sounds_in_chunks_and_steps
    stepped = test_logits_of_steps_at_any_positions
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        (attended if kind in ATTENDING else stepped)(theirs, checkpoint, "eager")


def written(runtime, dimensions, features):
    """Return emissions of each input, all decoded side by side."""
    requests = [
        TransducerRequest(
            LogMelFeatures(each, dimensions.encoder.embedding_count(len(each))), dimensions
        )
        for each in features
    ]
    cache = heard(runtime, dimensions, features, max(r.capacity for r in requests))
    feeds = {row: request.prompt.tokens for row, request in enumerate(requests)}
    while feeds:
        rows = sorted(feeds)
        logits, cache = runtime.decode([feeds[row] for row in rows], cache, rows)
        for row, logits_pv in zip(rows, logits.copy(), strict=True):
            going = requests[row].advance(logits_pv)
            feeds[row] = np.array(going.tokens)
            if not going.rows:
                del feeds[row]
    return [request.emissions for request in requests]


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
@pytest.mark.parametrize("kind", TRANSDUCERS, indirect=True)
def test_tokens_and_their_places_are_those_that_transformers_generates(theirs, checkpoint):
    dimensions, features = checkpoint.dimensions, ragged_features(FRAMES[:3], seed=5)
    result = written(opened(checkpoint, "native"), dimensions, features)
    for each, emissions in zip(features, result, strict=True):
        generated = theirs.generate(**padded([each]), decoder_start_token_id=BLANK)
        if dimensions.prediction_layers:
            [sequence], [taken] = generated.sequences.tolist(), generated.durations.tolist()
            places = np.cumsum([0, *taken])[1:-1].tolist()
            pairs = zip(sequence[1:], places, strict=True)
            expected = [(token, place) for token, place in pairs if token != BLANK]
        else:
            [sequence] = generated.tolist()
            expected = [
                (token, place)
                for place, token in enumerate(sequence)
                if token != BLANK and (place == 0 or sequence[place - 1] != token)
            ]
        assert [(each.token, each.first) for each in emissions] == expected
    assert any(result)
