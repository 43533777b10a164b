"""The page's panels by axe, in every size and theme."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.dimensions import SMALL_T5
from kit.text_models import model, saying
from server.page.browsing import field, visit
from server.page.test_transcribing_panel import answer, choose
from server.page.test_writing_page import answered, send
from server.serving import Server, serving
from server.test_chat_completions import echo

pytestmark = pytest.mark.slow

EAR = {
    "id": "ear",
    "kind": "speech",
    "languages": ["en", "de"],
    "abilities": {"language": "detected", "hints": True, "translates": True, "words": True},
}
FILES = [{"name": name, "mimeType": "audio/wav", "buffer": b"abc"} for name in ("a.wav", "b.wav")]
VIOLATIONS = """async () => (await axe.run()).violations.flatMap(
  ({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html}`)
)"""


@pytest.fixture(scope="module")
def axe() -> str:
    environment = Path(os.environ.get("KVCAST_TEST_CLIENTS", ""))
    script = environment / "node_modules/axe-core/axe.min.js"
    if not script.is_file():
        pytest.skip("needs axe-core in the folder that KVCAST_TEST_CLIENTS names")
    return script.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving({"echo": saying(echo), "t5": model(SMALL_T5, "native")}) as running:
        yield running


def fill_chat(page: Any) -> None:
    send(page, "other")
    answered(page)
    page.get_by_role("button", name="New conversation").click()
    send(page, "# A title\n\n```\ncode\n```\n\n|a|b|\n|-|-|\n|1|2|")
    answered(page)
    page.get_by_role("button", name="Regenerate").click()
    page.locator(".assistant .place").wait_for()
    send(page, "more")
    answered(page, 2)
    page.get_by_role("button", name="Edit").first.click()
    if not page.locator("#conversations").is_visible():
        page.get_by_role("button", name="Conversations", exact=True).click()


def fill_transcribe(page: Any) -> None:
    choose(page, FILES)
    page.get_by_role("button", name="Copy transcript").wait_for()
    page.get_by_role("button", name="Edit").nth(1).click()


def fill_text2text(page: Any) -> None:
    field(page, "Source").fill("abc")
    field(page, "Max tokens").fill("6")
    page.get_by_role("button", name="Run").click()
    page.locator(".targets li").first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (768, 600), (390, 844)])
@pytest.mark.parametrize("fill", [fill_chat, fill_transcribe, fill_text2text])
def test_axe_finds_no_violation(
    browser: Any, server: Server, axe: str, fill: Any, size: tuple[int, int], scheme: str
):
    with server.http() as http:
        models = http.get("/v1/models").json()["data"]
    answers = {
        "**/v1/models": {"body": json.dumps({"data": [*models, EAR]})},
        "**/v1/audio/*": {"body": answer(), "content_type": "text/event-stream"},
    }
    path = f"/#{fill.__name__.removeprefix('fill_')}"
    with visit(browser, server.url, path, answers=answers, size=size, scheme=scheme) as page:
        for details in page.locator("details.more").all():
            details.evaluate("details => { details.open = true; }")
        fill(page)
        page.get_by_role("button", name="Engine").click()
        page.get_by_role("complementary", name="Engine").get_by_role("meter").first.wait_for()
        page.mouse.move(0, 0)
        page.evaluate(axe)
        assert page.evaluate(VIOLATIONS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
