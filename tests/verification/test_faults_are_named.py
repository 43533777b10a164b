"""Each fault is reported as what it is and where it is; its sound twin passes every check."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.dimensions import DSA, LLAMA
from kit.models import bundle, random_programs
from kvcast.models.executor import TorchModel
from kvcast.verification.report import Report
from kvcast.verification.verifying import verify
from verification.faults import (
    BEHAVIOUR_FAULTS,
    FILE_FAULTS,
    BreaksTies,
    overflowing,
    overflowing_tensors,
)
from verification.subjects import failed, subject, subject_of

Named = Mapping[str, Sequence[str]]
"""Words in the details of checks that fail, by their names."""

BEHAVIOURS: Mapping[str, Named] = {
    "cross cache not reset": {
        "second-input": ("input 2 in the row of input 1", "they are those of input 1"),
        "rows-come-and-go": (),
    },
    "cross cache of another load": {
        "teacher-forced": ("input 1", "they are those of input 0", "layer 0's cross key")
    },
    "swapped beams": {
        "beams": ("beam 0, which continues beam 1", "what follows the past of beam 0")
    },
    "one layer's key missing": {
        "layers": ("keys of layer 1 are zeros", "not written"),
        "chunks": ("one token after the other",),
    },
    "a stale prefix": {"prefix": ("a fork of a prefix", "layer 0's key at position 0")},
    "another row's prefix": {"prefix": ("a fork of a prefix", "what follows prefix 2")},
    "a state not cut back": {"truncate": ("cut back by 1 tokens", "layer 0's inputs")},
}
ALONE = {"swapped beams", "a stale prefix", "another row's prefix", "a state not cut back"}
"""What one check alone can see, the others being right."""
FILES: Mapping[str, Named] = {
    "wrong rotary base": {"layers": ("keys of layer 0 turn by other angles",)},
    "window too short": {
        "layers": ("attention of layer 1 sees other positions than its window of 7",)
    },
    "wrong bias row": {"layers": ("attention of layer 0: its bias",)},
    "a latent without norm": {
        "layers": ("latents of layer 1 differ and its keys do not", "norm of latents")
    },
    "a key part rotated twice": {"layers": ("keys of layer 0 turn by other angles",)},
    "an index of another layer": {"layers": ("attention of layer 2", "index")},
}
"""Beside the checks of files."""
QUICK: Mapping[str, Sequence[str]] = {
    "wrong rotary base": ("weights", "layers"),
    "swapped beams": ("beams",),
    "a stale prefix": ("prefix",),
}


def report_of(
    folder: Path, dimensions: Any, programs: Any = None, around: Any = None, **how: Any
) -> Report:
    """Verify a bundle beside the random model of its dimensions, unless given others."""
    model = subject_of(folder, programs or random_programs(dimensions))
    if around:
        model = replace(model, runtime=around(model.runtime))
    return verify(model, positions=40, **how)


def assert_named(found: Mapping[str, str], named: Named) -> None:
    for name, words in named.items():
        assert name in found, f"{name} did not fail, but {sorted(found)}"
        for word in words:
            assert word in found[name], found[name]


def assert_passes(report: Report) -> None:
    assert report.passed, failed(report)
    made = [check for check in report.checks if check.outcome == "passed"]
    assert len(made) >= min(len(report.checks), 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILE_FAULTS)
def test_a_fault_of_a_file_is_reported(name, tmp_path):
    fault = FILE_FAULTS[name]
    found = failed(report_of(fault.broken(tmp_path / "broken"), fault.dimensions))
    (of_files,) = [found[check] for check in ("weights", "programs") if check in found]
    for word in fault.place:
        assert word in of_files
    if fault.precision.get("quantize", "none") == "none":
        assert "teacher-forced" in found  # and so would it be where files cannot be read
    assert_named(found, FILES.get(name, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_fault_of_behaviour_is_reported(name):
    fault, named = BEHAVIOUR_FAULTS[name], BEHAVIOURS[name]
    folder = bundle(fault.dimensions, runtime="native")
    found = failed(report_of(folder, fault.dimensions, around=fault.around))
    assert_named(found, named)
    if name in ALONE:
        assert found.keys() == named.keys()


@pytest.mark.slow
def test_a_tie_that_a_chunk_breaks_otherwise_is_reported():
    model = subject(DSA, "eager")
    assert_passes(verify(model, positions=40))
    broken = replace(model, runtime=BreaksTies(model.runtime))
    found = failed(verify(broken, positions=40))
    assert_named(found, {"chunks": ("one token after the other",)})


@pytest.mark.slow
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_fault_of_behaviour_shows_among_the_noise_of_int8(name):
    """Where rows of a call share scales."""
    fault, named = BEHAVIOUR_FAULTS[name], BEHAVIOURS[name]
    folder = bundle(fault.dimensions, "int8", "onnx")
    assert failed(report_of(folder, fault.dimensions, around=fault.around, only=named))


@pytest.mark.slow
@pytest.mark.parametrize(
    "dimensions",
    [
        replace(LLAMA, rotary=replace(LLAMA.rotary, base=1000.0)),
        replace(LLAMA, attention_scale=2 * LLAMA.attention_scale),
    ],
    ids=["wrong rotary base", "wrong attention scale"],
)
def test_another_program_shows_among_the_noise_of_int8(dimensions):
    """Its weights are smoothed, so they are not compared."""
    found = failed(report_of(bundle(dimensions, "int8", "onnx"), LLAMA))
    assert "teacher-forced" in found


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_reported_and_its_sound_twin_is_not(name, tmp_path):
    only = QUICK[name]
    if name in FILE_FAULTS:
        fault = FILE_FAULTS[name]
        sound = report_of(fault.sound(), fault.dimensions, only=only)
        broken = report_of(fault.broken(tmp_path / "broken"), fault.dimensions, only=only)
        assert_named(failed(broken), FILES[name] | {"weights": fault.place})
    else:
        behaviour = BEHAVIOUR_FAULTS[name]
        folder = bundle(behaviour.dimensions, runtime="native")
        sound = report_of(folder, behaviour.dimensions, only=only)
        around = behaviour.around
        broken = report_of(folder, behaviour.dimensions, around=around, only=only)
        assert_named(failed(broken), BEHAVIOURS[name])
    assert not broken.passed
    assert_passes(sound)


def twins() -> list[tuple[str, Any, Mapping[str, str]]]:
    """Return the sound models, each once."""
    every = {
        repr((fault.dimensions, fault.precision)): (name, fault.dimensions, fault.precision)
        for name, fault in FILE_FAULTS.items()
    }
    for name, fault in BEHAVIOUR_FAULTS.items():
        for precision in ({"runtime": "native"}, {"quantize": "int8", "runtime": "onnx"}):
            twin = name, fault.dimensions, precision
            every.setdefault(repr((fault.dimensions, precision)), twin)
    return list(every.values())


@pytest.mark.slow
@pytest.mark.parametrize("twin", twins(), ids=lambda twin: f"{twin[0]} {twin[2]['runtime']}")
def test_sound_twins_pass_every_check(twin):
    _, dimensions, precision = twin
    assert_passes(report_of(bundle(dimensions, **precision), dimensions))


@pytest.mark.slow
def test_an_overflow_in_fp16_is_reported():
    programs = TorchModel.from_tensors(LLAMA, overflowing_tensors())
    found = failed(report_of(overflowing("fp16"), LLAMA, programs))
    assert_named(
        found,
        {
            "layers": ("values of layer 1 overflow", "float16 holds 65,504"),
            "teacher-forced": ("not finite",),
        },
    )
    assert not {"weights", "programs", "dimensions"} & found.keys()
    assert_passes(report_of(overflowing("fp32"), LLAMA, programs))
    sound = bundle(LLAMA, runtime="native", cache="fp16")
    assert_passes(report_of(sound, LLAMA, random_programs(LLAMA)))
