"""Each fault of a bundle is named as what it is, where it is; sound bundles have none."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from kit.dimensions import (
    CANARY,
    DSA,
    GEMMA3,
    GEMMA4,
    GPT_OSS,
    KIMI,
    LFM2,
    LLAMA,
    MARIAN,
    MISTRAL,
    MIXED,
    MIXTRAL,
    MOONSHINE,
    QWEN3_5,
    ROFORMER,
    SMALL,
    SMALL_T5,
    YOUTU,
)
from kit.marks import slow
from kit.models import bundle, open_folder, opened, random_tensors
from kvcast.bundle.manifest import read_bundle
from kvcast.families.table import family_with
from kvcast.runtimes.aoti.target import own_name
from kvcast.runtimes.memory import CompactedRing, TurningRing
from kvcast.runtimes.target import TARGETS, StoredValues
from kvcast.spec.position_encodings import Rotary
from kvcast.verification.culprits import checks
from kvcast.verification.culprits.layers import run_both
from kvcast.verification.culprits.tensors import difference
from verification.faults import BEHAVIOUR_FAULTS, FILE_FAULTS, overflowing

TOLERANCE = 1e-3
NAMED_BY_LAYERS = {
    "wrong rotary base": "keys of layer 0 turn by other angles from position 1 on",
    "window too short": "attention of layer 1 sees other positions than its window of 7",
    "wrong bias row": "attention of layer 0: its bias",
}


def stored_checks(folder, dimensions):
    """Return the checks of weights and programs."""
    manifest, family = read_bundle(folder), family_with(dimensions)
    tensors: Any = random_tensors(dimensions)
    expected = {**tensors, **family.constants(dimensions, tensors)}
    stored = TARGETS[manifest.runtime].read_stored(
        folder, manifest, family.tensor_shapes(dimensions)
    )
    return checks.weights(stored, expected), checks.programs(
        stored, family.write_programs(dimensions)
    )


def skips(check):
    return check.outcome == "skipped"


def both(candidate, layers, dimensions, steps=14):
    """Feed the probe and random tokens to a candidate and to eager."""
    family = family_with(dimensions)
    probe, generator = family.probe(dimensions), np.random.default_rng(1)
    prompt_s = probe.prompts[0]
    tokens_s = np.concatenate([prompt_s, generator.integers(0, dimensions.vocab_size, steps)])
    source = tuple(part[:1] for part in probe.source)
    reference = opened(dimensions, runtime="eager")
    return run_both(candidate, reference, layers, source, tokens_s, len(prompt_s))


def layers_check(folder, dimensions, **how):
    run = both(open_folder(folder), read_bundle(folder).cache, dimensions, **how)
    return checks.layers(run, TOLERANCE, exact=True)


@pytest.mark.parametrize("name", FILE_FAULTS)
def test_a_fault_of_a_file_is_named_and_its_sound_twin_passes(name, tmp_path):
    fault = FILE_FAULTS[name]
    sound = [check for check in stored_checks(fault.sound(), fault.dimensions) if not skips(check)]
    assert sound
    for check in sound:
        assert check.outcome == "passed", check.detail
    checked = stored_checks(fault.broken(tmp_path / "broken"), fault.dimensions)
    (found,) = [check.detail for check in checked if check.outcome == "failed"]
    for word in fault.place:
        assert word in found


@pytest.mark.parametrize("name", NAMED_BY_LAYERS)
def test_a_fault_is_seen_in_the_layers_where_files_cannot_be_read(name, tmp_path):
    fault = FILE_FAULTS[name]
    assert layers_check(fault.sound(), fault.dimensions).outcome == "passed"
    check = layers_check(fault.broken(tmp_path / "broken"), fault.dimensions)
    assert check.outcome == "failed"
    assert NAMED_BY_LAYERS[name] in check.detail


def test_what_is_wrong_with_a_tensor_is_named():
    generator = np.random.default_rng(0)
    wanted = generator.normal(0, 1, (8, 64)).astype(np.float32)

    def words(change, bits=32):
        actual = wanted.copy()
        change(actual)
        return difference("w", StoredValues(actual, bits=bits), wanted)

    assert words(lambda _: None) == ""
    assert words(lambda w: w.__setitem__([2, 5], w[[5, 2]])) == (
        "row 2 holds what row 5 should, row 5 holds what row 2 should"
    )
    assert words(lambda w: w.__setitem__(slice(None), np.roll(w, 3, axis=0))) == (
        "8 rows are shifted by 3: each holds what another should"
    )
    assert words(lambda w: w.__setitem__((1, 2), np.nan)) == (
        "1 of 512 numbers are not finite: at [1, 2]"
    )
    noise = generator.normal(0, 1, wanted.shape).astype(np.float32)
    assert words(lambda w: w.__iadd__(noise)).startswith("512 of 512 numbers differ, by up to ")
    assert words(lambda w: w.__imul__(1 + 1e-4 * noise), bits=16) == ""
    assert "differ, by up to" in words(lambda w: w.__imul__(1 + 1e-4 * noise))
    assert "output 3 has another scale" in words(lambda w: w[3].__imul__(2))
    stored = StoredValues(np.full((1, 2), np.inf, np.float32), bits=16)
    assert difference("w", stored, np.array([[7e4, 1e5]], np.float32)) == (
        "2 of 2 numbers overflow fp16, which holds 65,504: they are up to 1e+05: at [0, 0], [0, 1]"
    )
    assert difference("w", stored, wanted) == "has shape (1, 2), not (8, 64)"


def test_tensors_of_fewer_bits_in_a_package_have_their_own_names():
    names = {
        "results.program.cosines_0": "cosines_0",
        "results.program.decoder.head_float16.weight": "decoder.head.weight",
        "results.program.decoder.layers.0.attention.qkv_bfloat16.bias": (
            "decoder.layers.0.attention.qkv.bias"
        ),
        "results.program.embedding.weight.codes": "embedding.weight.codes",
    }
    assert {name: own_name(name) for name in names} == names


def test_dimensions_that_are_not_the_checkpoints_are_named():
    others = replace(MISTRAL, rotary=Rotary(base=1000.0), windows=(7, 6), architecture="other")
    check = checks.dimensions(others, MISTRAL)
    assert check.outcome == "failed"
    assert "rotary.base is 1000.0, not 10000.0" in check.detail
    assert "windows is (7, 6), not (7, 7)" in check.detail
    assert "architecture" not in check.detail
    assert checks.dimensions(MISTRAL, replace(MISTRAL, architecture="other")).outcome == "passed"


def test_what_fp16_does_not_hold_is_an_overflow():
    dimensions, tokens_s = LLAMA, np.arange(12)
    runtimes = [open_folder(overflowing(cache)) for cache in ("fp16", "fp32")]
    layers = [read_bundle(overflowing(cache)).cache for cache in ("fp16", "fp32")]
    check = checks.layers(run_both(*runtimes, layers[0], (), tokens_s, 5), TOLERANCE, exact=False)
    assert check.outcome == "failed"
    assert "values of layer 1 overflow: they are up to" in check.detail
    assert "float16 holds 65,504" in check.detail
    sound = open_folder(bundle(dimensions, runtime="native", cache="fp16"))
    fine = run_both(sound, opened(dimensions, runtime="eager"), layers[0], (), tokens_s, 5)
    assert checks.layers(fine, 0.02, exact=True).outcome == "passed"


def test_codes_are_not_compared_with_floats():
    folder = bundle(LLAMA, runtime="native", cache="int8")
    check = layers_check(folder, LLAMA, steps=2)
    assert (check.outcome, check.detail) == ("skipped", "no cache holds numbers")


def test_keys_that_are_not_written_are_named():
    fault = BEHAVIOUR_FAULTS["one layer's key missing"]
    layers = read_bundle(bundle(LLAMA, runtime="native")).cache
    run = both(fault.around(opened(LLAMA, runtime="native")), layers, LLAMA)
    check = checks.layers(run, TOLERANCE, exact=True)
    assert check.outcome == "failed"
    assert "keys of layer 1 are zeros: they were not written" in check.detail


@pytest.mark.parametrize("ring", [TurningRing(7, 7), TurningRing(7, 20), CompactedRing(7, 20)])
def test_a_ring_tells_where_its_last_positions_lie(ring):
    for reached in range(1, 60):
        kept = range(max(0, reached - ring.window), reached)
        slots = [ring.slot(position, reached) for position in kept]
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < ring.slots for slot in slots)


SOUND = [LLAMA, SMALL_T5, MISTRAL]
MORE = [
    GEMMA3,
    GEMMA4,
    GPT_OSS,
    LFM2,
    QWEN3_5,
    YOUTU,
    KIMI,
    MIXTRAL,
    ROFORMER,
    SMALL,
    MARIAN,
    MOONSHINE,
    CANARY,
]


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
@pytest.mark.parametrize(
    "dimensions",
    [*SOUND[:1], *(slow(each) for each in SOUND[1:] + MORE)],
    ids=lambda each: getattr(each, "architecture", "whisper"),
)
def test_sound_files_have_no_fault(dimensions, quantize):
    for check in stored_checks(bundle(dimensions, quantize, "native"), dimensions):
        assert check.outcome == "passed", check.detail
        assert sum(check.measured.values()) > 10  # tensors and operations that were compared


AGREEING = [
    *product(
        (replace(GEMMA3, windows=(5, None)), LFM2, QWEN3_5, ROFORMER, SMALL, SMALL_T5),
        ("native", "onnx"),
    ),
    (YOUTU, "native"),
    (DSA, "native"),
    (KIMI, "native"),
    # Which other tests compile as well.
    (replace(GEMMA3, windows=(5, None)), "aoti"),
    (MIXED, "executorch"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dimensions", "runtime"), AGREEING, ids=lambda each: getattr(each, "architecture", each)
)
def test_layers_of_sound_bundles_agree(dimensions, runtime):
    folder = bundle(dimensions, runtime=runtime)
    weights, _ = stored_checks(folder, dimensions)
    assert weights.outcome == ("skipped" if runtime == "executorch" else "passed"), weights.detail
    check = layers_check(folder, dimensions)
    assert check.outcome == "passed", check.detail
    assert check.measured["largest"] < TOLERANCE / 10
