"""`kvcast bench serve` for real with a tiny model and alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.tiny_gguf import tiny_llama

ROOT = Path(__file__).parents[3]
SMALL = ["--threads", "1", "--prompt", "4", "--shared", "2", "--new", "3", "--runs", "1"]


@pytest.mark.slow
def test_kvcast_alone_is_measured(tmp_path: Path, measured: Callable[..., Any]):
    model = str(tiny_llama(tmp_path / "tiny.gguf"))
    options = ["--clients", "1", "3", "--quantize", "none", "--baseline", "engine", "--peers"]
    document = measured("serve", "--model", model, *SMALL, *options)
    assert [backend["name"] for backend in document["backends"]] == [
        "kvcast-fp32",
        "kvcast-fp32-engine",
    ]
    served = [row for row in document["rows"] if row["backend"] == "kvcast-fp32"]
    (engine,) = (row for row in document["rows"] if row["backend"] != "kvcast-fp32")
    assert [row["trial"]["clients"] for row in served] == [1, 3]
    alone, many = served
    # In fp32 the server writes what the engine writes.
    assert alone["facts"]["text"] == engine["facts"]["text"]
    assert alone["facts"]["prompt_tokens"] == engine["facts"]["prompt_tokens"] > 4
    assert alone["metrics"]["token"]["times"]["engine"] > 0
    assert many["metrics"]["token"]["times"]["engine"] is None
    for row in served:
        assert row["facts"]["first_p50"] <= row["facts"]["first_p99"]
        assert row["peak_bytes"] > 1e7
    assert document["rates"] == []


@pytest.mark.slow
def test_clips_of_a_recording_are_measured(measured: Callable[..., Any]):
    recording = ROOT / "examples" / "sense-and-sensibility.flac"
    words = ["--reference", str(recording.with_suffix(".txt")), "--model", "demo", "--threads", "1"]
    words += ["--clients", "1", "3", "--runs", "1", "--quantize", "int8", "--peers"]
    document = measured("serve", str(recording), *words)
    assert document["settings"]["clips"] == 3
    alone, all_clips = document["rows"]
    assert [row["trial"]["clients"] for row in document["rows"]] == [1, 3]
    assert "dashwood" in alone["facts"]["text"].lower()
    assert all_clips["facts"]["word_error"] < 0.1
