"""The page's transcription in a browser, with real weights."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pysubs2
import pytest
import soundfile

import kvcast
from server.page.browsing import field, holds, visit
from server.serving import Server, command, serving, until

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow
RECORDING = ROOT / "examples/sense-and-sensibility.flac"


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("long") / "long.wav"
    samples, rate = soundfile.read(RECORDING)
    soundfile.write(file, np.tile(samples, 10), rate)
    return file


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {
        "tiny": kvcast.load("demo", quantize="none", threads=2),
        "base": kvcast.load("demo-base", threads=2),
    }
    with serving(models) as running:
        yield running


@pytest.fixture(scope="module")
def alone(server: Server) -> Any:
    return list(server.engines["tiny"].model.transcribe(str(RECORDING), word_timestamps=True))


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    with visit(browser, server.url) as opened:
        yield opened


@pytest.fixture(scope="module")
def shown(browser: Any, server: Server) -> Iterator[Any]:
    """A page that has transcribed the recording; tests must not change its transcript."""
    with visit(browser, server.url) as opened:
        choose(opened, RECORDING)
        finished(opened)
        yield opened


def choose(page: Any, file: Path) -> None:
    page.set_input_files("#file", file)


def finished(page: Any) -> None:
    page.get_by_role("button", name="Transcribe again").wait_for()


def texts(page: Any) -> list[str]:
    return page.locator(".transcript p").all_text_contents()


def played(page: Any, ask: Callable[[], None]) -> float:
    """Return where playback starts after `ask`; then pause it."""
    page.evaluate(
        """() => {
          const audio = document.querySelector("audio");
          audio.playbackRate = 0.0625; // so that words last
          audio.play = () => {
            audio.from = audio.currentTime;
            return HTMLMediaElement.prototype.play.call(audio);
          };
        }"""
    )
    ask()
    holds(page, "() => !document.querySelector('audio').paused")
    return page.evaluate(
        """() => {
          const audio = document.querySelector("audio");
          audio.pause();
          audio.playbackRate = 1;
          return audio.from;
        }"""
    )


def saved(page: Any, form: str, folder: Path) -> str:
    with page.expect_download() as downloading:
        page.get_by_role("group", name="Download").get_by_role("button", name=form).click()
    assert downloading.value.suggested_filename == f"sense-and-sensibility.{form}"
    path = folder / form
    downloading.value.save_as(path)
    return path.read_text(encoding="utf-8")


def test_a_file_is_transcribed(shown: Any, alone: Any):
    assert texts(shown) == [segment.text for segment in alone]
    words = shown.locator(".word").all_text_contents()
    assert words == [word.word.strip() for segment in alone for word in segment.words]
    status = shown.get_by_role("status").filter(has_text="segments")
    assert status.text_content() == f"0:24, {len(alone)} segments, English."


def test_segments_appear_as_they_come_and_stopping_keeps_them(page, server, long):
    before = server.status("tiny").finished.get("cancelled", 0)
    choose(page, long)
    holds(
        page,
        "() => document.querySelector('.transcript li')"
        " && document.querySelector('#transcribe [name=stop]').checkVisibility()",
    )
    page.get_by_role("button", name="Stop", exact=True).click()
    finished(page)
    assert "Stopped. What was heard is kept." in page.locator("#transcribe .status").text_content()
    assert "Dashwood" in "".join(texts(page))
    until(lambda: server.status("tiny").finished.get("cancelled", 0) == before + 1)


def test_the_microphone_is_recorded_and_transcribed(browser: Any, server: Server):
    with visit(browser, server.url, permissions=["microphone"]) as page:
        page.get_by_role("button", name="Record").click()
        words = page.get_by_role("log", name="Words so far")
        words.get_by_text("Dashwood").wait_for()  # while it is recorded
        page.get_by_role("button", name="Stop recording").click()
        finished(page)
        assert "Dashwood" in "".join(texts(page))
        length = page.locator("audio").evaluate("audio => audio.duration")
        assert length > 1
        assert not words.is_visible()
        assert page.get_by_role("button", name="Record").is_visible()


def test_a_refused_microphone_is_reported(page: Any):
    page.get_by_role("button", name="Record").click()
    page.get_by_role("alert").filter(has_text="The microphone cannot be used").wait_for()
    assert page.get_by_role("status").count() == 0
    assert not page.get_by_role("button", name="Transcribe again").is_visible()
    assert page.get_by_role("button", name="Record").is_enabled()


def test_words_are_highlighted_during_playback(shown: Any, alone: Any):
    words = [word for segment in alone for word in segment.words]
    shown.evaluate("document.querySelector('audio').currentTime = 0")
    seen = shown.evaluate(
        """async () => {
          const seen = [];
          const watch = new MutationObserver(() => {
            const lit = [...document.querySelectorAll(".word.lit")];
            if (lit.length === 1) seen.push(lit[0].textContent);
          });
          document.querySelectorAll(".word.lit").forEach(lit => seen.push(lit.textContent));
          watch.observe(document.querySelector(".transcript"), {
            subtree: true, attributes: true, attributeFilter: ["class"],
          });
          const audio = document.querySelector("audio");
          await audio.play();
          await new Promise(resolve => {
            audio.ontimeupdate = () => audio.currentTime > 2 && resolve();
          });
          audio.pause();
          return seen;
        }"""
    )
    first = [word.word.strip() for word in words if word.start < 1.5]
    assert len(first) > 3
    assert set(first) <= set(seen)


def test_clicking_a_word_seeks_to_it(shown: Any, alone: Any):
    words = [word for segment in alone for word in segment.words]
    for at in (7, 20):
        start = played(shown, shown.locator(".word").nth(at).click)
        assert start == pytest.approx(words[at].start, abs=0.01)
        holds(shown, "at => document.querySelectorAll('.word')[at].matches('.lit')", at)
    start = played(shown, shown.get_by_role("button", name="Play from 0:10").click)
    assert start == pytest.approx(alone[3].start, abs=0.01)


def test_words_are_reached_by_keyboard(shown: Any, alone: Any):
    words = [word for segment in alone for word in segment.words]
    shown.locator(".word").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowRight"):
        shown.keyboard.press(key)
    start = played(shown, lambda: shown.keyboard.press("Enter"))
    assert start == pytest.approx(words[2].start, abs=0.01)
    shown.keyboard.press("ArrowDown")
    start = played(shown, lambda: shown.keyboard.press(" "))
    assert start == pytest.approx(alone[1].words[0].start, abs=0.01)
    shown.keyboard.press("End")
    assert shown.evaluate("document.activeElement.textContent") == words[-1].word.strip()
    assert shown.locator('.word[tabindex="0"]').count() == 1


def test_downloads_have_the_edited_transcript(page: Any, alone: Any, tmp_path: Path):
    choose(page, RECORDING)
    finished(page)
    page.get_by_role("button", name="Edit").first.click()
    words = field(page, "Text of the segment")
    words.fill(words.input_value().replace("Dashwood", "<Dash & Wood>"))
    words.press("Enter")
    page.get_by_role("button", name="Edit").nth(1).click()
    field(page, "Text of the segment").fill("never mind")
    page.keyboard.press("Escape")
    expected = [segment.text.strip() for segment in alone]
    expected[0] = expected[0].replace("Dashwood", "<Dash & Wood>")
    assert [text.strip() for text in texts(page)] == expected

    assert saved(page, "txt", tmp_path).splitlines() == expected
    assert saved(page, "vtt", tmp_path).startswith("WEBVTT\n")
    assert "&lt;Dash &amp; Wood&gt;" in (tmp_path / "vtt").read_text()
    subtitles = pysubs2.SSAFile.from_string(saved(page, "srt", tmp_path), format_="srt")
    assert [line.start for line in subtitles] == [round(1000 * segment.start) for segment in alone]
    assert [line.end for line in subtitles] == [round(1000 * segment.end) for segment in alone]
    assert [line.plaintext for line in subtitles][1:] == expected[1:]
    document = json.loads(saved(page, "json", tmp_path))
    assert [segment["text"].strip() for segment in document["segments"]] == expected
    assert document["duration"] == pytest.approx(24.73)
    assert document["language"] == "en"
    words, old = document["segments"][0]["words"], alone[0].words
    assert [word["word"] for word in words[3:8]] == ["<Dash", "&", "Wood>", "had", "then"]
    assert (words[3]["start"], words[5]["end"]) == pytest.approx((old[3].start, old[3].end))
    assert words[6:] == [
        {"word": word.word.strip(), "start": word.start, "end": word.end} for word in old[4:]
    ]


RETIMED = {
    "a letter more": ("a bc d", "a bcx d", ["a", "bcx", "d"], [0, 1, 2]),
    "a word less": ("a bc d", "a d", ["a", "d"], [0, 2]),
    "a word more at the end": ("a bc d", "a bc d ef", ["a", "bc", "d", "ef"], [0, 1, 2, 2 + 1 / 3]),
    "a repeated word": ("a a a", "a a a a", ["a", "a", "a", "a"], [0, 1, 2, 2.5]),
    "a word more at the start": ("a bc", "ef a bc", ["ef", "a", "bc"], [0, 2 / 3, 1]),
    "a capital": ("a bc", "A bc", ["A", "bc"], [0, 1]),
    "a word of which only the beginning goes": ("abc d", "bc d", ["bc", "d"], [0, 1]),
    "a word more between": ("a bc", "a ef bc", ["a", "ef", "bc"], [0, 1 / 3, 1]),
    "all": ("a bc d", "xy z", ["xy", "z"], [0, 2]),
    "nothing left": ("a bc d", "", [], []),
    "no spaces": ("甲乙丙", "甲丁丙", ["甲", "丁", "丙"], [0, 1, 2]),
}


@pytest.mark.parametrize("case", RETIMED)
def test_words_around_an_edit_keep_their_times(shown: Any, case: str):
    text, later, expected, starts = RETIMED[case]
    said = list(text) if " " not in text else text.split()
    words = [{"word": word, "start": i, "end": i + 1} for i, word in enumerate(said)]
    retimed = shown.evaluate(
        "async ([segment, text]) => (await import('/page/words.js')).retimed(segment, text)",
        [{"text": text, "start": 0, "end": len(words), "words": words}, later],
    )
    assert [word["word"] for word in retimed] == expected
    assert [word["start"] for word in retimed] == pytest.approx(starts)


def test_languages_and_translation_of_a_model_that_knows_them(page: Any):
    assert not field(page, "Language").is_enabled()
    assert field(page, "Translate to English").count() == 0
    field(page, "Model").select_option("base")
    assert field(page, "Language").input_value() == ""
    field(page, "Language").select_option(label="English")
    page.evaluate(
        """() => {
          const { fetch } = window;
          window.fetch = (path, options) => {
            if (options.body) window.asked = [path, ...options.body.getAll("language")];
            return fetch(path, options);
          };
        }"""
    )
    choose(page, RECORDING)
    finished(page)
    assert page.evaluate("window.asked") == ["/v1/audio/transcriptions", "en"]
    field(page, "Translate to English").check()
    page.get_by_role("button", name="Transcribe again").click()
    holds(page, "() => document.querySelectorAll('.transcript li').length > 1")
    finished(page)
    assert page.evaluate("window.asked[0]") == "/v1/audio/translations"
    assert page.locator(".word").count() == len(texts(page))  # there are no words' times


def test_an_unreadable_file_is_reported(page: Any, tmp_path: Path):
    path = tmp_path / "no.wav"
    path.write_bytes(b"hello" * 100)
    choose(page, path)
    page.get_by_role("alert").filter(has_text="the recording cannot be decoded").wait_for()
    assert not page.get_by_role("group", name="Download").is_visible()


def test_a_lost_server_leaves_the_transcript(browser: Any, long: Path):
    with command("demo", "--quantize", "none") as running, visit(browser, running.url) as page:
        page.get_by_role("button", name="Engine").click()
        choose(page, long)
        page.locator(".transcript li").first.wait_for()
        running.process.kill()
        page.locator("#transcribe .error").filter(has_text="The server does not answer").wait_for()
        assert "What was heard is kept." in page.locator("#transcribe .status").text_content()
        assert "Dashwood" in "".join(texts(page))
        assert page.get_by_role("group", name="Download").is_visible()
        page.locator("#engine .error").filter(has_text="The server does not answer").wait_for()
