"""`kvcast verify` of bundles that are right, wrong, damaged or another model's."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from kit.tiny_gguf import sizes, tensors, tiny_llama, vocabulary, write
from kvcast.bundle.manifest import read_bundle
from kvcast.cli import main
from verification.faults import flipped_bit, reseal

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/verification.schema.json").read_text(encoding="utf-8")
)
NORM = "decoder.layers.0.attention_norm.weight"
SHORT = ("--positions", "16", "--quiet")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def sound(checkpoint: Path) -> Path:
    folder = checkpoint.parent / "bundle"
    words = [
        "export",
        str(checkpoint),
        "--output",
        str(folder),
        "--runtime",
        "native",
        "--quantize",
        "none",
    ]
    assert main(words) == 0
    return folder


@pytest.fixture
def bundle(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "bundle"))


def verify(*words: str | Path) -> int:
    return main(["verify", *map(str, words), *SHORT])


def test_a_valid_bundle_passes_and_a_wrong_weight_is_named(bundle, checkpoint, capsys):
    assert verify(bundle, "--against", checkpoint) == 0
    assert "FAILED" not in capsys.readouterr().out
    assert read_bundle(bundle).verification["report"]["passed"]
    flipped_bit(NORM, (5,), 30)(bundle)
    reseal(bundle)
    assert verify(bundle, "--against", checkpoint, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    [weights] = [check for check in document["checks"] if check["name"] == "weights"]
    assert weights["outcome"] == "failed"
    assert weights["detail"].startswith(f"{NORM}: one number, at [5], is wrong: bit 30 is flipped")
    assert read_bundle(bundle).verification["report"] == document


def test_another_models_checkpoint_is_refused(bundle, tmp_path, capsys):
    arrays = {name: array for name, array in tensors().items() if not name.startswith("blk.1.")}
    values = sizes("llama") | {"llama.block_count": 1} | vocabulary()
    other = write(tmp_path / "other.gguf", "llama", values, arrays)
    assert verify(bundle, "--against", other) == 2
    assert "is another model than" in capsys.readouterr().err
    assert verify(bundle, "--against", bundle) == 2
    assert "is a bundle" in capsys.readouterr().err


def test_missing_files_are_one_line(bundle, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    gone = tmp_path / "gone"
    cases = [
        ((tmp_path / "empty",), 1, "holds no model that kvcast can read"),
        ((bundle, "--against", gone), 66, "gone"),
        ((bundle, "--junit", gone / "report.xml"), 74, "gone"),
    ]
    for words, code, told in cases:
        assert verify(*words) == code, words
        error = capsys.readouterr().err
        assert error.startswith("kvcast"), words
        assert told in error, words
        assert "Traceback" not in error


def test_a_changed_file_is_damage_and_no_wrong_result(bundle, capsys):
    flipped_bit(NORM, (5,), 30)(bundle)
    assert verify(bundle) == 1
    assert "was changed since the export (checksum)" in capsys.readouterr().err
