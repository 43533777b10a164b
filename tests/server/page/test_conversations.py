"""The page's conversations in a browser: kept, listed, branched and copied."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.text_models import saying
from server.page.browsing import field, holds, posted, visit
from server.page.test_writing_page import answered, send
from server.serving import Server, serving
from server.test_chat_completions import echo

pytestmark = pytest.mark.slow

CODE = "Some code:\n\n```python\na < b\nc\n```\n\nand **more**"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    slow = saying("ab" * 900, before_step=lambda: time.sleep(0.01))
    with serving({"echo": saying(echo), "slow": slow}) as running:
        yield running


@pytest.fixture
def chat(browser: Any, server: Server) -> Iterator[Any]:
    permissions = ["clipboard-read", "clipboard-write"]
    with visit(browser, server.url, "/#chat", permissions=permissions) as page:
        yield page


def listed(page: Any) -> list[str]:
    return page.locator("#conversations .name").all_text_contents()


def begin(page: Any, text: str) -> None:
    page.get_by_role("button", name="New conversation").click()
    send(page, text)
    answered(page)


def act(page: Any, name: str) -> Any:
    group = page.get_by_role("group", name="Current conversation")
    return group.get_by_role("button", name=name, exact=True)


def said(page: Any) -> list[str]:
    return page.locator(".messages .text").all_text_contents()


def test_answers_and_their_code_are_copied(chat: Any):
    send(chat, CODE)
    answered(chat)
    for name, expected in (("Copy answer", CODE), ("Copy code", "a < b\nc")):
        chat.get_by_role("button", name=name).focus()
        chat.keyboard.press("Enter")
        chat.get_by_role("button", name="Copied").wait_for()
        assert chat.evaluate("navigator.clipboard.readText()") == expected
        chat.get_by_role("button", name=name).wait_for()  # it can be copied again


def test_copying_needs_no_secure_page(chat: Any):
    send(chat, "hello")
    answered(chat)
    chat.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    chat.get_by_role("button", name="Copy answer").click()
    chat.get_by_role("button", name="Copied").wait_for()
    field(chat, "Message").focus()
    chat.keyboard.press("Control+V")
    assert field(chat, "Message").input_value() == "hello"


def test_each_answer_shows_its_speed(chat: Any):
    send(chat, "abcdefgh")
    answered(chat)
    speed = chat.locator(".assistant .speed")
    shape = r"\d+ tokens · [\d.]+ tokens/s · [\d.]+ s to first token"
    assert re.fullmatch(shape, speed.text_content())
    before = speed.text_content()
    chat.reload()
    answered(chat)
    assert speed.text_content() == before


def test_all_settings_are_sent(chat: Any):
    bodies = posted(chat, "/v1/chat/completions")
    chat.get_by_text("Settings", exact=True).click()
    field(chat, "Top-p").fill("0.9")
    field(chat, "Seed").fill("7")
    field(chat, "Stop sequences").fill("one\ntwo words\n")
    send(chat, "hello")
    answered(chat)
    expected = {"top_p": 0.9, "seed": 7, "stop": ["one", "two words"]}
    assert {name: bodies[0][name] for name in expected} == expected
    chat.reload()
    assert field(chat, "Top-p").input_value() == "0.9"  # the settings are still open


def test_conversations_are_listed_and_opened(chat: Any):
    send(chat, "one <b>two</b> three four five six seven")
    answered(chat)
    begin(chat, "second")
    names = ["second", "one <b>two</b> three four five six…"]
    assert listed(chat) == names
    chat.reload()
    assert answered(chat) == ["second"]
    chat.get_by_role("button", name="one <b>two</b>").click()
    assert said(chat)[0] == "one <b>two</b> three four five six seven"
    assert chat.locator("#conversations [aria-current]").text_content() == names[1]
    assert listed(chat) == names  # in the order of their last messages
    chat.reload()
    assert said(chat)[0].startswith("one")


def test_a_conversation_has_its_settings(chat: Any):
    chat.get_by_text("Settings", exact=True).click()
    field(chat, "System prompt").fill("be brief")
    send(chat, "first")
    answered(chat)
    chat.get_by_role("button", name="New conversation").click()
    assert field(chat, "System prompt").input_value() == "be brief"
    field(chat, "System prompt").fill("be long")
    send(chat, "second")
    answered(chat)
    for name, prompt in (("first", "be brief"), ("second", "be long")):
        chat.locator("#conversations").get_by_role("button", name=name).click()
        assert field(chat, "System prompt").input_value() == prompt


def test_a_conversation_is_renamed(chat: Any):
    send(chat, "first")
    answered(chat)
    for name, key, expected in (
        ("<i>mine</i>", "Enter", "<i>mine</i>"),
        ("other", "Escape", "<i>mine</i>"),
        ("", "Enter", "first"),
    ):
        act(chat, "Rename").focus()
        chat.keyboard.press("Enter")
        field(chat, "Name of the conversation").fill(name)
        chat.keyboard.press(key)
        assert listed(chat) == [expected]
        assert chat.evaluate("document.activeElement.matches('#conversations .name')")
        chat.reload()
        answered(chat)
        assert listed(chat) == [expected]


def test_a_conversation_is_exported(chat: Any, tmp_path: Path):
    send(chat, "first: **a**/b")
    answered(chat)
    saved = {}
    for form in ("md", "json"):
        with chat.expect_download() as downloading:
            act(chat, f"Download {form}").click()
        assert downloading.value.suggested_filename == f"first ab.{form}"
        downloading.value.save_as(tmp_path / form)
        saved[form] = (tmp_path / form).read_text(encoding="utf-8")
    heads = "# first: **a**/b\n\n## You\n\nfirst: **a**/b\n\n## echo\n\nfirst: **a**/b\n"
    assert saved["md"] == heads
    messages = json.loads(saved["json"])["messages"]
    assert [(one["role"], one["content"]) for one in messages] == [
        ("user", "first: **a**/b"),
        ("assistant", "first: **a**/b"),
    ]


def test_a_conversation_is_deleted_only_if_the_user_agrees(chat: Any):
    send(chat, "secret")
    answered(chat)
    begin(chat, "other")
    chat.locator("#conversations").get_by_role("button", name="secret").click()
    asked: list[str] = []
    chat.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    act(chat, "Delete").click()
    assert asked == ["Delete the conversation “secret”?"]
    assert listed(chat) == ["other", "secret"]
    chat.once("dialog", lambda dialog: dialog.accept())
    act(chat, "Delete").click()
    holds(chat, "() => document.querySelectorAll('#conversations li').length === 1")
    assert said(chat) == []
    assert chat.evaluate("document.activeElement.name") == "message"
    assert chat.evaluate("JSON.stringify([localStorage, sessionStorage])").count("secret") == 0


def test_a_conversation_that_is_deleted_during_an_answer_stays_deleted(chat: Any):
    field(chat, "Model").select_option("slow")
    send(chat, "secret")
    holds(chat, "() => document.querySelector('.assistant .text').textContent.length > 3")
    chat.on("dialog", lambda dialog: dialog.accept())
    act(chat, "Delete").click()
    field(chat, "Model").select_option("echo")
    send(chat, "other")
    answered(chat)
    chat.reload()
    answered(chat)
    assert listed(chat) == ["other"]


def test_an_answer_that_another_conversation_cut_off_is_kept(chat: Any):
    field(chat, "Model").select_option("slow")
    send(chat, "first")
    holds(chat, "() => document.querySelector('.assistant .text').textContent.length > 3")
    chat.get_by_role("button", name="New conversation").click()
    holds(chat, "() => JSON.stringify(localStorage).includes('Stopped.')")
    chat.locator("#conversations").get_by_role("button", name="first").click()
    [text] = answered(chat)
    assert text.startswith("abab")


def test_an_edited_message_is_a_branch(chat: Any):
    bodies = posted(chat, "/v1/chat/completions")
    for count, text in enumerate(("one", "two", "three"), 1):
        send(chat, text)
        answered(chat, count)
    chat.get_by_role("button", name="Edit").nth(1).click()
    assert field(chat, "Edit message").input_value() == "two"
    field(chat, "Edit message").fill("other")
    chat.keyboard.press("Enter")
    assert answered(chat, 2) == ["one", "other"]
    contents = [message["content"] for message in bodies[3]["messages"]]
    assert contents == ["one", "one", "other"]
    chat.reload()
    answered(chat, 2)
    assert chat.locator(".user .place").all_text_contents() == ["2/2"]
    chat.get_by_role("button", name="Previous version").focus()
    chat.keyboard.press("Enter")
    assert said(chat) == ["one", "one", "two", "two", "three", "three"]
    assert chat.locator(".user .place").all_text_contents() == ["1/2"]
    assert chat.evaluate("document.activeElement.ariaLabel") == "Next version"
    chat.keyboard.press("Enter")
    assert said(chat) == ["one", "one", "other", "other"]


def test_the_first_message_is_edited(chat: Any):
    send(chat, "one")
    answered(chat)
    chat.get_by_role("button", name="Edit").click()
    field(chat, "Edit message").fill("other")
    chat.locator(".editing").get_by_role("button", name="Send").click()
    assert answered(chat) == ["other"]
    assert chat.evaluate("document.activeElement.name") == "message"
    chat.get_by_role("button", name="Previous version").click()
    assert said(chat) == ["one", "one"]


def test_an_edit_can_be_cancelled(chat: Any):
    bodies = posted(chat, "/v1/chat/completions")
    send(chat, "one")
    answered(chat)
    for cancel in (lambda: chat.keyboard.press("Escape"), chat.get_by_text("Cancel").first.click):
        chat.get_by_role("button", name="Edit").focus()
        chat.keyboard.press("Enter")
        field(chat, "Edit message").fill("other")
        cancel()
        assert chat.evaluate("document.activeElement.name") == "edit"
        assert said(chat) == ["one", "one"]
    assert len(bodies) == 1


def test_another_answer_is_a_branch(chat: Any):
    send(chat, "one")
    answered(chat)
    chat.get_by_role("button", name="Regenerate").click()
    chat.locator(".assistant .place").get_by_text("2/2").wait_for()
    answered(chat)
    send(chat, "two")
    answered(chat, 2)
    chat.get_by_role("button", name="Previous version").click()
    assert said(chat) == ["one", "one"]
    chat.get_by_role("button", name="Next version").click()
    assert said(chat) == ["one", "one", "two", "two"]


def test_branches_cannot_be_changed_while_an_answer_is_written(chat: Any):
    send(chat, "one")
    answered(chat)
    field(chat, "Model").select_option("slow")
    chat.get_by_role("button", name="Regenerate").click()
    chat.locator(".assistant .place").wait_for()
    for name in ("Edit", "Previous version"):
        assert chat.get_by_role("button", name=name).is_disabled()
    chat.get_by_role("button", name="Stop", exact=True).click()
    answered(chat)
    assert chat.get_by_role("button", name="Edit").is_enabled()
    assert chat.get_by_role("button", name="Next version").is_disabled()  # it is the last


def test_two_tabs_with_one_conversation_lose_no_message(browser: Any, server: Server, chat: Any):
    send(chat, "one")
    answered(chat)
    with visit(browser, server.url, "/#chat") as other:
        answered(other)
        send(other, "two")
        answered(other, 2)
        send(chat, "three")
        answered(chat, 2)
        chat.reload()
        answered(chat, 2)
        assert chat.locator(".user .place").all_text_contents() == ["2/2"]
        chat.get_by_role("button", name="Previous version").click()
        assert said(chat) == ["one", "one", "two", "two"]


def test_another_tabs_conversations_are_listed(browser: Any, server: Server, chat: Any):
    with visit(browser, server.url, "/#chat") as other:
        send(other, "there")
        answered(other)
        chat.locator("#conversations").get_by_role("button", name="there").wait_for()


def test_the_conversation_of_an_earlier_version_is_taken_over(chat: Any):
    turn = {"content": "old", "name": "echo", "thoughts": "", "remark": ""}
    turns = [{**turn, "role": "user"}, {**turn, "role": "assistant"}]
    kept = json.dumps({"settings": {"system": "be brief"}, "turns": turns})
    chat.evaluate(
        "kept => { sessionStorage.clear(); localStorage['kvcast-conversation'] = kept }", kept
    )
    chat.reload()
    assert answered(chat) == ["old"]
    assert listed(chat) == ["old"]


MESSAGE = {"role": "user", "content": "odd", "name": "", "thoughts": "", "remark": "", "speed": ""}
ODD = {
    "a circle": [{**MESSAGE, "id": "a", "parent": "b"}, {**MESSAGE, "id": "b", "parent": "a"}],
    "its own parent": [{**MESSAGE, "id": "a", "parent": "a"}],
    "a number": [{**MESSAGE, "id": "a", "parent": None, "content": 1}],
    "no role": [{**MESSAGE, "id": "a", "parent": None, "role": "system"}],
    "nothing": [None],
    "no list": 1,
}


@pytest.mark.parametrize("case", ODD)
def test_odd_messages_in_the_storage_are_left_out(chat: Any, case: str):
    kept = {"id": "x", "changed": 1, "title": 2, "settings": 3, "messages": ODD[case], "leaf": "a"}
    chat.evaluate("kept => { localStorage['kvcast-conversation:x'] = kept }", json.dumps(kept))
    chat.evaluate("sessionStorage.clear()")
    chat.reload()
    chat.get_by_role("tabpanel", name="Chat").wait_for()
    assert said(chat) == []
    send(chat, "hello")
    assert answered(chat) == ["hello"]


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_the_list_is_open_where_there_is_room(browser: Any, server: Server, size: tuple[int, int]):
    with visit(browser, server.url, "/#chat", size=size) as page:
        button = page.get_by_role("button", name="Conversations", exact=True)
        wide = size[0] > 1000
        assert page.locator("#conversations").is_visible() == wide
        assert button.get_attribute("aria-expanded") == str(wide).lower()
        send(page, "one")
        answered(page)
        button.click()
        assert page.locator("#conversations").is_visible() != wide
        page.reload()
        answered(page)
        assert not page.locator("#conversations").is_visible()
        if not wide:
            button.click()
            page.locator("#conversations").get_by_role("button", name="one").click()
            assert not page.locator("#conversations").is_visible()
