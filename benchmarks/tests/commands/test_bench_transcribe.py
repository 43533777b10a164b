"""`kvcast bench transcribe` for real, short and alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
AUDIO = str(ROOT / "examples" / "sense-and-sensibility.flac")
TEXT = str(ROOT / "examples" / "sense-and-sensibility.txt")
ALONE = ["--model", "demo", "--threads", "1", "--beam", "1", "--runs", "1", "--peers"]


@pytest.mark.slow
def test_kvcast_alone_is_measured(measured: Callable[..., Any]):
    document = measured("transcribe", AUDIO, "--reference", TEXT, *ALONE)
    (ours,) = document["backends"]
    (row,) = document["rows"]
    assert ours["name"] == row["backend"] == "kvcast"
    assert document["settings"]["audio"] == {
        "name": "sense-and-sensibility.flac",
        "recordings": 1,
        "seconds": 24.73,
    }
    assert row["facts"]["word_error"] < 0.05
    assert 50e6 < row["peak_bytes"] < 1e9
    (broken,) = document["breakdown"]
    whole, *parts = (metric["median"] for metric in broken["metrics"].values())
    assert whole == pytest.approx(sum(parts))
    assert broken["facts"]["steps"] > 50
    assert broken["metrics"]["encode"]["floor"] > 0
    assert broken["metrics"]["step"]["calls"] == broken["facts"]["steps"]
