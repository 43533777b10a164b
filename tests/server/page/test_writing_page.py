"""The page's chat and its targets of a source, in a browser."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kit.dimensions import SMALL_T5
from kit.text_models import model, saying
from server.page.browsing import field, holds, posted, visit
from server.serving import Server, serving, until
from server.test_chat_completions import echo

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {
        "echo": saying(echo),
        "slow": saying("ab" * 900, before_step=lambda: time.sleep(0.01)),
        "t5": model(SMALL_T5, "native"),
    }
    with serving(models) as running:
        yield running


@pytest.fixture
def chat(browser: Any, server: Server) -> Iterator[Any]:
    with visit(browser, server.url, "/#chat") as page:
        page.get_by_text("Settings", exact=True).click()
        yield page


@pytest.fixture
def targets(browser: Any, server: Server) -> Iterator[Any]:
    with visit(browser, server.url, "/#text2text") as page:
        yield page


def send(page: Any, text: str) -> None:
    field(page, "Message").fill(text)
    page.get_by_role("button", name="Send").click()


def answered(page: Any, count: int = 1) -> list[str]:
    holds(page, "n => document.querySelectorAll('.assistant').length === n", count)
    page.get_by_role("button", name="Send").wait_for()
    return page.locator(".assistant .text").all_text_contents()


def test_a_conversation(chat: Any):
    bodies = posted(chat, "/v1/chat/completions")
    field(chat, "System prompt").fill("be brief")
    field(chat, "Temperature").fill("0.5")
    field(chat, "Max tokens").fill("100")
    send(chat, "first")
    assert answered(chat) == ["first"]
    field(chat, "Message").fill("second")
    chat.keyboard.press("Enter")
    assert answered(chat, 2) == ["first", "second"]
    assert bodies[1] == {
        "model": "echo",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "first"},
            {"role": "user", "content": "second"},
        ],
        "temperature": 0.5,
        "max_completion_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


END_IS_SEEN = """() => {
  const texts = document.querySelectorAll("#chat article .text");
  const ask = document.querySelector(".ask").getBoundingClientRect();
  return texts.item(texts.length - 1).getBoundingClientRect().bottom <= ask.top + 1;
}"""


@pytest.mark.parametrize("size", [(1280, 800), (768, 600), (390, 844)])
def test_the_newest_answers_end_is_seen_unless_the_reader_scrolls_up(
    browser: Any, server: Server, size: tuple[int, int]
):
    text = "\n\n".join(["a paragraph of some words"] * 5)
    with visit(browser, server.url, "/#chat", size=size) as page:
        newest = page.get_by_role("button", name="To the newest")
        for count in range(1, 7):
            send(page, f"{count} {text}")
            answered(page, count)
            holds(page, END_IS_SEEN)
            assert newest.is_hidden()
        page.reload()
        answered(page, 6)
        holds(page, END_IS_SEEN)
        page.mouse.move(size[0] / 2, 300)
        page.mouse.wheel(0, -700)
        newest.wait_for()
        top = page.evaluate("scrollY")
        field(page, "Message").evaluate("box => box.focus({ preventScroll: true })")
        assert page.evaluate("scrollY") == top
        newest.click()
        holds(page, END_IS_SEEN)
        newest.wait_for(state="hidden")


def test_an_answer_under_way_does_not_move_a_reader_who_scrolled_up(chat: Any):
    for count in range(1, 4):
        send(chat, "\n\n".join(["a paragraph of some words"] * 9))
        answered(chat, count)
    field(chat, "Model").select_option("slow")
    send(chat, "go on")
    holds(chat, "() => document.querySelectorAll('.assistant')[3]?.textContent.length > 40")
    chat.mouse.move(640, 300)
    chat.mouse.wheel(0, -600)
    chat.get_by_role("button", name="To the newest").wait_for()
    top = chat.evaluate("scrollY")
    length = "() => document.querySelectorAll('.assistant')[3].textContent.length"
    before = chat.evaluate(length)
    holds(
        chat, "n => document.querySelectorAll('.assistant')[3].textContent.length > n", before + 200
    )
    assert chat.evaluate("scrollY") == top
    chat.get_by_role("button", name="Stop").click()


def test_markdown_is_of_answers_alone(chat: Any):
    send(chat, "**a**")
    assert answered(chat) == ["a"]
    assert chat.locator(".assistant strong").text_content() == "a"
    assert chat.locator(".user .text").text_content() == "**a**"


def test_thoughts_are_shown_apart_from_the_answer(chat: Any):
    deltas = ({"reasoning_content": "<b>so"}, {"reasoning_content": "?"}, {"content": "**a**"})
    events = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    stream = {"body": body, "content_type": "text/event-stream"}
    chat.route("**/v1/chat/completions", lambda route: route.fulfill(**stream))
    bodies = posted(chat, "/v1/chat/completions")
    send(chat, "hello")
    assert answered(chat) == ["a"]
    chat.reload()
    thoughts = chat.locator(".assistant details")
    assert not thoughts.get_by_text("<b>so?").is_visible()
    thoughts.get_by_text("Thoughts").click()
    assert thoughts.get_by_text("<b>so?").is_visible()
    send(chat, "more")
    answered(chat, 2)
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": "**a**"}


def test_a_truncated_answer_is_marked(chat: Any):
    field(chat, "Max tokens").fill("4")
    send(chat, "abcdefgh")
    assert answered(chat) == ["abcd"]
    assert "max tokens" in chat.locator(".assistant .hint").text_content()


def test_an_answer_is_shown_as_it_comes_and_can_be_stopped(chat: Any, server: Server):
    before = server.status("slow").finished.get("cancelled", 0)
    field(chat, "Model").select_option("slow")
    send(chat, "hello")
    length = "document.querySelector('.assistant .text').textContent.length"
    holds(chat, f"() => {length} > 3")
    seen = chat.evaluate(length)
    holds(chat, f"seen => {length} > seen", seen)
    chat.locator("#chat").get_by_role("button", name="Stop").click()
    [text] = answered(chat)
    assert seen < len(text) < 1800
    assert set(text) == {"a", "b"}
    assert chat.locator(".assistant .hint").text_content() == "Stopped."
    until(lambda: server.status("slow").finished.get("cancelled", 0) == before + 1)


def test_the_last_answer_is_regenerated(chat: Any):
    bodies = posted(chat, "/v1/chat/completions")
    send(chat, "one")
    answered(chat)
    send(chat, "two")
    answered(chat, 2)
    chat.get_by_role("button", name="Regenerate").click()
    holds(chat, "() => document.querySelectorAll('.assistant').length === 2")
    assert answered(chat, 2) == ["one", "two"]
    until(lambda: len(bodies) == 3)
    assert bodies[2] == bodies[1]


def test_a_new_conversation_forgets_the_old(chat: Any):
    bodies = posted(chat, "/v1/chat/completions")
    send(chat, "old")
    answered(chat)
    chat.get_by_role("button", name="New conversation").click()
    assert chat.locator(".messages article").count() == 0
    assert chat.evaluate("document.activeElement.name") == "message"
    send(chat, "new")
    assert answered(chat) == ["new"]
    assert bodies[1]["messages"] == [{"role": "user", "content": "new"}]


def test_a_conversation_survives_a_reload(chat: Any):
    bodies = posted(chat, "/v1/chat/completions")
    field(chat, "System prompt").fill("be brief")
    field(chat, "Temperature").fill("0.5")
    send(chat, "a **b**")
    answered(chat)
    chat.reload()
    assert answered(chat) == ["a b"]
    assert chat.locator(".user .text").all_text_contents() == ["a **b**"]
    assert chat.locator(".assistant h2").text_content() == "echo"
    send(chat, "c")
    assert answered(chat, 2) == ["a b", "c"]
    said = [(message["role"], message["content"]) for message in bodies[1]["messages"]]
    assert said[:3] == [("system", "be brief"), ("user", "a **b**"), ("assistant", "a **b**")]
    assert bodies[1]["temperature"] == 0.5
    chat.get_by_role("button", name="New conversation").click()
    chat.reload()
    chat.get_by_role("tabpanel", name="Chat").wait_for()
    assert chat.locator(".messages article").count() == 0


def test_an_answer_under_way_survives_a_reload_as_far_as_it_came(chat: Any):
    field(chat, "Model").select_option("slow")
    send(chat, "hello")
    holds(chat, "() => document.querySelector('.assistant .text').textContent.length > 3")
    chat.reload()
    [text] = answered(chat)
    assert text.startswith("abab")
    assert chat.locator(".assistant .hint").text_content() == "Cut off."
    assert field(chat, "Model").input_value() == "slow"


def test_each_tab_keeps_its_own_conversation(browser: Any, server: Server, chat: Any):
    send(chat, "first")
    answered(chat)
    with visit(browser, server.url, "/#chat") as other:
        assert answered(other) == ["first"]
        other.get_by_role("button", name="New conversation").click()
        send(other, "second")
        answered(other)
        chat.reload()
        assert answered(chat) == ["first"]


@pytest.mark.parametrize(
    "kept", ["{", "null", "[]", '{"turns": 1}', '{"turns": [null, {"role": 1}]}']
)
def test_invalid_stored_conversations_are_ignored(chat: Any, kept: str):
    chat.evaluate(
        "kept => { sessionStorage.clear(); localStorage['kvcast-conversation'] = kept }", kept
    )
    chat.reload()
    chat.get_by_role("tabpanel", name="Chat").wait_for()
    send(chat, "hello")
    assert answered(chat) == ["hello"]


def test_full_browser_storage_is_reported(chat: Any):
    chat.evaluate("() => { Storage.prototype.setItem = () => { throw new Error('no room'); }; }")
    for button in ("Engine", "Conversations", "Dark"):
        chat.get_by_role("button", name=button).click()
    chat.locator("#chat .more summary").click()
    chat.locator("#engine .engines").get_by_text("echo").first.wait_for()
    send(chat, "hello")
    assert answered(chat) == ["hello"]
    assert chat.get_by_role("status").get_by_text("a reload would lose it").is_visible()


def test_a_new_conversation_stops_an_answer_under_way(chat: Any):
    field(chat, "Model").select_option("slow")
    send(chat, "hello")
    chat.locator(".assistant").wait_for()
    chat.get_by_role("button", name="New conversation").click()
    field(chat, "Model").select_option("echo")
    send(chat, "new")
    assert answered(chat) == ["new"]
    assert not chat.locator("#chat .error").is_visible()


def test_only_models_that_chat_are_offered(chat: Any):
    for panel, models in (("chat", ["echo", "slow"]), ("text2text", ["t5"])):
        assert chat.locator(f"#{panel} [name=model] option").all_text_contents() == models


def test_a_refusal_is_shown_in_the_servers_words(chat: Any):
    bodies = posted(chat, "/v1/chat/completions")
    field(chat, "Temperature").fill("7")
    send(chat, "hello")
    chat.get_by_role("alert").filter(has_text="temperature").wait_for()
    field(chat, "Temperature").fill("0")
    send(chat, "once more")
    assert answered(chat, 2) == ["", "once more"]
    assert [message["content"] for message in bodies[1]["messages"]] == ["once more"]
    chat.get_by_role("button", name="Regenerate").click()
    answered(chat, 2)
    assert not chat.locator("#chat .error").is_visible()
    send(chat, "then")
    answered(chat, 3)
    contents = [message["content"] for message in bodies[3]["messages"]]
    assert contents == ["once more", "once more", "then"]


def test_regenerating_sends_a_refused_message_again(chat: Any):
    bodies = posted(chat, "/v1/chat/completions")
    send(chat, "first")
    answered(chat)
    field(chat, "Temperature").fill("7")
    send(chat, "hello")
    chat.get_by_role("alert").filter(has_text="temperature").wait_for()
    assert "leave this one out" in chat.locator(".assistant .hint").text_content()
    field(chat, "Temperature").fill("0")
    chat.get_by_role("button", name="Regenerate").click()
    holds(chat, "() => document.querySelectorAll('.assistant .hint').length === 0")
    assert answered(chat, 2) == ["first", "hello"]
    assert [message["content"] for message in bodies[2]["messages"]] == ["first", "first", "hello"]


def test_the_keyboards_focus_stays_among_the_buttons_of_the_chat(chat: Any):
    send(chat, "hello")
    answered(chat)
    field(chat, "Model").select_option("slow")
    chat.get_by_role("button", name="Regenerate").focus()
    chat.keyboard.press("Enter")
    holds(chat, "() => document.activeElement.name === 'stop'")
    chat.keyboard.press("Enter")
    answered(chat)
    assert chat.evaluate("document.activeElement.name") == "message"
    field(chat, "Model").select_option("echo")
    field(chat, "Message").fill("hello")
    chat.get_by_role("button", name="Send").focus()
    chat.keyboard.press("Enter")
    answered(chat, 2)
    assert chat.evaluate("document.activeElement.name") == "send"


def test_the_best_beams_stand_side_by_side(targets: Any, server: Server):
    expected = server.engines["t5"].model.generate("abc", beam=3, n=3, max_new_tokens=6)
    field(targets, "Source").fill("abc")
    targets.get_by_role("spinbutton", name="Targets").fill("3")
    targets.get_by_role("spinbutton", name="Beams").fill("3")
    field(targets, "Max tokens").fill("6")
    field(targets, "Source").press("Control+Enter")
    items = targets.get_by_role("list", name="Targets").get_by_role("listitem")
    items.nth(2).wait_for()
    assert items.locator(".text").all_text_contents() == [target.text for target in expected]
    scores = items.locator("dd").all_text_contents()
    assert [score for score in scores if score != "max tokens"] == [
        f"{target.score:.3f}" for target in expected
    ]
    tops = {round(items.nth(i).bounding_box()["y"]) for i in range(3)}
    assert len(tops) == 1


def test_there_are_at_least_as_many_beams_as_targets(targets: Any):
    number, beams = (targets.get_by_role("spinbutton", name=name) for name in ("Targets", "Beams"))
    for changed, other, value in ((number, beams, "6"), (beams, number, "2"), (beams, number, "1")):
        changed.fill(value)
        other.focus()
        assert other.input_value() == value


def test_as_many_targets_are_shown_as_there_are_beams(targets: Any):
    field(targets, "Source").fill("abc")
    field(targets, "Max tokens").fill("6")
    targets.get_by_role("button", name="Run").focus()
    targets.keyboard.press("Enter")
    items = targets.get_by_role("list", name="Targets").get_by_role("listitem")
    items.nth(3).wait_for()
    assert str(items.count()) == targets.get_by_role("spinbutton", name="Beams").input_value()
    holds(targets, "() => document.activeElement.name === 'send'")


def test_the_keyboards_focus_stays_among_the_buttons_of_the_targets(targets: Any):
    targets.route("**/v1/text2text", lambda route: None)  # there is no answer
    field(targets, "Source").fill("abc")
    for pressed, then in (("Run", "stop"), ("Stop", "send")):
        targets.locator("#text2text").get_by_role("button", name=pressed).focus()
        targets.keyboard.press("Enter")
        holds(targets, "name => document.activeElement.name === name", then)


def test_a_source_that_is_refused(targets: Any):
    bodies = posted(targets, "/v1/text2text")
    targets.get_by_role("button", name="Run").click()
    assert targets.evaluate("document.activeElement.name") == "input"
    assert bodies == []
    field(targets, "Source").fill("abc")
    targets.get_by_role("spinbutton", name="Beams").fill("64")
    targets.get_by_role("button", name="Run").click()
    error = targets.locator("#text2text .error")
    error.wait_for()
    assert "row" in error.text_content()
