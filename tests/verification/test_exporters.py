"""Folders as optimum, onnxruntime-genai and optimum-executorch write them, from random weights.

Their pins exclude each other, so each has an environment of its own in the folder that
`KVCAST_TEST_FOREIGN` names; CONTRIBUTING.md says how they are installed.
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kit.foreign_models import T5, Llama, write_checkpoint
from kvcast.cli import main

pytestmark = pytest.mark.slow

NARROW = Llama(vocab=160, width=64, inner=96)
WIDE = replace(NARROW, layers=3, heads=2, kv_heads=1, positions=96)
SEQ2SEQ = T5(vocab=160, width=32, inner=48)
PAST = "text-generation-with-past"
TEXT = ("--task", "text-generation", "--recipe", "xnnpack", "--max_seq_len", "48")
CUSTOM = ("--use_custom_sdpa", "--use_custom_kv_cache")


def made(environment: str, *words: str) -> None:
    """Run an exporter; skips the test where it is not installed."""
    folder = os.environ.get("KVCAST_TEST_FOREIGN")
    if not folder or not (Path(folder) / environment / "bin").is_dir():
        pytest.skip(f"KVCAST_TEST_FOREIGN names no folder with an environment {environment}")
    program, *rest = words
    command = [Path(folder).absolute() / environment / "bin" / program, *rest]
    here = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, env={**here, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def optimum(checkpoint: str, folder: str, task: str = PAST) -> None:
    module = ("python", "-m", "optimum.exporters.onnx")
    made("optimum-onnx", *module, "--model", checkpoint, "--task", task, folder)


def genai(checkpoint: str, folder: str) -> None:
    module = ("python", "-m", "onnxruntime_genai.models.builder")
    cache = f"{folder}-cache"
    made("genai", *module, "-i", checkpoint, "-o", folder, "-p", "fp32", "-e", "cpu", "-c", cache)


def executorch(checkpoint: str, folder: str, *more: str) -> None:
    command = ("optimum-cli", "export", "executorch", "--model", checkpoint)
    made("optimum-executorch", *command, *TEXT, *more, "--output_dir", folder)


@pytest.mark.parametrize(
    ("model", "export", "ways", "copies"),
    [
        pytest.param(NARROW, optimum, {"copied"}, {"Concat", "Expand"}, id="optimum-llama"),
        pytest.param(
            SEQ2SEQ,
            lambda checkpoint, folder: optimum(
                checkpoint, folder, "text2text-generation-with-past"
            ),
            {"copied", "kept"},
            {"Concat"},
            id="optimum-t5",
        ),
        pytest.param(NARROW, genai, {"in place"}, set(), id="genai-narrow"),
        pytest.param(WIDE, genai, {"in place"}, set(), id="genai-wide"),
        pytest.param(
            NARROW,
            executorch,
            {"copied"},
            {"index_put", "copy_", "expand_copy"},
            id="executorch-index-put",
        ),
        pytest.param(
            WIDE,
            lambda checkpoint, folder: executorch(checkpoint, folder, *CUSTOM),
            {"in place"},
            set(),
            id="executorch-update-cache",
        ),
    ],
)
def test_exports_are_right_and_their_copies_counted(tmp_path, capsys, model, export, ways, copies):
    checkpoint, folder = tmp_path / "checkpoint", tmp_path / "theirs"
    write_checkpoint(checkpoint, model)
    export(str(checkpoint), str(folder))
    words = ("--against", str(checkpoint), "--trust", "--json", "--positions", "48")
    capsys.readouterr()
    assert main(["verify", "--foreign", str(folder), *words]) == 0
    document = json.loads(capsys.readouterr().out)
    checks = {check["name"]: check for check in document["checks"]}
    assert checks["teacher-forced"]["outcome"] == checks["capacity"]["outcome"] == "passed"
    measured = checks["copies"]["measured"]
    assert set(measured["caches"].values()) == ways
    found = {each["operator"] for each in measured["profiled"] or measured["from_the_file"]}
    assert found == copies
