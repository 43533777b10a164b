"""Damaged files of every format are read, or refused in one line."""

import json
from pathlib import Path

import numpy as np
import pytest

from kit.marks import slow, soak
from kit.models import NEEDED
from mutation.__main__ import main
from mutation.damage import damaged_bytes, lying_json
from mutation.failing import ENDINGS
from mutation.runner import OUTCOMES, Case, run
from mutation.whole import FORMATS

SEED = 20_260
CASES = 20
# Packages that were not opened before are opened in a child process, which imports torch.
FEWER = {"pte": 2, "pte manifest": 4, "pt2": 2, "pt2 weights": 2, "pt2 manifest": 4}
# Opened without a bundle, by the library that is compiled already; some cases are no damage.
DIRECT = ("gguf", "model.bin", "ort", "safetensors", "config.json", "adapter_config.json")
SECONDS = 300  # for a machine that is busy: what hangs does so for ever


def outcomes(name: str, cases: int) -> list[Case]:
    if (samples := FORMATS[name].samples) in NEEDED:
        pytest.importorskip(NEEDED[samples][0], reason=NEEDED[samples][1])
    return list(run(name, FORMATS[name].written(), SEED, range(cases), SECONDS))


@pytest.mark.parametrize("times", [slow(1), soak(10)])
@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_read_or_refused_in_one_line(name: str, times: int):
    cases = outcomes(name, times * FEWER.get(name, CASES))
    assert [case for case in cases if not case.well] == []
    refused = [case for case in cases if case.outcome == "refused"]
    assert refused
    assert name not in DIRECT or len(refused) < len(cases)
    assert all(case.message for case in refused)


@pytest.mark.parametrize("name", ["tokenizer.json", "sound"])
def test_a_few_of_them(name: str):
    cases = outcomes(name, 20)
    assert len(cases) == 20
    assert [case for case in cases if not case.well] == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_runner_notices(ending: str, tmp_path: Path):
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "file").write_bytes(bytes(1000))
    (tmp_path / "sample" / "ending").write_text(ending)
    seconds = 0.3 if ending == "hung" else SECONDS  # imports are not counted, and no case answers
    cases = list(run("failing", tmp_path, SEED, range(5, 7), seconds, "mutation.failing"))
    assert [case.number for case in cases] == [5, 6]
    assert {case.outcome for case in cases} == {"traceback" if ending == "panic" else ending}
    assert all(case.well == (ending in ("opened", "refused")) for case in cases)


def test_damage_is_that_of_its_seed_and_changes_something():
    content = bytes(range(256)) * 20
    document = json.dumps({"a": [1, 2.5, "x"], "b": {"c": None, "d": [{"e": True}]}}).encode()
    for change, whole in ((damaged_bytes, content), (lying_json, document)):
        made = [change(np.random.default_rng(i), whole) for i in range(200)]
        assert made == [change(np.random.default_rng(i), whole) for i in range(200)]
        assert len(set(made)) > 100
        assert sum(changed != whole for changed in made) > 150


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setattr("sys.argv", ["mutation", "text.json", "--cases", "3"])
    monkeypatch.setattr("mutation.__main__.share", lambda folder: None)
    assert main() == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[1:] == list(OUTCOMES)
    assert row.split()[0] == "text.json"
    assert sum(map(int, row.split()[1:])) == 3
