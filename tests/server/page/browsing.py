"""Opens the page of a server in Chromium, and holds every visit to what all must keep."""

import importlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

GUARDING = 30_000
"""Milliseconds: only against hanging."""


def missing(what: str) -> NoReturn:
    """Skip the test; where CI is set nobody would see that, so it fails there."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@contextmanager
def chromium(*arguments: str) -> Iterator[Any]:
    """Run the system's Chromium."""
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
        yield browser
        browser.close()


@contextmanager
def visit(
    browser: Any,
    url: str,
    path: str = "/",
    *,
    answers: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Open a page; in the end nothing may have come from elsewhere or been against its policy.

    Requests whose URL matches a key of `answers` are answered by it, as `Route.fulfill` takes it,
    and the server never sees them.
    """
    context = browser.new_context(**{"locale": "en-GB", "accept_downloads": True} | options)
    context.set_default_timeout(GUARDING)
    page = context.new_page()
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
        context.close()
    assert not faults
    assert [address for address in asked if not address.startswith((url, f"blob:{url}"))] == []


def _fulfilling(answer: Mapping[str, Any]) -> Callable[[Any], None]:
    return lambda route: route.fulfill(**answer)


def posted(page: Any, path: str) -> list[Any]:
    """Return what will have been posted there, in JSON."""
    bodies: list[Any] = []
    page.on(
        "request",
        lambda one: bodies.append(one.post_data_json) if one.url.endswith(path) else None,
    )
    return bodies


def holds(page: Any, condition: str, given: Any = None) -> None:
    """Wait until a function in JavaScript returns something true."""
    page.wait_for_function(condition, arg=given)


def field(page: Any, label: str) -> Any:
    """Return the field of a label in the panel that is open."""
    return page.get_by_label(label).filter(visible=True)
