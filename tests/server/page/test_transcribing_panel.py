"""The panel that transcribes, in a browser; what was heard is given, so no model is needed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from kit.text_models import saying
from server.page.browsing import field, holds, visit
from server.serving import Server, serving

HEARD = [("One two.", 0), ("Three four.", 4), ("Five.", 8)]
ASKED = "Throw away what you edited"
FOCUS = "document.activeElement.name"


def answer() -> str:
    """Return the stream of a recording of 12 seconds."""
    events: list[dict[str, Any]] = []
    for at, (text, start) in enumerate(HEARD):
        words = [
            {"word": word, "start": start + i, "end": start + i + 1}
            for i, word in enumerate(text.split())
        ]
        segment = {"id": at, "start": start, "end": start + 4, "text": f" {text}", "words": words}
        events.append({"type": "transcript.text.segment", **segment})
    events.append({"type": "transcript.text.done", "language": "en", "duration": 12})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving({"hello": saying("hello")}) as running:
        yield running


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "sound.wav"
    soundfile.write(path, np.zeros(12 * 8000), 8000)
    return path


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    models = {"data": [{"id": "ear", "kind": "speech", "languages": ["en"]}]}
    answers = {
        "**/v1/models": {"json": models},
        "**/v1/audio/*": {"body": answer(), "content_type": "text/event-stream"},
    }
    with visit(browser, server.url, answers=answers) as opened:
        opened.get_by_role("tabpanel", name="Transcribe").wait_for()
        yield opened


@pytest.fixture
def heard(page: Any, sound: Path) -> Any:
    choose(page, sound)
    page.get_by_role("button", name="Transcribe again").wait_for()
    return page


def choose(page: Any, file: Path) -> None:
    page.set_input_files("#file", file)


def texts(page: Any) -> list[str]:
    return [text.strip() for text in page.locator(".transcript p").all_text_contents()]


def edit(page: Any, at: int, text: str) -> None:
    page.get_by_role("button", name="Edit").nth(at).click()
    field(page, "Text of the segment").fill(text)
    page.keyboard.press("Enter")


def press(page: Any, name: str) -> None:
    """Activate a button by the keyboard."""
    page.get_by_role("button", name=name, exact=True).focus()
    page.keyboard.press("Enter")


def dialogs(page: Any, agree: bool) -> list[str]:
    """Return what will have been asked; this is how it is answered."""
    asked: list[str] = []

    def said(dialog: Any) -> None:
        asked.append(dialog.message)
        if agree:
            dialog.accept()
        else:
            dialog.dismiss()

    page.on("dialog", said)
    return asked


def test_what_plays_from_there_plays(heard: Any):
    for name, start in (("four.", 5), ("Play from 0:04", 4)):
        for key in ("Enter", " "):
            rewind = "const audio = document.querySelector('audio'); audio.pause();"
            heard.evaluate(f"() => {{ {rewind} audio.currentTime = 0; }}")
            holds(heard, "() => document.querySelector('audio').paused")
            heard.get_by_role("button", name=name).focus()
            heard.keyboard.press(key)
            holds(heard, "() => !document.querySelector('audio').paused")
            assert heard.evaluate("document.querySelector('audio').currentTime") >= start


def test_a_word_is_lit_by_one_chain_of_frames_however_often_the_sound_moves(heard: Any):
    frames, asked = heard.evaluate(
        """async () => {
          const { requestAnimationFrame } = window;
          let asked = 0;
          window.requestAnimationFrame = (then) => {
            asked += 1;
            return requestAnimationFrame(then);
          };
          const audio = document.querySelector("audio");
          await audio.play();
          for (let at = 1; at < 8; at += 1) {
            const sought = new Promise((resolve) => (audio.onseeked = resolve));
            audio.currentTime = at;
            await sought;
          }
          asked = 0;
          for (let frame = 0; frame < 10; frame += 1) {
            await new Promise((resolve) => requestAnimationFrame(resolve));
          }
          return [10, asked];
        }"""
    )
    assert 0 < asked <= frames + 1


def test_the_keyboards_focus_goes_to_the_button_that_takes_anothers_place(page: Any, sound: Path):
    page.route("**/v1/audio/*", lambda route: None)  # there is no answer
    choose(page, sound)
    for pressed, then in (("Stop", "again"), ("Transcribe again", "stop"), ("Stop", "again")):
        press(page, pressed)
        holds(page, f"name => {FOCUS} === name", then)


def test_the_keyboards_focus_stays_at_the_button_that_records(page: Any):
    page.evaluate(
        """() => {
          const { stream } = new AudioContext().createMediaStreamDestination();
          navigator.mediaDevices.getUserMedia = async () => stream;
        }"""
    )
    press(page, "Record")
    page.get_by_role("button", name="Stop recording").wait_for()
    assert page.evaluate(FOCUS) == "record"
    press(page, "Stop recording")
    page.get_by_role("button", name="Transcribe again").wait_for()
    assert page.evaluate(FOCUS) == "record"


def drop(page: Any, selector: str, kind: str = "file", name: str = "dropped.wav") -> list[bool]:
    """Drag something over an element and drop it; return which of the events were prevented."""
    return page.evaluate(
        """([selector, kind, name]) => {
          const dataTransfer = new DataTransfer();
          if (kind === "file") dataTransfer.items.add(new File(["abc"], name));
          else dataTransfer.setData("text/plain", "abc");
          const options = { dataTransfer, bubbles: true, cancelable: true };
          const element = document.querySelector(selector);
          return ["dragover", "drop"].map(
            (name) => !element.dispatchEvent(new DragEvent(name, options)),
          );
        }""",
        [selector, kind, name],
    )


def test_a_file_is_taken_wherever_it_is_dropped(page: Any):
    for number, place in enumerate(("html", ".top", "#engine", ".drop")):
        name = f"{number}.wav"
        assert drop(page, place, name=name) == [True, True]
        page.locator(".player .name").filter(has_text=name).wait_for()
        page.get_by_role("button", name="Transcribe again").wait_for()
        assert page.locator(".drop.over").count() == 0


def test_a_file_that_is_dropped_on_another_panel_does_not_leave_the_page(page: Any):
    page.get_by_role("tab", name="Chat").click()
    assert drop(page, "html") == drop(page, "#chat") == [True, True]
    assert page.locator(".player .name").text_content() == ""


def test_a_text_is_dropped_as_ever(page: Any):
    assert drop(page, "html", "text") == [False, False]


def test_edits_are_thrown_away_only_if_the_user_agrees(heard: Any, sound: Path):
    asked = dialogs(heard, agree=False)
    heard.get_by_role("button", name="Transcribe again").click()
    holds(heard, "() => document.querySelectorAll('.transcript li').length === 3")
    assert asked == []
    edit(heard, 0, "Won too.")
    heard.get_by_role("button", name="Transcribe again").click()
    choose(heard, sound)
    drop(heard, ".drop")
    heard.get_by_role("button", name="Record").click()
    assert len(asked) == 4
    assert all(ASKED in body for body in asked)
    assert texts(heard) == ["Won too.", "Three four.", "Five."]
    assert heard.locator(".player .name").text_content() == "sound.wav"


def test_edits_are_thrown_away_if_the_user_agrees(heard: Any):
    edit(heard, 0, "Won too.")
    asked = dialogs(heard, agree=True)
    for _ in range(2):  # there are none the second time
        heard.get_by_role("button", name="Transcribe again").click()
        holds(heard, "() => document.querySelector('.transcript p')?.textContent === ' One two.'")
    assert len(asked) == 1


def test_what_is_still_being_edited_is_an_edit(heard: Any):
    asked = dialogs(heard, agree=False)
    heard.get_by_role("button", name="Edit").first.click()
    field(heard, "Text of the segment").fill("Won too.")
    drop(heard, ".drop")
    assert len(asked) == 1
    assert texts(heard)[0] == "Won too."


def test_a_recording_that_may_not_take_the_transcripts_place_is_saved(heard: Any, tmp_path: Path):
    heard.evaluate(
        """() => {
          const { stream } = new AudioContext().createMediaStreamDestination();
          navigator.mediaDevices.getUserMedia = async () => stream;
        }"""
    )
    dialogs(heard, agree=False)
    heard.get_by_role("button", name="Record").click()
    heard.get_by_role("button", name="Stop recording").wait_for()
    edit(heard, 0, "Won too.")
    with heard.expect_download() as downloading:
        heard.get_by_role("button", name="Stop recording").click()
    downloading.value.save_as(tmp_path / "recording.wav")
    assert soundfile.info(tmp_path / "recording.wav").channels == 1
    assert texts(heard)[0] == "Won too."


def test_a_segment_that_is_edited_to_nothing_is_dropped(heard: Any):
    for at, expected in ((1, ["One two.", "Five."]), (1, ["One two."]), (0, [])):
        edit(heard, at, "  ")
        assert texts(heard) == expected
        assert heard.locator(".word").count() == len(" ".join(expected).split())
        assert heard.locator('.word[tabindex="0"]').count() == (1 if expected else 0)
        place = "edit" if expected else "transcript"
        assert heard.evaluate(f"document.activeElement.matches('.{place}')")


def test_a_segment_without_text_is_no_line_and_no_word(page: Any):
    outcome = page.evaluate(
        """async () => {
          const { FORMATS } = await import("/page/formats.js");
          const { pieces } = await import("/page/words.js");
          const empty = { text: " ", start: 0, end: 1, words: [] };
          const segments = [empty, { ...empty, text: " hello" }, empty];
          return [FORMATS.txt.write({ segments }), pieces(empty).found];
        }"""
    )
    assert outcome == ["hello\n", []]
