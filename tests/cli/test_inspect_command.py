"""`kvcast inspect`: documented output, files, and mistakes."""

import json
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kit.in_transformers import random_t5, save_t5
from kvcast.bundle.manifest import Manifest
from kvcast.cli import main
from kvcast.inspect import roofline
from kvcast.inspect.cost import open_work

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "tests" / "data" / "configs"
MISTRAL = str(CONFIGS / "mistral-7b")
TURBO = str(CONFIGS / "whisper-large-v3-turbo")
T5 = str(CONFIGS / "t5-small")
SIMBERT = str(CONFIGS / "simbert-base")
DOCUMENTED = re.findall(
    r"```\n\$ kvcast (inspect .*?)\n(.*?)```",
    (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8"),
    re.DOTALL,
)


@pytest.mark.parametrize(("command", "printed"), DOCUMENTED, ids=[c for c, _ in DOCUMENTED])
def test_a_documented_command_prints_the_documented_output(command, printed, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr() == (printed, "")


def test_every_view_is_documented_by_example():
    assert {command.split()[1] for command, _ in DOCUMENTED} == {
        *("masks", "cache", "bias", "cost", "graph", "attention")
    }


EXAMPLE = "--lengths 4,1,3 --window 3 --chunk 2 --new 5"
DEFAULTS = {"masks": EXAMPLE, "cache": EXAMPLE, "bias": "--length 6 --buckets 32 --distance 128"}


@pytest.mark.parametrize("view", DEFAULTS)
def test_the_worked_example_is_the_default(view: str, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", view]) == 0
    shown = capsys.readouterr().out
    assert main(["inspect", view, *DEFAULTS[view].split()]) == 0
    assert capsys.readouterr().out == shown


def test_no_window_and_another_capacity(capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", "masks", "--window", "none", "--capacity", "12"]) == 0
    assert "no window, 12 slots a row" in capsys.readouterr().out


def test_a_picture_is_saved_and_the_text_printed(tmp_path, capsys):
    target = tmp_path / "masks.svg"
    target.write_text("old")
    assert main(["inspect", "masks", "--svg", str(target)]) == 0
    assert target.read_text().endswith("</svg>\n")
    assert list(tmp_path.iterdir()) == [target]
    assert capsys.readouterr().out.startswith("prompts of 4, 1 and 3 tokens")


@pytest.mark.parametrize(
    "words",
    [
        [MISTRAL, "--no-measure"],
        [str(CONFIGS / "mistral-7b-params"), "--new", "1", "--no-measure"],
        [TURBO, "--bandwidth", "20", "--rate", "0.5"],
        ["demo", "--bytes-per-weight", "1", "--no-measure"],
        [T5, "--source", "30", "--no-measure"],
        [SIMBERT, "--no-measure"],
    ],
)
def test_the_json_object_is_the_documented_one(words, capsys):
    assert main(["inspect", "cost", *words, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    schema = json.loads((ROOT / "docs" / "inspect.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(line), schema)


def test_rates_are_measured_unless_given(capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", "cost", "demo", "--threads", "1", "--bandwidth", "7", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["machine"]["bandwidth"] == 7e9
    assert document["machine"]["bandwidth_from"] == "given"
    assert document["machine"]["rate"] > 1e9
    assert document["machine"]["rate_from"] in {
        f"{x}, measured with 1 thread" for x in ("int8", "fp32")
    }
    step = document["calls"]["next"]["cached"]
    assert step["seconds"] >= sum(step["bytes"].values()) / 7e9


def test_float32_weights_are_multiplied_at_the_rate_of_float32(monkeypatch: pytest.MonkeyPatch):
    rates = {"read": 1.0, "read_again": 3.0, "int8": 8.0, "fp32": 2.0}
    monkeypatch.setattr(roofline, "_measure", lambda *_: rates)
    sizes = {"threads": 2, "step_bytes": 9.0}
    rates = [
        roofline.MachineRates.measure(bandwidth=None, rate=None, bytes_per_weight=size, **sizes)
        for size in (4.0, 2.0)
    ]
    assert [(rate.bandwidth, rate.rate) for rate in rates] == [(3.0, 2.0), (3.0, 8.0)]
    assert rates[1].rate_from == "int8, measured with 2 threads"


def manifest(family: str, dimensions: dict[str, Any]) -> str:
    return Manifest(
        family=family,
        runtime="onnx",
        quantize="int8",
        dimensions=dimensions,
        cache=(),
        graphs={},
        source={},
        tools={},
    ).to_json()


@pytest.mark.parametrize(
    ("folder", "family"), [(TURBO, "whisper"), (MISTRAL, "decoder"), (T5, "t5"), (SIMBERT, "unilm")]
)
def test_a_bundles_manifest_is_enough(folder, family, tmp_path, capsys):
    dimensions = asdict(open_work(folder).dimensions)
    (tmp_path / "bundle.json").write_text(manifest(family, dimensions))
    shown = []
    for model in (folder, str(tmp_path)):
        assert main(["inspect", "cost", model, "--no-measure"]) == 0
        shown.append(capsys.readouterr().out.split("\n", 1)[1])
    assert shown[0] == shown[1]


def test_the_picture_of_a_source_and_a_target_is_saved(tmp_path: Path):
    target = tmp_path / "prefix.svg"
    assert main(["inspect", "masks", "--unilm", "5,3", "--svg", str(target)]) == 0
    assert "a source of 5 tokens (s), then a target of 3 (t)" in target.read_text()


def test_a_models_head_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    save_t5(random_t5("NARROW"), tmp_path)
    for words, title in (([], "head 0; 8 buckets"), (["--head", "2"], "head 2; 8 buckets")):
        assert main(["inspect", "bias", "--model", str(tmp_path), *words]) == 0
        assert capsys.readouterr().out.startswith(f"{tmp_path}, {title}")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["masks", "--lengths", "4,x"], 2, "--lengths: must be a whole number from 1"),
        (["masks", "--lengths", "4,0,3"], 2, "--lengths: must be a whole number from 1"),
        (["masks", "--lengths", ""], 2, "--lengths: is empty"),
        (["masks", "--lengths", "4000000"], 2, "4,000,005 positions are too many to draw"),
        (["masks", "--window", "0"], 2, "--window: must be a whole number from 1"),
        (["masks", "--window", "-3"], 2, "--window: must be a whole number from 1"),
        (["cache", "--chunk", "0"], 2, "--chunk: must be a whole number from 1"),
        (["cache", "--new", "-1"], 2, "--new: must be a whole number from 0"),
        (["cache", "--capacity", "2"], 2, "capacity must be from 3 to 1,000 here, not 2"),
        (["cache", "--lengths", "1,2", "--text", "a"], 2, "1 text for 2 rows: give one for each"),
        (["cache", "--text", ""], 2, "lengths must give each of one or more prompts"),
        (["masks", "--svg", "/no/such/folder/x.svg"], 74, "cannot write /no/such/folder/x.svg"),
        (["masks", "--unilm", "5"], 2, "--unilm: must be two numbers, as in 5,3 for source"),
        (["masks", "--unilm", "5,3,1"], 2, "--unilm: must be two numbers, as in 5,3 for source"),
        (["masks", "--unilm", "5,x"], 2, "--unilm: must be a whole number from 1"),
        (["masks", "--unilm", "5,0"], 2, "--unilm: must be a whole number from 1"),
        (["masks", "--unilm", "-1,3"], 2, "--unilm: must be a whole number from 1"),
        (["masks", "--unilm", "9" * 5000 + ",3"], 2, "--unilm: must be a whole number from 1"),
        (["masks", "--unilm", ""], 2, "--unilm: is empty"),
        (["masks", "--unilm", "900,101"], 2, "1,001 positions are too many to draw"),
        (["masks", "--unilm", "5,3", "--window", "none"], 2, "token by token: drop --window"),
        (["masks", "--unilm", "5,3", "--chunk", "2", "--lengths", "4"], 2, "--lengths and --chunk"),
        (["cache", "--unilm", "5,3"], 2, "--unilm"),
        (["bias", "--length", "0"], 2, "--length: must be a whole number from 1"),
        (["bias", "--length", "1001"], 2, "1,001 positions are too many to show"),
        (["bias", "--step", "-1"], 2, "--step: must be a whole number from 0"),
        (["bias", "--step", "1000"], 2, "1,001 positions are too many to show"),
        (["bias", "--step", "1", "--length", "3"], 2, "not allowed with argument"),
        (["bias", "--chunk", "2"], 2, "--chunk begins at a position: add --step"),
        (["bias", "--buckets", "6"], 2, "buckets must be 4, 8, ... up to 1,000, not 6"),
        (["bias", "--distance", "16"], 2, "distance must be above half of 32 buckets"),
        (["bias", "--head", "1"], 2, "--head selects a head of a model: add --model"),
        (["bias", "--model", "demo", "--buckets", "8"], 2, "--model has its own --buckets"),
        (["bias", "--model", "demo"], 1, "demo is a whisper model: only a T5 has"),
        (["bias", "--model", "no such model"], 66, "no model 'no such model'"),
        (["cost", T5, "--source", "4097"], 2, "a source of 4,097 tokens is too long"),
        (["cost", SIMBERT, "--source", "5"], 2, "is not a T5, which --source is for"),
        (["cost", SIMBERT, "--prompt", "500"], 2, "take 599 positions, and the model has 512"),
        (["cost", "no such model"], 66, "no model 'no such model'"),
        (["cost", ""], 2, "MODEL: is empty"),
        (["cost", TURBO, "--prompt", "500"], 2, "take 599 positions, and the model has 448"),
        (["cost", MISTRAL, "--prompt", "0"], 2, "--prompt: must be a whole number from 1"),
        (["cost", MISTRAL, "--new", "0"], 2, "--new: must be a whole number from 1"),
        (["cost", MISTRAL, "--bytes-per-weight", "0"], 2, "must be a number above 0 and at most 8"),
        (["cost", MISTRAL, "--rate", "inf"], 2, "--rate: must be a number above 0"),
        (["cost", MISTRAL, "--no-measure", "--rate", "1"], 2, "--no-measure prints no times"),
        ([], 2, "VIEW"),
    ],
)
def test_a_mistake_is_one_line(words, code, message, error_line):
    assert main(["inspect", *words]) == code
    assert message in error_line()


@pytest.mark.parametrize(
    ("name", "content", "code", "message"),
    [
        ("config.json", '{"model_type": "vits"}', 1, "model_type 'vits' is not supported"),
        ("config.json", '{"model_type": ["llama"]}', 1, "is not supported"),
        ("config.json", '{"model_type": "llama"}', 1, "is missing"),
        ("config.json", "{", 74, "is not valid JSON"),
        ("config.json", "[]", 74, "is not a JSON object"),
        ("params.json", '{"dim": 4096}', 1, "is missing"),
        ("params.json", '{"head_dim": 0}', 1, "head_dim must be a whole number from 1"),
        ("bundle.json", "{}", 1, "is not a kvcast manifest"),
        ("bundle.json", b"\xff", 74, "cannot be read"),
        ("bundle.json", manifest("vits", {}), 1, "this kvcast does not support vits models"),
        ("other.json", "{}", 1, "holds no model that kvcast can read"),
    ],
)
def test_a_folder_without_sizes_is_one_line(tmp_path, name, content, code, message, error_line):
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(raw)
    assert main(["inspect", "cost", str(tmp_path), "--no-measure"]) == code
    assert message in error_line()


def test_without_kernels_one_line_suggests_options(monkeypatch, error_line):
    monkeypatch.setenv("KVCAST_INSTRUCTIONS", "none")
    assert main(["inspect", "cost", MISTRAL]) == 2
    assert "KVCAST_INSTRUCTIONS" in error_line()
