"""The page's queue of recordings, and their transcripts, with scripted responses."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.text_models import saying
from server.page.browsing import field, holds
from server.page.test_transcribing_panel import answer, choose, dialogs, edit, panel, texts
from server.serving import Server, serving

pytestmark = pytest.mark.slow

FIRST = ["One two.", "Three four.", "Five."]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving({"hello": saying("hello")}) as running:
        yield running


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    with panel(browser, server, ["en"], words=True) as opened:
        yield opened


@pytest.fixture
def held(page: Any) -> list[Any]:
    """Requests that wait for `reply`."""
    routes: list[Any] = []
    page.route("**/v1/audio/*", lambda route: routes.append(route))
    return routes


def reply(page: Any, held: list[Any], at: int, **response: Any) -> None:
    while len(held) <= at:
        page.wait_for_timeout(20)
    held[at].fulfill(**({"body": answer(), "content_type": "text/event-stream"} | response))


def files(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "mimeType": "audio/wav", "buffer": b"abc"} for name in names]


def ended(page: Any, count: int) -> None:
    holds(
        page,
        "n => [...document.querySelectorAll('.recordings .state')]"
        ".filter(one => /segment|Failed|Stopped/.test(one.textContent)).length === n",
        count,
    )


def states(page: Any) -> list[str]:
    return page.locator(".recordings .state").all_text_contents()


def pick(page: Any, name: str) -> None:
    page.get_by_role("region", name="Recordings").get_by_role("button", name=name).click()


def fields(request: Any) -> dict[str, str]:
    """Return the texts of a form that was sent."""
    boundary = request.headers["content-type"].split("boundary=")[1]
    parts = request.post_data_buffer.split(f"--{boundary}".encode())[1:-1]
    found = {}
    for part in parts:
        head, _, body = part.partition(b"\r\n\r\n")
        name = head.split(b'name="')[1].split(b'"')[0].decode()
        found[name] = body.removesuffix(b"\r\n").decode()
    return found


def test_several_files_are_transcribed_one_after_the_other(page: Any, held: list[Any]):
    choose(page, files("a.wav", "<b>b.wav", "c.wav"))
    reply(page, held, 0)
    ended(page, 1)
    assert states(page) == ["0:12, 3 segments, English.", "Listening…", "Waiting"]
    assert texts(page) == FIRST
    pick(page, "<b>b.wav")
    assert texts(page) == []
    reply(page, held, 1, status=400, json={"error": {"message": "it is damaged"}}, body=None)
    page.get_by_role("alert").filter(has_text="it is damaged").wait_for()
    reply(page, held, 2)
    ended(page, 3)
    assert states(page)[1] == "Failed."
    pick(page, "c.wav")
    assert texts(page) == FIRST
    assert not page.get_by_text("it is damaged").is_visible()
    assert len(held) == 3


def test_stopping_one_goes_on_with_the_next(page: Any, held: list[Any]):
    choose(page, files("a.wav", "b.wav", "c.wav"))
    pick(page, "b.wav")
    stop = page.get_by_role("button", name="Stop", exact=True)
    stop.click()  # it waits
    pick(page, "a.wav")
    stop.click()
    reply(page, held, 1)
    ended(page, 3)
    assert states(page) == ["Stopped.", "Stopped.", "0:12, 3 segments, English."]


def test_files_are_dropped_together(page: Any):
    page.evaluate(
        """() => {
          const dataTransfer = new DataTransfer();
          for (const name of ["a.wav", "b.wav"]) dataTransfer.items.add(new File(["abc"], name));
          const options = { dataTransfer, bubbles: true, cancelable: true };
          document.body.dispatchEvent(new DragEvent("drop", options));
        }"""
    )
    ended(page, 2)
    assert page.locator(".recordings .name").all_text_contents() == ["a.wav", "b.wav"]


@pytest.mark.parametrize("form", ["txt", "srt", "vtt", "json"])
def test_all_transcripts_are_downloaded_together(page: Any, tmp_path: Path, form: str):
    choose(page, files("a.wav", "ä b.wav", "a.mp3"))
    ended(page, 3)
    pick(page, "ä b.wav")
    edit(page, 0, "Wön too.")
    with page.expect_download() as downloading:
        group = page.get_by_role("group", name="Download all")
        group.get_by_role("button", name=form).click()
    assert downloading.value.suggested_filename == f"transcripts-{form}.zip"
    downloading.value.save_as(tmp_path / "all.zip")
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [f"a.{form}", f"ä b.{form}", f"a (2).{form}"]
        written = [archive.read(name).decode() for name in archive.namelist()]
    assert written[0] == written[2]
    assert "One two." in written[0]
    assert "Wön too." in written[1]


def test_transcripts_survive_a_reload(page: Any):
    choose(page, files("a.wav", "b.wav"))
    ended(page, 2)
    edit(page, 0, "Won too.")
    page.reload()
    ended(page, 2)
    pick(page, "a.wav")
    assert texts(page) == ["Won too.", *FIRST[1:]]
    assert page.get_by_text("choose the file again to play it").is_visible()
    for element in (page.locator("audio"), page.get_by_role("button", name="Transcribe again")):
        assert not element.is_visible()
    edit(page, 1, "Tree for.")
    pick(page, "b.wav")
    page.reload()
    pick(page, "a.wav")
    assert texts(page) == ["Won too.", "Tree for.", "Five."]


def test_a_reload_keeps_what_was_heard_so_far_and_asks_first(browser: Any, server: Server):
    with panel(browser, server, ["en"]) as page:
        page.evaluate(
            """(events) => {
              const { fetch } = window;
              window.fetch = (address, options) => {
                if (!(options?.body instanceof FormData)) return fetch(address, options);
                const start = (stream) => stream.enqueue(new TextEncoder().encode(events));
                return Promise.resolve(new Response(new ReadableStream({ start })));
              };
            }""",
            answer().split("\n\n")[0] + "\n\n",
        )
        choose(page, files("a.wav"))
        holds(page, "() => document.querySelectorAll('.transcript li').length === 1")
        page.locator(".transcript .time").click()  # browsers ask only those who did something
        asked: list[str] = []
        page.once("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
        page.reload()
        page.get_by_role("status").get_by_text("Cut off.").wait_for()
        assert texts(page) == ["One two."]
        assert asked == ["beforeunload"]


def test_full_browser_storage_is_reported(page: Any):
    page.evaluate("() => { Storage.prototype.setItem = () => { throw new Error('no room'); }; }")
    choose(page, files("a.wav"))
    page.get_by_role("status").get_by_text("a reload would lose it").wait_for()
    assert texts(page) == FIRST


@pytest.mark.parametrize("kept", ["{", "null", '{"id": "x"}', '{"id": "x", "segments": [1]}'])
def test_invalid_stored_transcripts_are_ignored(page: Any, kept: str):
    page.evaluate("kept => { localStorage['kvcast-transcript:x'] = kept }", kept)
    page.reload()
    choose(page, files("a.wav"))
    holds(page, "() => document.querySelectorAll('.transcript li').length === 3")
    assert page.locator(".recordings").is_hidden()  # there is but one


def test_recordings_are_removed_only_if_the_user_agrees(page: Any):
    choose(page, files("a.wav", "b.wav", "c.wav"))
    ended(page, 3)
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Remove", exact=True).click()
    assert page.locator(".recordings li").count() == 3
    asked = dialogs(page, agree=True)
    page.get_by_role("button", name="Remove", exact=True).focus()
    page.keyboard.press("Enter")
    assert page.locator(".recordings .name").all_text_contents() == ["b.wav", "c.wav"]
    assert page.evaluate("document.activeElement.id") == "file"
    page.get_by_role("button", name="Remove all").click()
    assert asked == [
        "Remove “a.wav” and its transcript?",
        "Remove all 2 recordings and their transcripts?",
    ]
    assert page.locator(".recordings, .heard").filter(visible=True).count() == 0
    page.reload()
    assert page.locator(".transcript li").count() == 0


def test_a_removed_recording_is_not_transcribed(page: Any, held: list[Any]):
    dialogs(page, agree=True)
    choose(page, files("a.wav", "b.wav"))
    page.get_by_role("button", name="Remove all").click()
    choose(page, files("c.wav"))
    reply(page, held, 1)
    holds(page, "() => document.querySelectorAll('.transcript li').length === 3")
    assert page.locator(".player .name").text_content() == "c.wav"
    assert len(held) == 2


def test_a_transcript_is_copied(browser: Any, server: Server, page: Any):
    [profile] = browser.contexts
    profile.grant_permissions(["clipboard-read", "clipboard-write"])
    choose(page, files("a.wav"))
    page.get_by_role("button", name="Copy transcript").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == " ".join(FIRST)


def test_more_options_are_sent(page: Any, held: list[Any]):
    page.get_by_text("More", exact=True).click()
    field(page, "Word timestamps").uncheck()
    field(page, "Skip silence").check()
    field(page, "Prompt").fill("A novel. ")
    field(page, "Names and terms").fill("Dashwood")
    choose(page, files("a.wav"))
    reply(page, held, 0)
    assert fields(held[0].request) == {
        "model": "ear",
        "stream": "true",
        "response_format": "verbose_json",
        "timestamp_granularities[]": "segment",
        "vad": "true",
        "prompt": "A novel.",
        "hotwords": "Dashwood",
        "file": "abc",
    }


def test_options_that_a_model_lacks_are_hidden(browser: Any, server: Server):
    with panel(browser, server, ["en"], hints=False, words=False) as page:
        page.get_by_text("More", exact=True).click()
        labels = page.locator("#transcribe .more label").filter(visible=True).all_text_contents()
        assert [label.split("\n")[0].strip() for label in labels] == [
            "Skip silence (VAD)",
            "Line width of subtitles",
            "Lines of a subtitle",
        ]


def test_subtitles_have_lines_of_a_width(page: Any, tmp_path: Path):
    page.get_by_text("More", exact=True).click()
    field(page, "Line width of subtitles").fill("6")
    field(page, "Lines of a subtitle").fill("1")
    choose(page, files("a.wav"))
    with page.expect_download() as downloading:
        page.get_by_role("group", name="Download", exact=True).get_by_text("srt").click()
    downloading.value.save_as(tmp_path / "srt")
    cues = [cue.splitlines()[1:] for cue in (tmp_path / "srt").read_text().split("\n\n")]
    assert cues == [
        ["00:00:00,000 --> 00:00:01,000", "One"],
        ["00:00:01,000 --> 00:00:04,000", "two."],
        ["00:00:04,000 --> 00:00:05,000", "Three"],
        ["00:00:05,000 --> 00:00:08,000", "four."],
        ["00:00:08,000 --> 00:00:12,000", "Five."],
    ]


LAYOUTS = {
    "lines": ({"width": 7}, ["a bb\nccc", "dddd"]),
    "one cue a line": ({"width": 7, "lines": 1}, ["a bb", "ccc", "dddd"]),
    "two lines": ({"width": 4, "lines": 2}, ["a bb\nccc", "dddd"]),
    "a word that is longer": ({"width": 2, "lines": 9}, ["a\nbb\nccc", "dddd"]),
    "no width": ({"lines": 1}, ["a bb ccc", "dddd"]),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_subtitles_without_words_times_are_laid_out(page: Any, case: str):
    layout, expected = LAYOUTS[case]
    outcome = page.evaluate(
        """async (layout) => {
          const { FORMATS } = await import("/page/formats.js");
          const segments = [
            { text: " a bb ccc", start: 0, end: 6 },
            { text: " dddd", start: 6, end: 7 },
          ];
          return FORMATS.srt.write({ segments }, layout);
        }""",
        layout,
    )
    cues = [cue.split("\n", 2) for cue in outcome.strip().split("\n\n")]
    assert [text for _, _, text in cues] == expected
    times = [time.split(" --> ") for _, time, _ in cues]
    assert [start for start, _ in times][1:] == [end for _, end in times][:-1]
    assert times[-1] == ["00:00:06,000", "00:00:07,000"]
