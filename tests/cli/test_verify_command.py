"""`kvcast verify`: exit codes, records in bundles, reports, damaged and wrong bundles."""

import json
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kvcast
from kit.marks import soak
from kit.tiny_gguf import sizes, tensors, tiny_llama, vocabulary, write
from kvcast.bundle.manifest import read_bundle
from kvcast.bundle.writing import seal
from kvcast.cli import main
from kvcast.errors import InputOutputError
from kvcast.runtimes.native.interpreter import WEIGHTS
from verification.faults import flipped_bit, reseal
from verification.test_verification_report import SCHEMA

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/sense-and-sensibility.flac"


def verify(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, object]]:
    code = main(["verify", *map(str, words), "--json", "--quiet"])
    printed = capsys.readouterr()
    assert printed.err == ""
    document = json.loads(printed.out)
    jsonschema.validate(document, SCHEMA)
    assert document["passed"] is (code == 0)
    return code, document


def outcomes(document: dict[str, object]) -> dict[str, str]:
    return {check["name"]: check["outcome"] for check in document["checks"]}


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["demo", "--audio", "a.wav", "--prompts", "b.txt"], 2, "give --audio or --prompts"),
        (["demo", "--audio", "missing.wav"], 66, "missing.wav: there is no such file"),
        (["demo-t5", "--prompts", "missing.txt"], 66, "missing.txt: there is no such file"),
        (["no-such-folder"], 66, "no-such-folder"),
        (["demo", "--positions", "3"], 2, "--positions"),
        (["demo", "--junit", str(ROOT)], 74, "cannot write"),
    ],
)
def test_mistakes_are_reported_in_one_line(words, code, problem, error_line):
    assert main(["verify", *words]) == code
    assert problem in error_line()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified") / "unilm"
    kvcast.export_bundle("demo-unilm", folder, runtime="native", quantize="int8")
    return folder


@pytest.mark.slow
def test_a_bundle_is_verified_without_its_checkpoint_and_keeps_the_report(bundle, tmp_path, capsys):
    junit = tmp_path / "report.xml"
    files = read_bundle(bundle).files
    code, document = verify(capsys, bundle, "--positions", 64, "--junit", junit)
    assert code == 0
    made = outcomes(document)
    assert made["recorded"] == made["teacher-forced"] == made["chunks"] == "passed"
    assert "as the export recorded" in document["reference"]
    manifest = read_bundle(bundle)
    assert manifest.files == files
    assert manifest.verification["report"] == document
    assert manifest.verification["tokens"] == 56
    suite = ET.parse(junit).getroot().find("testsuite")
    assert suite.get("failures") == "0"
    assert len(suite.findall("testcase")) == len(made) == int(suite.get("tests"))
    assert kvcast.load(bundle).generate("3 March 2021").text == "2021-03-03"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "runtime", "quantize"),
    [
        ("demo", "native", "int4"),
        ("demo-base", "onnx", "int8"),
        soak("demo-base", "native", "int4"),
    ],
)
def test_a_correct_whisper_bundle_passes_alone(model, runtime, quantize, tmp_path, capsys):
    """On noise, after the start tokens, up to the end of each text."""
    bundle = tmp_path / "bundle"
    kvcast.export_bundle(model, bundle, runtime=runtime, quantize=quantize)
    code, document = verify(capsys, bundle, "--positions", 24)
    assert code == 0, document
    made = outcomes(document)
    assert made["recorded"] == made["teacher-forced"] == made["free-running"] == "passed"


@pytest.mark.slow
def test_a_flipped_bit_differs_from_the_exports_record(bundle, tmp_path, capsys):
    """In int8 as well, although checksums are sealed anew."""
    broken = shutil.copytree(bundle, tmp_path / "broken")
    [weights] = broken.rglob(WEIGHTS)
    tensors = load_file(weights)
    name = next(name for name, part in sorted(tensors.items()) if part.dtype == np.int8)
    codes = tensors[name].copy()
    codes.flat[codes.size // 2] ^= 0x40
    save_file({**tensors, name: codes}, weights)
    seal(broken, read_bundle(bundle))
    code, document = verify(capsys, broken, "--positions", 64)
    assert code == 1
    made = outcomes(document)
    assert made["recorded"] == "failed"
    assert made["chunks"] == made["second-input"] == made["beams"] == "passed"


@pytest.mark.slow
def test_a_bundle_of_an_older_export_is_compared_with_itself(bundle, tmp_path, capsys):
    older = shutil.copytree(bundle, tmp_path / "older")
    manifest = read_bundle(older)
    seal(older, replace(manifest, verification={"tokens": 56, "tokens_equal": 56}))
    code, document = verify(capsys, older, "--positions", 64)
    assert code == 0
    made = outcomes(document)
    assert made["teacher-forced"] == made["free-running"] == made["recorded"] == "skipped"
    assert made["chunks"] == made["batch"] == made["capacity"] == "passed"
    assert document["reference"] == "none: the model beside itself"
    code, document = verify(capsys, older, "--against", "demo-unilm", "--positions", 64)
    assert code == 0
    assert outcomes(document)["teacher-forced"] == "passed"


@pytest.mark.slow
def test_a_bundle_that_cannot_be_written_is_verified_all_the_same(bundle, capsys, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise InputOutputError("cannot write bundle.json: Read-only file system")

    monkeypatch.setattr("kvcast.verification.subject.save", full)
    assert main(["verify", str(bundle), "--positions", "64"]) == 0
    assert "does not keep the report: cannot write bundle.json" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("demo", ("--audio", EXAMPLE, "--positions", 24)),
        soak("demo", ("--audio", EXAMPLE, "--quantize", "none", "--positions", 64)),
        soak("demo", ("--audio", EXAMPLE, "--quantize", "int4", "--positions", 160)),
        ("demo-t5", ("--prompts", "{prompts}")),
        ("demo-unilm", ("--prompts", "{prompts}", "--quantize", "none")),
    ],
)
def test_real_weights_and_inputs_pass(model, words, tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("3 March 2021\nthe 4th of July 1776\n", encoding="utf-8")
    given = [str(word).format(prompts=prompts) for word in words]
    code, document = verify(capsys, model, *given)
    assert code == 0, document
    forced = next(check for check in document["checks"] if check["name"] == "teacher-forced")
    if "none" in given:
        assert forced["measured"]["tokens_equal"] == forced["measured"]["tokens"] > 0
    else:
        assert forced["measured"]["mean_error"] < (0.4 if "int4" in given else 0.2)


NORM = "decoder.layers.0.attention_norm.weight"
SHORT = ("--positions", "16", "--quiet")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def exported(checkpoint: Path) -> Path:
    folder = checkpoint.parent / "bundle"
    words = ["export", str(checkpoint), "--output", str(folder), "--runtime", "native"]
    assert main([*words, "--quantize", "none"]) == 0
    return folder


@pytest.fixture
def copied(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "bundle"))


def code_of(*words: str | Path) -> int:
    return main(["verify", *map(str, words), *SHORT])


def test_a_valid_bundle_passes_and_a_wrong_weight_is_named(copied, checkpoint, capsys):
    assert code_of(copied, "--against", checkpoint) == 0
    assert "FAILED" not in capsys.readouterr().out
    assert read_bundle(copied).verification["report"]["passed"]
    flipped_bit(NORM, (5,), 30)(copied)
    reseal(copied)
    assert code_of(copied, "--against", checkpoint, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    [weights] = [check for check in document["checks"] if check["name"] == "weights"]
    assert weights["outcome"] == "failed"
    assert weights["detail"].startswith(f"{NORM}: one number, at [5], is wrong: bit 30 is flipped")
    assert read_bundle(copied).verification["report"] == document


def test_another_models_checkpoint_is_refused(copied, tmp_path, capsys):
    arrays = {name: array for name, array in tensors().items() if not name.startswith("blk.1.")}
    values = sizes("llama") | {"llama.block_count": 1} | vocabulary()
    other = write(tmp_path / "other.gguf", "llama", values, arrays)
    assert code_of(copied, "--against", other) == 2
    assert "is another model than" in capsys.readouterr().err
    assert code_of(copied, "--against", copied) == 2
    assert "is a bundle" in capsys.readouterr().err


def test_missing_files_are_one_line(copied, tmp_path, error_line):
    (tmp_path / "empty").mkdir()
    gone = tmp_path / "gone"
    for words, code, told in (
        ((tmp_path / "empty",), 1, "holds no model that kvcast can read"),
        ((copied, "--against", gone), 66, "gone"),
        ((copied, "--junit", gone / "report.xml"), 74, "gone"),
    ):
        assert code_of(*words) == code, words
        assert told in error_line(), words


def test_a_changed_file_is_damage_and_no_wrong_result(copied, capsys):
    flipped_bit(NORM, (5,), 30)(copied)
    assert code_of(copied) == 1
    assert "was changed since the export (checksum)" in capsys.readouterr().err
