"""The frame of the page's panels: tabs, themes, the engine, keys, and a lost server."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.text_models import saying
from server.page.browsing import chromium, field, holds, visit
from server.serving import Server, serving, until

pytestmark = pytest.mark.slow

KEY = "correct horse"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {"slow": saying("ab" * 900, before_step=lambda: time.sleep(0.01))}
    with serving(models) as running:
        yield running


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    with visit(browser, server.url, size=(1300, 800)) as opened:
        yield opened


def engine(page: Any) -> Any:
    return page.get_by_role("complementary", name="Engine")


def show_engine(page: Any) -> Any:
    """Open the engine's panel, which is closed at first."""
    page.get_by_role("button", name="Engine").click()
    return engine(page)


def background(page: Any) -> int:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, colour.removeprefix("rgb(").rstrip(")").split(",")))


def test_the_first_tab_with_a_model_is_open_and_others_say_what_to_load(page: Any):
    assert page.get_by_role("tabpanel", name="Chat").is_visible()
    for name, model in (("Transcribe", "demo"), ("Rewrite and translate", "demo-t5")):
        page.get_by_role("tab", name=name).click()
        panel = page.get_by_role("tabpanel", name=name)
        assert panel.get_by_text(f"kvcast serve {model}", exact=True).is_visible()
        assert panel.get_by_role("button").count() == 0


def test_everything_is_reached_by_keyboard(page: Any):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Tab")
    focus = "document.activeElement.textContent.trim()"
    assert page.evaluate(focus) == "Chat"
    for key, expected in (("ArrowRight", "Rewrite and translate"), ("ArrowRight", "Transcribe")):
        page.keyboard.press(key)
        assert page.evaluate(focus) == expected
        assert page.get_by_role("tab", name=expected).get_attribute("aria-selected") == "true"
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert page.get_by_role("tabpanel", name="Chat").is_visible()
    page.locator("#chat .more").evaluate("details => { details.open = true; }")
    reached = []
    for _ in range(16):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.name || document.activeElement.id"))
    wanted = ["show-engine", "theme", "model", "temperature", "max_tokens", "list", "fresh"]
    wanted += ["top_p", "seed", "stop_at", "system", "message"]
    assert [name for name in reached if name in wanted] == wanted


def test_every_control_has_a_name(page: Any):
    show_engine(page).get_by_role("meter").first.wait_for()
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll(
            "button, input, select, textarea, audio, [role=meter]")]
          .filter(one => !(one.labels?.length || one.ariaLabel || one.textContent.trim()))
          .map(one => one.outerHTML)"""
    )
    assert unnamed == []


def test_headings_and_tabs_are_in_order(page: Any):
    field(page, "Message").fill("hello")
    page.keyboard.press("Enter")
    page.locator(".assistant").wait_for()
    show_engine(page).get_by_role("heading").wait_for()
    levels = page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map(one => +one.tagName[1])"
    )
    assert levels[0] == 1
    assert all(later <= level + 1 for level, later in itertools.pairwise(levels))
    assert page.evaluate("[...document.querySelectorAll('*')].every(one => one.tabIndex <= 0)")


CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text()
"""A function that returns what is seen too badly."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_the_borders_of_controls_stand_out(browser: Any, server: Server, scheme: str):
    with visit(browser, server.url, "/#chat", scheme=scheme) as page:
        show_engine(page).get_by_role("meter").first.wait_for()
        page.get_by_text("Settings", exact=True).click()
        field(page, "Temperature").fill("7")
        field(page, "Message").fill("hello")
        page.keyboard.press("Enter")
        page.locator("#chat .error:not([hidden])").wait_for()
        page.evaluate("for (const one of document.querySelectorAll('.work')) one.hidden = false")
        for name in ("Transcribe", "Chat", "Rewrite and translate"):
            page.get_by_role("tab", name=name).click()
            page.mouse.move(600, 5)
            contrasts = page.evaluate(CONTRASTS)
            assert contrasts["seen"] > 10
            assert contrasts["weak"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_the_systems_until_another_is_chosen(browser, server, scheme):
    with visit(browser, server.url, scheme=scheme) as page:
        first = background(page)
        assert (first < 382) == (scheme == "dark")
        button = page.get_by_role("button", name="Dark theme")
        assert button.get_attribute("aria-pressed") == str(scheme == "dark").lower()
        button.click()
        second = background(page)
        assert (second < 382) == (scheme != "dark")
        page.reload()
        page.get_by_role("tabpanel", name="Chat").wait_for()
        assert background(page) == second


def test_a_narrow_window_is_never_scrolled_sideways(browser: Any, server: Server):
    with visit(browser, server.url, size=(400, 800)) as page:
        page.get_by_role("button", name="Engine").click()
        for name in ("Transcribe", "Chat", "Rewrite and translate"):
            page.get_by_role("tab", name=name).click()
            assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_engine_is_shown_while_it_works(page: Any, server: Server):
    meters = show_engine(page).get_by_role("meter")
    holds(page, "() => document.querySelectorAll('#engine .meter').length === 4")
    field(page, "Message").fill("hello")
    page.keyboard.press("Enter")
    busy = engine(page).locator(".meter.busy")
    busy.wait_for()
    assert "in use" in busy.get_attribute("aria-label")
    value = "document.querySelector('#engine .meter.busy').ariaValueNow"
    holds(page, f"() => {value} > 20")
    figures = "name => [...document.querySelectorAll('#engine dl div')].find("
    figures += "one => one.textContent.startsWith(name)).lastChild.textContent"
    assert page.evaluate(figures, "running") == "1"
    assert page.evaluate(figures, "waiting") == "0"
    holds(page, f"() => Number(({figures})('tokens/s')) > 1")
    page.locator("#chat").get_by_role("button", name="Stop").click()
    busy.wait_for(state="detached")
    assert page.evaluate(figures, "running") == "0"
    held = [meters.nth(i).evaluate("one => Number(one.ariaValueNow)") for i in range(4)]
    assert held == server.status("slow").held


def test_the_engine_is_asked_only_while_it_is_shown(page: Any):
    asked: list[float] = []
    page.on(
        "request", lambda request: asked.append(1) if request.url.endswith("/v1/engine") else None
    )
    button = page.get_by_role("button", name="Engine")
    page.wait_for_timeout(300)
    assert asked == []
    assert not engine(page).is_visible()
    button.click()
    until_asked(page, asked)
    page.reload()  # whether it is open is remembered
    engine(page).wait_for()
    button.click()
    assert not engine(page).is_visible()
    assert button.get_attribute("aria-expanded") == "false"
    page.wait_for_timeout(300)  # for a running answer
    asked.clear()
    page.wait_for_timeout(1500)
    assert asked == []
    button.click()
    holds(page, "() => document.querySelectorAll('#engine .meter').length === 4")
    until_asked(page, asked)


def test_a_model_of_several_names_is_shown_once(page: Any):
    def answer(route: Any) -> None:
        document = route.fetch().json()
        [status] = document["models"]
        aliases = [{**status, "id": name, "alias_of": "slow"} for name in ("fast", "whisper-1")]
        route.fulfill(json={"models": [status, *aliases]})

    page.route("**/v1/engine", answer)
    heading = show_engine(page).get_by_role("heading")
    heading.wait_for()
    assert heading.text_content() == "slow" + "also fast, whisper-1" + "chat"
    assert engine(page).get_by_role("meter").count() == 4


def test_scrolled_regions_are_focusable(browser: Any, server: Server):
    """As axe's rule scrollable-region-focusable has it."""
    with visit(browser, server.url, size=(1300, 200)) as page:
        show_engine(page).get_by_role("meter").first.wait_for()
        page.evaluate(
            """async () => {
              const { Markdown } = await import("/page/markdown.js");
              const element = document.querySelector("#chat .messages");
              element.innerHTML = "<article class='assistant'><div class='text'></div></article>";
              const wide = "a".repeat(500);
              new Markdown(element.querySelector(".text")).show(
                `    ${wide}\n\n|${"a|".repeat(90)}\n|${"-|".repeat(90)}\n|${"b|".repeat(90)}`,
              );
            }"""
        )
        scrolled = page.evaluate(
            """() => [...document.querySelectorAll("body *")].filter((element) => {
              const { overflowX, overflowY } = getComputedStyle(element);
              const [wide, high] = [overflowX, overflowY].map((it) => /auto|scroll/.test(it));
              return (wide && element.scrollWidth > element.clientWidth + 1)
                || (high && element.scrollHeight > element.clientHeight + 1);
            }).map(({ localName, tabIndex }) => [localName, tabIndex])"""
        )
        assert scrolled == [["pre", 0], ["div", 0], ["aside", 0]]


def until_asked(page: Any, asked: list[float]) -> None:
    while not asked:
        page.wait_for_timeout(50)


def test_a_server_that_begins_anew_writes_no_less_than_nothing(page: Any):
    told = iter([5000])

    def answer(route: Any) -> None:
        document = route.fetch().json()
        document["models"][0]["generated_tokens"] = next(told, 0)
        route.fulfill(json=document)

    shown = "document.querySelector('#engine dl div:last-child dd').textContent"
    show_engine(page).get_by_role("meter").first.wait_for()
    page.route("**/v1/engine", answer)
    holds(page, f"() => Number({shown}) > 0")
    holds(page, f"() => Number({shown}) <= 0")
    assert page.evaluate(shown) == "0.0"


def test_the_address_opens_a_tab(page: Any):
    assert page.get_by_role("tabpanel", name="Chat").is_visible()
    page.evaluate("location.hash = '#text2text'")
    page.get_by_role("tabpanel", name="Rewrite and translate").wait_for()
    page.evaluate("location.hash = '#toString'")  # what every object has, and no panel is
    page.wait_for_timeout(100)
    assert page.get_by_role("tabpanel", name="Rewrite and translate").is_visible()


def test_a_microphone_is_released_if_the_recorder_cannot_be_loaded(page: Any):
    outcome = page.evaluate(
        """async () => {
          AudioWorklet.prototype.addModule = () => Promise.reject(new Error("it is gone"));
          const { stream } = new AudioContext().createMediaStreamDestination();
          navigator.mediaDevices.getUserMedia = async () => stream;
          const { Recorder } = await import("/page/recorder.js");
          const error = await new Recorder(() => {}).start().catch(error => error.message);
          return [error, ...stream.getTracks().map(track => track.readyState)];
        }"""
    )
    assert outcome == ["The recorder cannot be loaded: it is gone", "ended"]


@pytest.mark.parametrize("somewhere", ["", "true"])
def test_a_missing_browser_fails_in_ci_and_skips_elsewhere(monkeypatch, somewhere):
    monkeypatch.setenv("CI", somewhere)
    monkeypatch.setattr("shutil.which", lambda name: None)
    outcome = pytest.fail.Exception if somewhere else pytest.skip.Exception
    with pytest.raises(outcome, match="needs Chromium"), chromium():
        pass


@pytest.fixture
def locked(browser: Any) -> Iterator[Any]:
    models = {"hello": saying("hello")}
    with serving(models, api_key=KEY) as server, visit(browser, server.url) as page:
        yield page


def test_a_key_is_asked_for_and_kept_for_this_tab(locked: Any):
    dialog = locked.get_by_role("dialog", name="API key")
    field(dialog, "Key").fill("wrong")
    dialog.get_by_role("button", name="Use it").click()
    dialog.get_by_text("The server refused that key.").wait_for()
    field(dialog, "Key").fill(KEY)
    locked.keyboard.press("Enter")
    locked.get_by_role("tabpanel", name="Chat").wait_for()
    locked.reload()
    locked.get_by_role("tabpanel", name="Chat").wait_for()
    assert not dialog.is_visible()
    assert locked.evaluate("sessionStorage['kvcast-key']") == KEY
    assert locked.evaluate("Object.values(localStorage).join().includes('horse')") is False


def test_a_missing_key_is_reported_and_can_be_given_later(locked: Any):
    locked.keyboard.press("Escape")
    locked.get_by_role("alert").filter(has_text="the API key is missing").wait_for()
    locked.get_by_role("button", name="Try again").focus()
    locked.keyboard.press("Enter")
    locked.get_by_role("textbox", name="Key").fill(KEY)
    locked.keyboard.press("Enter")
    locked.get_by_role("tabpanel", name="Chat").wait_for()
    assert not locked.get_by_role("button", name="Try again").is_visible()
    assert locked.evaluate("document.activeElement.id") == "tab-chat"


def test_a_lost_server_leaves_the_generated_text(browser: Any):
    models = {"slow": saying("ab" * 900, before_step=lambda: time.sleep(0.01))}
    with serving(models) as server, visit(browser, server.url) as page:
        show_engine(page)
        field(page, "Message").fill("hello")
        page.keyboard.press("Enter")
        holds(page, "() => document.querySelector('.assistant .text').textContent.length > 3")
        server.engines["slow"].close()
        page.locator("#chat .error:not([hidden])").wait_for()
        assert page.locator(".assistant .text").text_content().startswith("abab")
        server.stop()
        page.get_by_role("button", name="Regenerate").click()
        page.locator("#chat .error").filter(has_text="The server does not answer").wait_for()
        until(lambda: engine(page).get_by_text("The server does not answer").is_visible())


def test_only_the_pages_files_are_served(server: Server):
    with server.http() as http:
        assert http.get("/").headers["content-security-policy"].startswith("default-src 'self';")
        assert http.get("/page/main.js").headers["content-type"].startswith("text/javascript")
        assert http.get("/page/nothing.js").status_code == 404
        assert http.get("/page/..%2fapp.py").status_code == 404
