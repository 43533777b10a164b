"""Moonshine's encoded sounds and logits equal transformers', read from what it saves."""

import numpy as np
import pytest
import torch

from kit.models import encoded, in_chunks
from kit.random_moonshines import KINDS, heard, random_moonshine, save_moonshine, sounds
from kit.rounding import FAULTS, assert_equal_but_for_rounding, plant
from kvcast.checkpoints.source import open_checkpoint, read_dimensions
from kvcast.families.moonshine import MOONSHINE, source_of
from kvcast.families.moonshine_encoder import write_streamed_source
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder
from kvcast.runtimes.native.target import NativeTarget
from kvcast.spec.runtimes import BundlePrecision

# Shorter and longer than windows, with a part of a frame, and as short as can be.
SAMPLES = (6011, 895, 12000, 2639)
CHUNKS = (7, 1, 1, 4, 20)


@pytest.fixture(scope="module", params=KINDS)
def theirs(request):
    return random_moonshine(request.param)


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory):
    return save_moonshine(theirs, tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def checkpoint(folder):
    return open_checkpoint(folder)


@pytest.fixture(scope="module")
def native(checkpoint):
    return NativeTarget().open_checkpoint(checkpoint, BundlePrecision(quantize="none"), 2)


def eager(checkpoint):
    return EagerEncoderDecoder(TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors))


def expected(theirs, sound, target_s):
    """Return transformers' logits [s, vocab], and cross keys [t, heads, d] of its last layer."""
    with torch.no_grad():
        output = theirs(
            **heard(theirs, sound), decoder_input_ids=torch.tensor(target_s)[None], use_cache=True
        )
    keys = output.past_key_values.cross_attention_cache.layers[-1].keys
    return output.logits[0].numpy(), keys[0].numpy()


def test_the_tensors_and_the_configuration_alone_give_the_same_sizes(theirs, folder, checkpoint):
    assert checkpoint.family.name == "moonshine"
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    assert shapes == MOONSHINE.tensor_shapes(checkpoint.dimensions)
    configured = {**vars(read_dimensions(folder)), "tied": theirs.config.tie_word_embeddings}
    assert configured == vars(checkpoint.dimensions)


@pytest.mark.parametrize("opened", ["native", "eager"])
def test_ragged_sounds_in_chunks_and_steps(theirs, checkpoint, opened, request):
    runtime = request.getfixturevalue("native") if opened == "native" else eager(checkpoint)
    dimensions, ragged = checkpoint.dimensions, sounds(theirs, SAMPLES)
    generator = np.random.default_rng(0)
    targets = generator.integers(6, 96, (len(ragged), sum(CHUNKS)))
    cache = encoded(runtime, source_of(dimensions, ragged), len(targets), targets.shape[1])
    actual = in_chunks(runtime, cache, targets, CHUNKS)
    for row, (sound, target) in enumerate(zip(ragged, targets, strict=True)):
        logits, keys = expected(theirs, sound, target)
        count = dimensions.positions_of(len(sound))
        place = cache.memory.slots.places[row]
        actual_keys = np.asarray(cache.memory.slots.parts[2 * dimensions.decoder_layers - 2][place])
        assert_equal_but_for_rounding(actual_keys[:, :count], keys, checkpoint.tensors)
        assert_equal_but_for_rounding(actual[row], logits, checkpoint.tensors)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_constant_exceeds_the_tolerance(fault, monkeypatch, theirs, checkpoint, request):
    plant(fault, monkeypatch)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_ragged_sounds_in_chunks_and_steps(theirs, checkpoint, "eager", request)


@pytest.mark.parametrize("theirs", ["streaming", "streaming-biased"], indirect=True)
def test_a_sound_encoded_as_it_comes_is_the_whole_sound_encoded(theirs, checkpoint, native):
    dimensions, generator = checkpoint.dimensions, np.random.default_rng(3)
    [sound] = sounds(theirs, (31 * dimensions.position_samples,))
    whole = encoded(native, source_of(dimensions, [sound])).memory.slots.parts
    samples = sound.reshape(-1, dimensions.position_samples)
    least = dimensions.sees_ahead + 1
    random_cuts = np.sort(generator.integers(least, 31, (3, 2)))
    for cuts in ([], [least, least + 1, 30], [least + 5], *random_cuts):
        cache = native.new_cache(1, 8, inputs=1)
        stream = native.stream(cache, 0, write_streamed_source(dimensions), 40)
        for piece in filter(len, np.split(samples, cuts)):
            stream.listen(piece)
            assert stream.held == stream.done
            stream.finish()  # another time than at the end: what follows is not touched
            assert stream.held == stream.done + dimensions.sees_ahead
        assert stream.held == 31
        for actual, expected in zip(cache.memory.slots.parts, whole, strict=True):
            if actual.ndim > 1:
                assert_equal_but_for_rounding(actual[:, :, :31], expected, checkpoint.tensors)
            else:
                assert actual == expected == [31]
