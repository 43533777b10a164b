from pathlib import Path

import pytest

import kvcast
from kit import models
from kvcast.cli import main
from kvcast.errors import UsageError
from kvcast.spec.runtimes import OnPhase


@pytest.fixture
def exported(monkeypatch) -> list[dict]:
    calls: list[dict] = []

    def export(model: str, output: Path, *, on_phase: OnPhase, **keywords: object) -> Path:
        calls.append({"model": model, "output": output, **keywords})
        on_phase("proving")
        (output / "onnx").mkdir(parents=True)
        (output / "bundle.json").write_text("{}")
        (output / "onnx" / "decode.onnx").write_bytes(bytes(2_500_000))
        return output

    monkeypatch.setattr(kvcast, "export_bundle", export)
    return calls


def test_export_prints_every_file_with_its_size(exported, tmp_path, capsys):
    out = tmp_path / "bundle"
    assert main(["export", "demo", "--output", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"       2 B  {out}/bundle.json",
        f"    2.5 MB  {out}/onnx/decode.onnx",
        f"    2.5 MB  {out}",
    ]
    assert exported == [
        {
            "model": "demo",
            "output": out,
            "adapter": [],
            "runtime": None,
            "quantize": None,
            "dtype": None,
            "cache": None,
            "device": "cpu",
            "max_autotune": False,
            "overwrite": False,
        }
    ]


def test_options_reach_the_export(exported, tmp_path):
    words = "--runtime aoti --dtype bf16 --device cuda --max-autotune --force --quantize none"
    assert main(["export", "folder", "--output", str(tmp_path / "b"), *words.split()]) == 0
    asked = {"runtime": "aoti", "dtype": "bf16", "device": "cuda", "max_autotune": True}
    assert exported[0].items() >= (asked | {"overwrite": True, "quantize": "none"}).items()


def test_a_refused_destination_is_one_line(monkeypatch, tmp_path, error_line):
    def refuse(*_, **__):
        raise UsageError("that folder holds something else")

    monkeypatch.setattr(kvcast, "export_bundle", refuse)
    assert main(["export", "demo", "--output", str(tmp_path)]) == 2
    assert error_line() == "kvcast: that folder holds something else\n"


def test_a_bundle_is_not_exported_again(tmp_path, error_line):
    given = str(models.exported("demo-t5"))
    assert main(["export", given, "-o", str(tmp_path / "b"), "--runtime", "native"]) == 2
    assert "is a bundle: give the checkpoint that it was exported from" in error_line()
