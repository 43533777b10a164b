"""`--quantize int4-calibrated`, from the command line to the file of weights."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import kvcast
from kit.dimensions import MIXTRAL
from kit.models import own_cache
from kit.tiny_gguf import permuted, sizes, tensors, tiny_llama, vocabulary, write
from kvcast.bundle.manifest import read_bundle
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.source import open_checkpoint
from kvcast.cli import main
from kvcast.errors import UsageError
from kvcast.families.table import FAMILIES
from kvcast.loading.exporting import _check_calibration
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerDecoderOnly
from kvcast.runtimes.lowering import calibration
from kvcast.runtimes.lowering.calibration import calibrate
from kvcast.runtimes.native.matrices import CODES, LEAST, SCALES
from kvcast.runtimes.target import TARGETS
from kvcast.spec.runtimes import ignore_phase
from kvcast.spec.stored_matrices import BlocksOf, no_blocks, rounded

CALIBRATED = "int4-calibrated"
TABLE = "decoder.embedding.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("plain") / "model.gguf")


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_TOKENS", 256)


def programs_of(checkpoint: Checkpoint) -> TorchModel:
    return TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)


def codes_of(model: Path) -> BlocksOf:
    programs = programs_of(open_checkpoint(model))
    return calibrate(programs, no_blocks, ignore_phase).blocks_of


def test_the_command_writes_a_bundle_of_int4_and_says_how_its_codes_were_found(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bundle"
    words = ["export", str(model), "-o", str(folder), "--runtime", "native"]
    assert main([*words, "--quantize", CALIBRATED]) == 0
    told = "calibrated 8 matrices on 256 tokens that the model wrote (seed 0)"
    assert capsys.readouterr().err == f"kvcast: {told}\n"
    manifest = read_bundle(folder)
    assert manifest.quantize == "int4"
    assert manifest.calibration == {"calibrated": 8, "kept": 0, "tokens": 256, "seed": 0}
    codes, stored = codes_of(model), load_file(folder / "native" / "weights.safetensors")
    for name in (
        f"decoder.layers.1.{part}.weight" for part in ("attention.out", "feed_forward.down")
    ):
        blocks, packed = codes(name), stored[name + CODES]
        assert blocks is not None
        unpacked = np.stack([packed & 15, packed >> 4], axis=-1).reshape(blocks.shape)
        np.testing.assert_array_equal(unpacked, blocks.codes)
        np.testing.assert_array_equal(stored[name + SCALES], blocks.scales)
        np.testing.assert_array_equal(stored[name + LEAST], blocks.least)


@pytest.mark.parametrize("runtime", ["native", "onnx"])
def test_a_bundle_computes_with_the_values_of_its_codes(
    runtime: str, model: Path, tmp_path: Path
) -> None:
    folder = kvcast.export_bundle(model, tmp_path / "b", runtime=runtime, quantize=CALIBRATED)
    checkpoint, codes = open_checkpoint(model), codes_of(model)
    whole = {}
    for name, tensor in checkpoint.tensors.items():
        blocks = rounded(np.array(tensor)) if name == TABLE else codes(name)
        whole[name] = tensor if blocks is None else blocks.dequantize()
    exact_checkpoint = replace(checkpoint, tensors=whole)
    manifest = read_bundle(folder)
    candidate = TARGETS[runtime].open("decoder", folder, manifest, 1)
    tokens = np.random.default_rng(0).integers(0, checkpoint.dimensions.vocab_size, 40)
    exact, logits = (
        runtime.decode([tokens], runtime.new_cache(1, 40), positions=range(40))[0].ravel()
        for runtime in (EagerDecoderOnly(programs_of(exact_checkpoint)), candidate)
    )
    assert np.corrcoef(exact, logits)[0, 1] > 0.99


def test_a_files_own_codes_are_kept_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = {name: permuted(name, array) for name, array in tensors().items()}
    kinds = {f"{name}.weight": "Q4_1" for name in ("q", "k", "v", "output", "gate", "up", "down")}
    values = sizes("llama") | vocabulary()
    model = write(tmp_path / "model.gguf", "llama", values, arrays, kinds)
    folders = {kind: tmp_path / kind for kind in (CALIBRATED, "int4")}
    for kind, folder in folders.items():
        words = ["export", str(model), "-o", str(folder), "--runtime", "native"]
        assert main([*words, "--quantize", kind]) == 0
    told = "kept the checkpoint's own codes of 8 matrices: there is nothing to calibrate"
    assert capsys.readouterr().err == f"kvcast: {told}\n"
    stored, expected = (
        (folder / "native/weights.safetensors").read_bytes() for folder in folders.values()
    )
    assert stored == expected


def test_a_loaded_checkpoint_is_exported_once_and_apart_from_int4(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(monkeypatch, tmp_path / "cache")
    for kind in (CALIBRATED, "int4", CALIBRATED):
        kvcast.load(model, runtime="native", quantize=kind)
    # int4 alone is what a checkpoint is opened with, without a bundle.
    (bundle,) = (tmp_path / "cache" / "bundles").glob("*/bundle.json")
    assert read_bundle(bundle.parent).calibration
    kvcast.load(bundle.parent, quantize=CALIBRATED)
    with pytest.raises(UsageError, match=f"was exported with --quantize {CALIBRATED}: use that"):
        kvcast.load(bundle.parent, quantize="int4")


def test_mixtures_of_experts_are_refused_before_their_weights_are_read() -> None:
    with pytest.raises(UsageError, match="mixtures of experts have no int4-calibrated"):
        _check_calibration(FAMILIES["decoder"], MIXTRAL)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("demo-t5", "only decoder-only models have int4-calibrated: use --quantize int4"),
        ("demo-unilm", "only decoder-only models have int4-calibrated: use --quantize int4"),
        ("demo", "only decoder-only models have int4-calibrated: use --quantize int4"),
        ("demo-t5 --runtime executorch", "quantize of ExecuTorch must be one of none, 8da8w"),
    ],
)
def test_other_models_and_runtimes_are_refused(
    words, line: str, tmp_path: Path, error_line
) -> None:
    folder = tmp_path / "b"
    assert main(["export", *words.split(), "-o", str(folder), "--quantize", CALIBRATED]) == 2
    assert line in error_line()
    assert not folder.exists()
