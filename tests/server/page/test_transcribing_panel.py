"""The transcription panel in a browser, with scripted responses instead of a model."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from kit.text_models import saying
from server.page.browsing import field, holds, visit
from server.serving import Server, serving

pytestmark = pytest.mark.slow

TRANSCRIPT = [("One two.", 0), ("Three four.", 4), ("Five.", 8)]
ASKED = "Throw away what you edited"
FOCUS = "document.activeElement.name"


def answer() -> str:
    events: list[dict[str, Any]] = []
    for at, (text, start) in enumerate(TRANSCRIPT):
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


@contextmanager
def panel(browser: Any, server: Server, languages: list[str], **can: Any) -> Iterator[Any]:
    abilities = {"language": "detected", "hints": True, "translates": False} | can
    ear = {"id": "ear", "kind": "speech", "languages": languages, "abilities": abilities}
    answers = {
        "**/v1/models": {"json": {"data": [ear]}},
        "**/v1/audio/*": {"body": answer(), "content_type": "text/event-stream"},
    }
    with visit(browser, server.url, answers=answers) as opened:
        opened.get_by_role("tabpanel", name="Transcribe").wait_for()
        yield opened


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    with panel(browser, server, ["en"], words=True, live=True) as opened:
        yield opened


@pytest.fixture
def shown(page: Any, sound: Path) -> Any:
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
    page.get_by_role("button", name=name, exact=True).focus()
    page.keyboard.press("Enter")


def dialogs(page: Any, agree: bool) -> list[str]:
    """Return a list that collects the dialogs' messages; `agree` is the answer."""
    asked: list[str] = []

    def said(dialog: Any) -> None:
        asked.append(dialog.message)
        if agree:
            dialog.accept()
        else:
            dialog.dismiss()

    page.on("dialog", said)
    return asked


def test_words_and_times_start_playback(shown: Any):
    for name, start in (("four.", 5), ("Play from 0:04", 4)):
        for key in ("Enter", " "):
            rewind = "const audio = document.querySelector('audio'); audio.pause();"
            shown.evaluate(f"() => {{ {rewind} audio.currentTime = 0; }}")
            holds(shown, "() => document.querySelector('audio').paused")
            shown.get_by_role("button", name=name).focus()
            shown.keyboard.press(key)
            holds(shown, "() => !document.querySelector('audio').paused")
            assert shown.evaluate("document.querySelector('audio').currentTime") >= start


def test_seeking_never_starts_a_second_animation_loop(shown: Any):
    frames, asked = shown.evaluate(
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


def microphone(page: Any) -> None:
    page.evaluate(
        """() => {
          const { stream } = new AudioContext().createMediaStreamDestination();
          navigator.mediaDevices.getUserMedia = async () => stream;
        }"""
    )


def listening(page: Any, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Script the events of a live session; returns a list that collects the page's messages."""
    sent: list[dict[str, Any]] = []

    def connected(socket: Any) -> None:
        def answer(message: str) -> None:
            sent.append(json.loads(message))
            kinds = [event["type"] for event in sent]
            if kinds[-1] == "input_audio_buffer.append" and kinds.count(kinds[-1]) == 1:
                for event in told:
                    socket.send(json.dumps(event))

        socket.on_message(answer)

    page.route_web_socket("**/v1/realtime?*", connected)
    return sent


def spoken(kind: str, item: str, **fields: Any) -> dict[str, Any]:
    place = "conversation.item.input_audio_transcription"
    return {"type": f"{place}.{kind}", "item_id": item, **fields}


def begun(item: str, start: float) -> dict[str, Any]:
    kind = "input_audio_buffer.speech_started"
    return {"type": kind, "audio_start_ms": 1000 * start, "item_id": item}


TURNS = [
    begun("a", 0.5),
    spoken("delta", "a", delta="Live"),
    spoken("delta", "a", delta=" words."),
    {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": 2500, "item_id": "a"},
    {"type": "input_audio_buffer.committed", "item_id": "a"},
    begun("b", 3),
    spoken("completed", "a", transcript="Live words."),
    spoken("delta", "b", delta="And mo"),
]


def test_live_words_are_shown_during_a_recording(page: Any):
    sent = listening(page, TURNS)
    microphone(page)
    page.get_by_role("button", name="Record").click()
    page.get_by_role("log", name="Words so far").get_by_text("Live words. And mo").wait_for()
    page.get_by_role("button", name="Stop recording").click()
    page.get_by_role("button", name="Transcribe again").wait_for()
    assert texts(page) == [text for text, _ in TRANSCRIPT]
    assert not page.get_by_role("log", name="Words so far").is_visible()
    session = sent[0]["session"]["audio"]["input"]
    assert session["transcription"] == {"model": "ear"}
    assert session["format"]["type"] == "audio/pcm"
    sound = [event["audio"] for event in sent if event["type"].endswith("append")]
    samples = [len(base64.b64decode(piece)) // 2 for piece in sound]
    length = page.locator("audio").evaluate("audio => audio.duration")
    assert sum(samples) / session["format"]["rate"] == pytest.approx(length, abs=0.01)
    while sent[-1]["type"] != "input_audio_buffer.clear":
        page.wait_for_timeout(20)
    kinds = [event["type"] for event in sent if not event["type"].endswith("append")]
    assert kinds == ["session.update", "input_audio_buffer.commit", "input_audio_buffer.clear"]


def test_live_words_are_kept_if_the_recording_is_refused(page: Any):
    listening(page, TURNS)
    microphone(page)
    refused = {"error": {"message": "the queue is full"}}
    page.route("**/v1/audio/*", lambda route: route.fulfill(status=429, json=refused))
    page.get_by_role("button", name="Record").click()
    page.get_by_text("And mo").wait_for()
    page.get_by_role("button", name="Stop recording").click()
    page.get_by_role("alert").filter(has_text="the queue is full").wait_for()
    assert texts(page) == ["Live words.", "And mo"]
    assert "What was heard is kept." in page.locator("#transcribe .status").text_content()


BUSY = {"type": "error", "error": {"code": "busy", "message": "too many live sessions"}}
FAILED = spoken("failed", "b", error={"message": "too many live sessions"})


@pytest.mark.parametrize("told", [[BUSY], [*TURNS, FAILED]])
def test_a_recording_continues_without_live_words(page: Any, told: list[dict[str, Any]]):
    listening(page, told)
    record(page, "Words are not shown while you speak (too many live sessions)")
    assert not page.get_by_text("Words are not shown").is_visible()


def test_a_key_that_browsers_cannot_send_is_reported(page: Any):
    page.evaluate("sessionStorage.setItem('kvcast-key', 'correct horse')")
    page.reload()
    record(page, "the key has characters that browsers do not send with live audio")


def record(page: Any, shown: str) -> None:
    microphone(page)
    page.get_by_role("button", name="Record").click()
    page.get_by_text(shown).wait_for()
    page.get_by_role("button", name="Stop recording").click()
    page.get_by_role("button", name="Transcribe again").wait_for()
    assert texts(page) == [text for text, _ in TRANSCRIPT]


OUTCOMES = {
    "all is transcribed": ([{"type": "input_audio_buffer.committed", "item_id": "b"},
        {"type": "input_audio_buffer.cleared"}, spoken("completed", "b", transcript="And more.")],
        ["Live words.", "And more."]),
    "a turn that is too short": ([
        {"type": "error", "error": {"code": "input_audio_buffer_commit_empty", "message": "-"}},
        {"type": "input_audio_buffer.cleared"}], ["Live words."]),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTCOMES)
def test_a_live_session_ends_after_its_last_transcript(page: Any, case: str):
    rest, expected = OUTCOMES[case]
    listening(page, TURNS)
    outcome = page.evaluate(
        """async ([told, rest]) => {
          const { Live } = await import("/page/live.js");
          const live = new Live({ model: "ear", language: "", rate: 8000 }, () => {}, () => {});
          live.add(new Int16Array(32000));
          live.finish();
          for (const event of told) live.take(event);
          const seen = [live.going];
          for (const event of rest) live.take(event);
          return [...seen, live.going, live.segments.map(({ text }) => text)];
        }""",
        [TURNS, rest],
    )
    assert outcome == [True, False, expected]


def test_the_keyboards_focus_stays_at_the_button_that_records(page: Any):
    microphone(page)
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


def test_edits_are_thrown_away_only_if_the_user_agrees(shown: Any):
    asked = dialogs(shown, agree=False)
    shown.get_by_role("button", name="Transcribe again").click()
    holds(shown, "() => document.querySelectorAll('.transcript li').length === 3")
    assert asked == []
    edit(shown, 0, "Won too.")
    shown.get_by_role("button", name="Transcribe again").click()
    assert len(asked) == 1
    assert ASKED in asked[0]
    assert texts(shown) == ["Won too.", "Three four.", "Five."]


def test_another_recording_leaves_the_edited_one(shown: Any):
    asked = dialogs(shown, agree=True)
    shown.get_by_role("button", name="Edit").first.click()
    field(shown, "Text of the segment").fill("Won too.")  # and it is not ended
    drop(shown, ".drop")
    shown.locator(".player .name").get_by_text("dropped.wav").wait_for()
    shown.get_by_role("button", name="Transcribe again").wait_for()
    assert texts(shown)[0] == "One two."
    shown.get_by_role("button", name="sound.wav").click()
    assert texts(shown)[0] == "Won too."
    assert asked == []


def test_edits_are_thrown_away_if_the_user_agrees(shown: Any):
    edit(shown, 0, "Won too.")
    asked = dialogs(shown, agree=True)
    for _ in range(2):  # there are none the second time
        shown.get_by_role("button", name="Transcribe again").click()
        holds(
            shown,
            "() => document.querySelector('.transcript p')?.textContent === ' One two.'",
        )
    assert len(asked) == 1


def test_a_segment_that_is_edited_to_nothing_is_dropped(shown: Any):
    for at, expected in ((1, ["One two.", "Five."]), (1, ["One two."]), (0, [])):
        edit(shown, at, "  ")
        assert texts(shown) == expected
        assert shown.locator(".word").count() == len(" ".join(expected).split())
        assert shown.locator('.word[tabindex="0"]').count() == (1 if expected else 0)
        place = "edit" if expected else "transcript"
        assert shown.evaluate(f"document.activeElement.matches('.{place}')")


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


def test_a_model_is_asked_for_no_more_than_it_can(browser: Any, server: Server, sound: Path):
    can = {"language": "told", "hints": False, "words": False, "live": False}
    with panel(browser, server, ["de", "en"], **can) as page:
        page.evaluate(
            """() => {
              const { fetch } = window;
              window.asked = [];
              window.fetch = (address, options) => {
                if (options?.body instanceof FormData) window.asked.push(...options.body);
                return fetch(address, options);
              };
            }"""
        )
        choose(page, sound)
        page.get_by_role("button", name="Transcribe again").wait_for()
        asked = page.evaluate("asked.filter(([, value]) => typeof value === 'string')")
        assert ["language", "en"] in asked
        assert ["timestamp_granularities[]", "segment"] in asked
        assert ["timestamp_granularities[]", "word"] not in asked
        assert page.locator("[name=language] option").all_text_contents() == ["English", "German"]
        assert page.locator("[name=translate]").is_hidden()
