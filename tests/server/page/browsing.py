"""Opens the page of a server in Chromium, and checks every visit's errors and requests."""

import importlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

GUARDING = 30_000
"""Milliseconds: only against hanging."""


def missing(what: str) -> NoReturn:
    """Skip the test; fail it where CI is set."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@contextmanager
def chromium(*arguments: str) -> Iterator[Any]:
    try:
        api = importlib.import_module("playwright.sync_api")
    except ImportError:
        missing("needs playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        missing("needs Chromium: apt install chromium")
    with api.sync_playwright() as playwright:
        arguments = ("--no-sandbox", "--autoplay-policy=no-user-gesture-required", *arguments)
        browser = playwright.chromium.launch(executable_path=path, args=list(arguments))
        profile = browser.new_context(locale="en-GB", accept_downloads=True)
        profile.set_default_timeout(GUARDING)
        yield browser
        browser.close()


@contextmanager
def visit(
    browser: Any,
    url: str,
    path: str = "/",
    *,
    answers: Mapping[str, Mapping[str, Any]] | None = None,
    size: tuple[int, int] = (1280, 720),
    scheme: str = "light",
    permissions: Sequence[str] = (),
) -> Iterator[Any]:
    """Open a page; in the end nothing may have come from elsewhere or been against its policy.

    Each visit has a page of its own and leaves nothing in the profile, which takes much longer to
    make. Requests whose URL matches a key of `answers` are answered by it, as `Route.fulfill`
    takes it, and the server never sees them.
    """
    [profile] = browser.contexts
    profile.grant_permissions(permissions)
    page = profile.new_page()
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=scheme)
    asked: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if "Policy" in said.text else None)
    for pattern, answer in (answers or {}).items():
        page.route(pattern, _fulfilling(answer))
    page.goto(url + path)
    page.wait_for_selector("[role=tabpanel]:not([hidden]), #trouble:not([hidden]), dialog[open]")
    try:
        yield page
    finally:
        # What a page keeps as it closes would be the next visit's.
        page.evaluate("() => { localStorage.clear(); Storage.prototype.setItem = () => {}; }")
        page.close()
        profile.clear_permissions()
    assert faults == [], faults
    assert [address for address in asked if not address.startswith((url, f"blob:{url}"))] == []


def _fulfilling(answer: Mapping[str, Any]) -> Callable[[Any], None]:
    return lambda route: route.fulfill(**answer)


def posted(page: Any, path: str) -> list[Any]:
    bodies: list[Any] = []
    page.on(
        "request",
        lambda request: (
            bodies.append(request.post_data_json) if request.url.endswith(path) else None
        ),
    )
    return bodies


def holds(page: Any, condition: str, given: Any = None) -> None:
    page.wait_for_function(condition, arg=given)


def field(page: Any, label: str) -> Any:
    return page.get_by_label(label).filter(visible=True)
