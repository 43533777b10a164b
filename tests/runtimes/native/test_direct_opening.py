"""Checkpoints that are opened as they are: the same programs and tiles as their bundles have."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kit.dimensions import (
    CROSS_BIASED_T5,
    DECODERS,
    DSA,
    GEMMA4,
    GRANITE4,
    GRANITE_SPEECH,
    KIMI,
    LFM2,
    QWEN3_5,
    QWEN3_ASR,
    SMALL,
    SMALL_T5,
    T5GEMMA,
    T5GEMMA2,
    UNILMS,
    VOXTRAL,
    VOXTRAL_REALTIME,
    YOUTU,
)
from kit.marks import slow
from kit.models import lazy_tensors, random_programs, random_tensors, write
from kit.tiny_gguf import tiny_llama
from kvcast.bundle.manifest import read_bundle
from kvcast.checkpoints.base import Checkpoint
from kvcast.families.table import family_with
from kvcast.runtimes.native.build import library_path
from kvcast.runtimes.native.bundles import open_bundle, open_checkpoint
from kvcast.runtimes.native.plan_builder import Experts, Matrix
from kvcast.spec.runtimes import BundlePrecision
from kvcast.spec.stored_matrices import FileRows
from runtimes.native.native_calls import looked_up

MODELS = [
    SMALL,
    SMALL_T5,
    CROSS_BIASED_T5,
    *DECODERS,
    LFM2,
    QWEN3_5,
    GEMMA4,
    GRANITE4,
    YOUTU,
    DSA,
    KIMI,
    T5GEMMA,
    T5GEMMA2,
    *UNILMS,
    QWEN3_ASR,
    VOXTRAL,
    GRANITE_SPEECH,
    VOXTRAL_REALTIME,
]


def checkpoint_of(dimensions: Any) -> Checkpoint:
    """Return random weights as a file has them, in fp32."""
    return Checkpoint(
        dimensions=dimensions,
        tensors=lazy_tensors(random_tensors(dimensions)),
        text={},
        source="a checkpoint",
    )


def numbers_of(constant: Any, machine: Any) -> list[NDArray[Any]]:
    """Return everything of a constant that programs read."""
    if isinstance(constant, Matrix):
        return [np.array([constant.format, constant.outputs, constant.inputs]), constant.tiles]
    if isinstance(constant, Experts):
        parts = [numbers_of(matrix, machine) for matrix in constant.matrices]
        return [array for part in parts for array in part]
    if isinstance(constant, FileRows):
        return [looked_up(machine, constant)]
    return [constant]


@pytest.mark.parametrize("quantize", ["int8", *(slow(kind) for kind in ("none", "int4"))])
@pytest.mark.parametrize("dimensions", MODELS, ids=lambda d: getattr(d, "architecture", "whisper"))
def test_programs_and_tiles_are_the_bundles(dimensions: Any, quantize: str, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    write(random_programs(dimensions), folder, quantize, "native")
    manifest = read_bundle(folder)
    bundle = open_bundle(folder, manifest, 2)
    precision = BundlePrecision(quantize=quantize)
    phases: list[str] = []
    checkpoint = checkpoint_of(dimensions)
    own_manifest, opened = open_checkpoint(checkpoint, precision, 2, on_phase=phases.append)
    count = len(opened.constants)
    assert phases == [f"packing {number} of {count} tensors" for number in range(1, count + 1)]
    assert opened.programs == bundle.programs
    assert own_manifest.cache == manifest.cache
    assert json.loads(json.dumps(own_manifest.dimensions)) == manifest.dimensions
    assert opened.constants.keys() == bundle.constants.keys()
    for constant, expected in bundle.constants.items():
        actual = opened.constants[constant]
        pairs = zip(
            numbers_of(actual, opened.machine), numbers_of(expected, bundle.machine), strict=True
        )
        for array, other in pairs:
            np.testing.assert_array_equal(array, other)


def test_every_tensor_is_a_constant_or_makes_one() -> None:
    for dimensions in (*MODELS, replace(DECODERS[0], out_bias=True, qkv_bias=True)):
        family = family_with(dimensions)
        read = {
            name
            for program in family.write_programs(dimensions).values()
            for constant in program.constants()
            for name in (constant.name, constant.bias)
        }
        tensors = random_tensors(dimensions)
        made = set(family.constants(dimensions, tensors))
        unread = tensors.keys() - read
        assert unread <= {
            "encoder.bias.weight",
            "decoder.bias.weight",
            "decoder.rotary_frequencies",
        }
        assert read - {None} - tensors.keys() == made


LOADS_AND_IS_KILLED = """
import os, signal, sys, kvcast

def kill(phase):
    if phase.startswith("packing 9 of"):
        os.kill(os.getpid(), signal.SIGKILL)

kvcast.load(sys.argv[1], runtime="native", threads=1).generate("house", max_new_tokens=1)
kvcast.load(sys.argv[1], runtime="native", threads=1, on_phase=kill)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_opening_writes_nothing_and_a_kill_leaves_nothing(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m.gguf")
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    cache.mkdir()
    temporary.mkdir()
    (cache / "native").symlink_to(library_path().parent)
    places = {"KVCAST_CACHE": str(cache), "TMPDIR": str(temporary)}
    words = [sys.executable, "-c", LOADS_AND_IS_KILLED, model]
    done = subprocess.run(words, check=False, env=os.environ | places)
    assert done.returncode == -signal.SIGKILL
    assert list(cache.iterdir()) == [cache / "native"]
    assert list(temporary.iterdir()) == []
