"""`kvcast bench generate` for real with a tiny model and alone."""

from collections.abc import Callable
from typing import Any

import pytest

from kvcast_bench.peers.kvcast import RING

NGRAM = "kvcast-int8-ngram"
SMALL = ["--threads", "1", "--prompt", "6", "--new", "2", "--batch", "1", "2", "--positions", "9"]


@pytest.mark.slow
def test_kvcast_alone_is_measured(chat: str, measured: Callable[..., Any]):
    options = ["--window", "4", "--runs", "1", "--quantize", "int8", "--peers"]
    document = measured("generate", "--model", chat, *SMALL, *options)
    assert [entry["name"] for entry in document["backends"]] == ["kvcast-int8", NGRAM, RING]
    ours, drafted, ring = (
        [row for row in document["rows"] if row["backend"] == name]
        for name in ("kvcast-int8", NGRAM, RING)
    )
    trials = [row["trial"] for row in ours]
    assert [(entry["measure"], entry["rows"], entry["prompt"]) for entry in trials] == [
        ("text", 1, 6),
        ("text", 2, 6),
        ("repeated", 1, 6),
        ("position", 1, 9),
    ]
    assert [row["trial"] for row in drafted] == [trials[0], trials[2]]
    # A row does not depend on its neighbours.
    assert ours[0]["facts"]["tokens"] == ours[1]["facts"]["tokens"]
    assert [row["trial"]["measure"] for row in ring] == ["position"]
    assert ring[0]["metrics"]["step"]["floor"] < ours[3]["metrics"]["step"]["floor"]
    assert [row["backend"] for row in document["breakdown"]] == ["kvcast-int8"] * 2
    for row in document["breakdown"]:
        whole, *parts = (entry["median"] for entry in row["metrics"].values())
        assert whole == pytest.approx(sum(parts))
        assert row["facts"]["steps"] == 2


SOURCES = ["--threads", "1", "--source", "6", "--target", "3", "--batch", "1", "2"]


@pytest.mark.slow
def test_kvcast_alone_is_measured_with_a_t5(t5: str, measured: Callable[..., Any]):
    options = ["--beam", "1", "2", "--lengths", "6", "9", "--runs", "1", "--quantize", "none"]
    document = measured("generate", "--model", t5, *SOURCES, *options, "--peers")
    assert [entry["name"] for entry in document["backends"]] == ["kvcast-fp32"]
    trials = [row["trial"] for row in document["rows"]]
    assert [(entry["rows"], entry["beams"], entry["source"]) for entry in trials] == [
        (1, 1, 6),
        (1, 2, 6),
        (2, 1, 6),
        (2, 2, 6),
        (1, 1, 9),  # one source of 6 tokens, greedy, is there already
    ]
    # A row does not depend on its neighbours.
    tokens = [row["facts"]["tokens"] for row in document["rows"]]
    assert tokens[:2] == tokens[2:4]
    for row in document["breakdown"]:
        whole, *parts = (entry["median"] for entry in row["metrics"].values())
        assert whole == pytest.approx(sum(parts))
        assert row["facts"]["steps"] == 2
        assert row["metrics"]["encode"]["floor"] > 0
    assert len(document["breakdown"]) == 5
