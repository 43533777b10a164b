"""The page of a schedule tells what masks, caches and costs compute, and runs nothing else."""

import json
import re
from base64 import b64decode
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvcast.cli import main
from kvcast.families.programs import CacheLayers
from kvcast.inspect import cost
from kvcast.inspect.cost import open_work
from kvcast.inspect.page import Prompts, cost_lines, model_kinds, page, plain_kinds, story
from kvcast.inspect.schedule import Schedule
from kvcast.inspect.units import with_prefix

CONFIGS = Path(__file__).parents[2] / "data" / "configs"
EXAMPLE = Prompts(lengths=(4, 1, 3), chunk=2, new=5)
NASTY = "</script><b onclick=alert(1)>&amp;<!--"


def within(document: str) -> dict[str, Any]:
    [found] = re.findall(r'<script type="application/json" id="story">(.*?)</script>', document)
    return json.loads(found)


def shown(window: int | None = 3, capacity: int | None = None) -> dict[str, Any]:
    kinds = plain_kinds(EXAMPLE, window, capacity)
    return story(kinds, [], cost_lines(kinds, None), [])


@pytest.mark.parametrize(("window", "capacity"), [(3, None), (3, 5), (None, None)])
def test_slots_hold_what_was_written_into_them_last(window: int | None, capacity: int | None):
    told = shown(window, capacity)
    held = [[[-1] * kind["slots"] for _ in told["rows"]] for kind in told["kinds"]]
    for call in told["calls"]:
        for slots_rc, of_kind in zip(held, call["kinds"], strict=True):
            for row, slots in enumerate(slots_rc):
                for position in range(call["starts"][row], call["ends"][row]):
                    slots[position % len(slots)] = position
            assert of_kind["slots"] == slots_rc
    assert [row["tokens"][-1] for row in told["rows"]] == ["a8", "b5", "c7"]
    assert [call["ends"] for call in told["calls"]][-1] == [9, 6, 8]
    assert told["calls"][1]["heading"] == "chunk 2: 2 + 0 + 1 tokens"


def test_masks_show_who_sees_whom():
    told = shown()
    for index, window in enumerate((3, 99)):
        assert [told["calls"][i]["kinds"][index]["beside"] for i in range(7)] == [
            [0] if (i, index) == (1, 0) else [] for i in range(7)
        ]
        for call in told["calls"]:
            mask = call["kinds"][index]
            for (row, query), line in zip(mask["queries"], mask["seen"], strict=True):
                assert call["starts"][row] <= query < call["ends"][row]
                seen = {tuple(k) for k, sees in zip(mask["keys"], line, strict=True) if sees == "#"}
                first = max(0, query - window + 1)
                assert seen == {(row, position) for position in range(first, query + 1)}


def test_positions_and_pairs_are_counted_with_and_without_a_cache():
    kinds = plain_kinds(EXAMPLE, 3, None)
    positions, ring, linear = cost_lines(kinds, None)
    told = shown()
    for index, line in ((0, ring), (1, linear)):
        seen = [
            sum(row.count("#") for row in call["kinds"][index]["seen"]) for call in told["calls"]
        ]
        assert line.cached == seen
    assert positions.cached == [5, 3, 3, 3, 3, 3, 3]
    assert positions.recomputed == [5, 7, 11, 14, 17, 20, 23]
    assert positions.so_far[-1] == (23, 97)
    # Rows of 4 and 3 positions whose queries see up to 3: 1 + 2 + 3 + 3, and 1 + 2 + 3.
    assert ring.recomputed[1] == 9 + 6
    assert linear.recomputed[1] == 10 + 6
    assert told["costs"][1]["calls"][1] == ["9", "15", "16", "22"]


@pytest.mark.parametrize("name", ["mistral-7b", "t5-small", "whisper-large-v3-turbo"])
def test_a_models_cost_is_that_of_inspect_cost(name: str):
    model = open_work(str(CONFIGS / name))
    prompts = Prompts(lengths=(7,), chunk=7, new=11)
    *_, operations, read = cost_lines(plain_kinds(prompts, None, None), model)
    whole = cost.document(name, model, cost.CostQuery(prompt=7, new=12), None)["calls"]
    for way, totals in (("cached", 0), ("recomputed", 1)):
        assert operations.so_far[-1][totals] == whole["all"][way]["flop"]["total"]
        assert read.so_far[-1][totals] == sum(whole["all"][way]["bytes"].values())
        assert getattr(operations, way)[1] == whole["next"][way]["flop"]["total"]


def test_rows_of_a_call_share_the_weights_that_it_reads():
    model = open_work(str(CONFIGS / "mistral-7b"))
    read = {
        rows: cost_lines(
            plain_kinds(Prompts(lengths=(4,) * rows, chunk=4, new=2), None, None), model
        )
        for rows in (1, 2)
    }
    (*_, one, one_read), (*_, two, two_read) = read[1], read[2]
    np.testing.assert_allclose(two.cached, 2 * np.array(one.cached))
    cached = np.array(one_read.cached) - one_read.cached[0]
    np.testing.assert_allclose(np.array(two_read.cached) - one_read.cached[0], 2 * cached)


def test_a_models_kinds_are_drawn_with_their_windows_or_another():
    caches = [
        CacheLayers(kind="ring", layers=3, heads=1, head_dim=8, capacity=5),
        CacheLayers(kind="linear", layers=1, heads=1, head_dim=8, capacity=64),
        CacheLayers(kind="ring", layers=2, heads=1, head_dim=8, capacity=5),
        CacheLayers(kind="ring", layers=1, heads=1, head_dim=8, capacity=4),
    ]
    found = {
        window: [
            (kind.name, kind.layers, kind.schedule.window, kind.schedule.capacity)
            for kind in model_kinds(caches, EXAMPLE, window, None)
        ]
        for window in (None, 3)
    }
    assert found[None] == [("ring", 5, 5, 5), ("linear", 1, None, 9), ("ring", 1, 4, 4)]
    assert found[3] == [("ring", 6, 3, 3), ("linear", 1, None, 9)]


def test_words_that_spell_html_stay_text():
    schedule = Schedule.of((2,), 2, 2, 1)
    document = page(schedule, 2, None, [["a", NASTY, "\u2028"]], None)
    assert within(document)["rows"][0]["tokens"] == ["0:a", f"1:{NASTY}", "2:\u2028"]
    assert document.count("</script>") == 2
    assert "<b" not in document.replace("<body", "").replace("<button", "")
    assert "\u2028" not in document


def test_only_the_pages_own_style_and_script_count():
    document = page(Schedule.of((2,), 2, 2, 1), 2, None, [], None)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', document)
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", document, re.DOTALL)
        [digest] = re.findall(rf"{tag}-src 'sha256-([^']*)'", unescape(policy))
        assert b64decode(digest) == sha256(content.encode()).digest()
    assert not re.findall(r"(?:src|href)=|url\(|@import", document)


def test_the_command_writes_the_page_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    target = tmp_path / "page.html"
    words = ["inspect", "cache", "--html", str(target), "--model", str(CONFIGS / "mistral-7b")]
    assert main([*words, "--text", "The quick fox", "--new", "2", "--window", "2"]) == 0
    assert capsys.readouterr().out.startswith("prompt of 3 tokens in chunks of 2")
    told = within(target.read_text())
    assert told["rows"] == [
        {"name": "a", "prompt": 3, "tokens": ["0:The", "1:quick", "2:fox", "3:a3", "4:a4"]}
    ]
    assert [kind["about"] for kind in told["kinds"]] == ["32 layers, a window of 2, 2 slots a row"]
    model = open_work(str(CONFIGS / "mistral-7b"))
    step = model.call(3, 1).operations
    assert told["costs"][2]["calls"][2][0] == f"{with_prefix(step)}FLOP"
    assert main(["inspect", "masks", "--html", str(target)]) == 0
    assert [kind["name"] for kind in within(target.read_text())["kinds"]] == ["ring", "linear"]
    whisper = ["inspect", "cache", "--html", str(target), "--model"]
    assert main([*whisper, str(CONFIGS / "whisper-large-v3-turbo")]) == 0
    told = within(target.read_text())
    assert [kind["name"] for kind in told["kinds"]] == ["linear"]
    assert "cross: 4 layers, 1,500 positions of the source, written once" in told["notes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cache", "--model", "demo"], "add --html"),
        (["masks", "--unilm", "5,3", "--html", "x"], "--unilm has a source: drop one"),
        (["cache", "--html", "x", "--lengths", "150", "--new", "51"], "at most 200"),
        (["cache", "--html", "x", "--model", str(CONFIGS / "simbert-base")], "masks --unilm"),
        (
            ["masks", "--html", "x", "--model", str(CONFIGS / "t5-small"), "--lengths", "600"],
            "positions",
        ),
    ],
)
def test_what_has_no_page_is_refused_in_one_line(
    words, message: str, tmp_path: Path, monkeypatch, error_line
):
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", *words]) == 2
    assert re.search(message, error_line())
    assert list(tmp_path.iterdir()) == []
