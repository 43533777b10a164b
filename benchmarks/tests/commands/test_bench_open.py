"""`kvcast bench open` for real, alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.errors import one_line
from kvcast.errors import KvcastError
from kvcast_bench.models import BenchModel
from kvcast_bench.peers.opening import Opener

ROOT = Path(__file__).parents[3]
AUDIO = str(ROOT / "examples" / "sense-and-sensibility.flac")


@pytest.mark.slow
def test_a_recording_is_answered_by_new_processes(measured: Callable[..., Any]):
    asked = ["--model", "demo", "--audio", AUDIO, "--runs", "1", "--peers", "llama.cpp"]
    document = measured("open", *asked)
    (row,) = document["rows"]
    assert row["backend"] == "kvcast-own"
    assert [absent["name"] for absent in document["absent"]] == ["llama.cpp"]
    assert 0 < row["metrics"]["ready"]["median"] < row["metrics"]["first"]["median"]
    assert "Dashwood" in row["facts"]["text"]
    # A process of its own: this one holds torch and more.
    assert 50e6 < row["facts"]["own_megabytes"] * 1e6 < row["peak_bytes"] < 400e6


def test_the_reason_of_a_process_that_fails_is_one_line(tmp_path: Path):
    model = BenchModel(folder=str(tmp_path / "absent.gguf"), threads=1)
    opener = Opener(model=model, name="kvcast-own")
    assert "absent.gguf" in one_line(KvcastError, opener.answer, "Once", None)
