import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.fakes import FakeModel, FakeTextModel
from kvcast.families.base import Task
from kvcast.loading.opening import OpenedModel
from kvcast.loading.params import LoadParams


@pytest.fixture
def open_as(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make every command open this model, a bundle for `runtime`; `calls` remembers how.

    `others` are opened by their names.
    """

    def script(
        model: Any,
        *,
        runtime: str = "onnx",
        calls: list | None = None,
        notices: tuple[str, ...] = (),
        **others: Any,
    ) -> None:
        def open_model(name: str, params: LoadParams, *, task: Task) -> OpenedModel:
            assert model.task == task
            params.on_phase("proving")
            if calls is not None:
                options = {"model": name, **dataclasses.asdict(params)}
                del options["on_phase"]
                calls.append(("load", options))
            return OpenedModel(
                model=others.get(name, model), runtime=params.runtime or runtime, notices=notices
            )

        monkeypatch.setattr("kvcast.loading.opening.open_model", open_model)
        monkeypatch.setattr("kvcast.loading.opening.model_digest", lambda name, _: f"of {name}")

    return script


@pytest.fixture
def model(open_as: Callable[..., None]) -> FakeModel:
    scripted = FakeModel()
    open_as(scripted, calls=scripted.calls)
    return scripted


@pytest.fixture
def text_model(open_as: Callable[..., None]) -> FakeTextModel:
    scripted = FakeTextModel()
    open_as(scripted, calls=scripted.calls)
    return scripted


@pytest.fixture
def recording(tmp_path: Path) -> Callable[[str], str]:
    def make(name: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return str(path)

    return make


@pytest.fixture
def _interruptible():
    """A shell's background jobs ignore Ctrl-C, and so would what the tests start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
