"""Models that tests of the public API share."""

from collections.abc import Iterator

import pytest

import kvcast


@pytest.fixture(scope="module")
def speech() -> Iterator[kvcast.WhisperModel]:
    with kvcast.load("demo", runtime="native", threads=2) as model:
        yield model


@pytest.fixture(scope="module")
def text() -> Iterator[kvcast.TextModel]:
    with kvcast.load("demo-chat", runtime="native", threads=2) as model:
        yield model


@pytest.fixture(scope="module")
def source() -> Iterator[kvcast.T5Model]:
    with kvcast.load("demo-t5", runtime="native", threads=2) as model:
        yield model


@pytest.fixture(scope="module")
def ranked() -> Iterator[kvcast.UnilmModel]:
    with kvcast.load("demo-unilm", runtime="native", threads=2) as model:
        yield model


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    monkeypatch.chdir(request.config.rootpath)
