"""The panel that transcribes, in a browser; what was heard is given, so no model is needed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from letters_models import saying
from server.page.browsing import chromium, holds, visit
from server.serving import Server, serving

HEARD = [("One two.", 0), ("Three four.", 4), ("Five.", 8)]


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
    return "".join(f"data: {json.dumps(one)}\n\n" for one in events)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


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
    with visit(browser, server.url) as opened:
        opened.route("**/v1/models", lambda route: route.fulfill(json=models))
        opened.route(
            "**/v1/audio/*",
            lambda route: route.fulfill(body=answer(), content_type="text/event-stream"),
        )
        opened.reload()
        opened.get_by_role("tabpanel", name="Transcribe").wait_for()
        yield opened


@pytest.fixture
def heard(page: Any, sound: Path) -> Any:
    choose(page, sound)
    page.get_by_role("button", name="Transcribe again").wait_for()
    return page


def choose(page: Any, file: Path) -> None:
    page.set_input_files("#file", file)


@pytest.mark.parametrize("name", ["four.", "Play from 0:04"])
@pytest.mark.parametrize("key", ["Enter", " "])
def test_what_plays_from_there_plays(heard: Any, name: str, key: str):
    heard.get_by_role("button", name=name).focus()
    heard.keyboard.press(key)
    holds(heard, "() => !document.querySelector('audio').paused")
    start = 5 if name == "four." else 4
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
