"""The page in a real browser: every cell of every call is what masks, caches and costs compute."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcast.inspect import schedule as schedules
from kvcast.inspect.cost import open_work
from kvcast.inspect.masks import masks
from kvcast.inspect.page import CostLine, LayerKind, Prompts, cost_lines, page, plain_kinds
from kvcast.inspect.schedule import Schedule
from kvcast.inspect.units import with_prefix
from server.page.browsing import chromium, holds

pytestmark = pytest.mark.slow

MISTRAL = str(Path(__file__).parents[2] / "data" / "configs" / "mistral-7b")
NASTY = "</script><b><img/src=x/onerror=document.title='harm'>"
TEXTS = [["The", NASTY, "brown", "fox"], ["a"], ["&amp;", "<i>", "c"]]
PROMPTS = Prompts(lengths=(4, 1, 3), chunk=2, new=5)
CELLS = """(table) => [...table.tBodies[0].rows].map(row => [...row.cells].slice(1)
  .map(cell => [cell.textContent, cell.className]))"""
NAMES = """(table) => [[...table.tHead.rows[0].cells].slice(1), [...table.tBodies[0].rows]
  .map(row => row.cells[0])].map(cells => cells.map(cell => cell.textContent))"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page, at its first call; in the end nothing may have been asked for or gone wrong."""
    file = tmp_path_factory.mktemp("page") / "page.html"
    schedule = Schedule.of((4, 1, 3), 3, 2, 5)
    file.write_text(page(schedule, 3, None, TEXTS, None), encoding="utf-8")
    asked: list[str] = []
    faults: list[str] = []
    with chromium() as browser:
        shown = browser.contexts[0].new_page()
        shown.on("request", lambda request: asked.append(request.url))
        shown.on("pageerror", lambda error: faults.append(str(error)))
        shown.on("console", lambda said: faults.append(said.text))
        shown.goto(file.as_uri())
        yield shown
        shown.close()
    assert asked == [file.as_uri()]
    assert faults == []


@pytest.fixture(scope="module")
def kinds() -> list[LayerKind]:
    return plain_kinds(PROMPTS, 3, None)


def move(shown: Any, call: int) -> None:
    shown.get_by_role("slider", name="Call").fill(str(call))


def check_kind(shown: Any, kind: LayerKind, section: Any, index: int) -> None:
    call = list(kind.schedule.calls())[index]
    slots = section.locator("table.slots").evaluate(CELLS)
    for row, cells in enumerate(slots):
        expected = list(schedules.cells(kind.schedule, call, row, TEXTS))
        told = [text + "*" * (state == "now") if text else "." for text, state in cells]
        assert told == expected
    mask = list(masks(kind.schedule))[index]
    names = section.locator("table.mask").evaluate(NAMES)
    assert names == [
        [schedules.token_label(row, position, TEXTS) for row, position in side]
        for side in (mask.keys, mask.queries)
    ]
    drawn = section.locator("table.mask").evaluate(CELLS)
    expected_qk = [
        [
            "other" if key[0] != query[0] else "seen" if sees else "hidden"
            for key, sees in zip(mask.keys, line, strict=True)
        ]
        for query, line in zip(mask.queries, mask.seen.tolist(), strict=True)
    ]
    assert [[state for _, state in line] for line in drawn] == expected_qk
    beside = section.locator("p.about").nth(1).text_content()
    assert beside == ("old ring beside the chunk: a" if mask.beside == (0,) else "")


def check_costs(shown: Any, lines: list[CostLine], index: int) -> None:
    told = shown.locator("#costs").evaluate(CELLS)
    for cells, line in zip(told, lines, strict=True):
        numbers = (line.cached[index], line.recomputed[index], *line.so_far[index])
        expected = [f"{with_prefix(number)}{line.unit}".strip() for number in numbers]
        assert [text for text, _ in cells] == expected


def test_every_call_shows_its_slots_masks_and_costs(opened: Any, kinds: list[LayerKind]):
    calls = list(kinds[0].schedule.calls())
    assert opened.get_by_role("slider", name="Call").get_attribute("max") == str(len(calls) - 1)
    lines = cost_lines(kinds, None)
    for index in (0, 1, 2, 4, 6, 3):
        move(opened, index)
        heading = opened.locator("#heading").text_content()
        assert heading.startswith(f"{calls[index].name}: ")
        for kind, section in zip(kinds, opened.locator("section.kind").all(), strict=True):
            check_kind(opened, kind, section, index)
        check_costs(opened, lines, index)


def test_tokens_are_held_written_or_to_come(opened: Any, kinds: list[LayerKind]):
    for index, call in enumerate(kinds[0].schedule.calls()):
        move(opened, index)
        for row, items in enumerate(opened.locator("#tokens ul").all()):
            told = items.locator("li").evaluate_all(
                "items => items.map(item => [item.textContent, item.className])"
            )
            start, end = call.lengths[row], call.lengths[row] + call.counts[row]
            for position, (text, state) in enumerate(told[1:]):
                assert text == schedules.token_label(row, position, TEXTS)
                wanted = "ahead" if position >= end else "now" if position >= start else "held"
                assert state == wanted


def test_the_hand_of_a_ring_turns_on_to_the_slot_written_last(opened: Any):
    hand = opened.locator(".rings svg").first.locator(".hand")
    angles = []
    for call in range(7):
        move(opened, call)
        angles.append(hand.evaluate("hand => hand.style.transform"))
    # Row a ends with positions 1, 3, 4 … 8 in 3 slots: 120 degrees each.
    assert angles == [f"rotate({120 * last}deg)" for last in (1, 3, 4, 5, 6, 7, 8)]
    ring = opened.locator(".rings svg").first.locator("g")
    assert [part.get_attribute("class") for part in ring.all()] == ["held", "held", "now"]


def test_a_token_that_spells_html_is_text(opened: Any):
    move(opened, 0)
    opened.locator("td", has_text=NASTY).first.wait_for()
    assert opened.locator("main b, main i, img").count() == 0
    assert opened.title() == "prompts of 4, 1 and 3 tokens in chunks of 2, then 5 steps; " + (
        "a window of 3, 3 slots a row"
    )


def test_keys_and_buttons_go_from_call_to_call(opened: Any):
    move(opened, 3)
    opened.locator("h1").click()
    for key, name in (
        *(("ArrowRight", "step 3"), ("ArrowLeft", "step 2"), ("Home", "chunk 1")),
        *(("ArrowLeft", "chunk 1"), ("End", "step 5"), ("ArrowRight", "step 5")),
    ):
        opened.keyboard.press(key)
        assert opened.locator("#heading").text_content().startswith(f"{name}: ")
    assert opened.get_by_role("button", name="Next").is_disabled()
    opened.get_by_role("button", name="Previous").click()
    slider = opened.get_by_role("slider", name="Call")
    assert (slider.input_value(), slider.get_attribute("aria-valuetext")) == ("5", "step 4")
    slider.press("ArrowLeft")
    assert slider.input_value() == "4"


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_it_is_readable_on_a_telephone_in_both_schemes(opened: Any, scheme: str, dark: bool):
    opened.emulate_media(color_scheme=scheme)
    opened.set_viewport_size({"width": 400, "height": 800})
    move(opened, 6)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 400
    colours = opened.evaluate(
        "(({backgroundColor, color}) => [backgroundColor, color])(getComputedStyle(document.body))"
    )
    back, text = (sum(map(int, colour[4:-1].split(","))) for colour in colours)
    assert (back < 150 and text > 600) if dark else (back > 600 and text < 150)
    opened.set_viewport_size({"width": 1280, "height": 720})


def test_a_models_operations_and_bytes_are_shown(opened: Any, tmp_path: Path):
    file = tmp_path / "model.html"
    schedule = Schedule.of((4, 1, 3), 3, 2, 5)
    file.write_text(page(schedule, 3, None, [], MISTRAL), encoding="utf-8")
    shown = opened.context.new_page()
    shown.goto(file.as_uri())
    holds(shown, "() => document.querySelectorAll('#costs tbody tr').length === 4")
    [ring, _] = plain_kinds(PROMPTS, 3, None)
    lines = cost_lines([ring], open_work(MISTRAL))
    for index in (0, 4, 6):
        move(shown, index)
        check_costs(shown, lines, index)
    about = shown.locator("section.kind p.about").first.text_content()
    assert about == "32 layers, a window of 3, 3 slots a row"
    shown.close()
