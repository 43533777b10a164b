"""Few calls lie between a caller and the native library: whoever reads a token's way reads all."""

import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest

import kvcast
from kit.recordings import EXAMPLE
from kvcast.cli import main
from kvcast.loading import opening
from kvcast.loading.params import LoadParams


class Counting:
    """A native library that notes the frames above each run, up to those of some code."""

    def __init__(self, library: Any, below: CodeType) -> None:
        self._library = library
        self._below = below
        self.stacks: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def kvcast_run(self, *given: Any) -> Any:
        frame, stack = sys._getframe(1), list[str]()
        while frame.f_code is not self._below:
            stack.append(frame.f_code.co_qualname)
            assert frame.f_back is not None
            frame = frame.f_back
        self.stacks.append(stack[::-1])
        return self._library.kvcast_run(*given)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Counting]]:
    def count(model: Any) -> Counting:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        machine = model.runtime.interpreter.machine
        counting = Counting(machine._library, frame.f_back.f_code)
        monkeypatch.setattr(machine, "_library", counting)
        return counting

    yield count
    monkeypatch.undo()


def deepest(counting: Counting, *of: str) -> list[str]:
    """The longest stack through one of these functions."""
    stacks = [stack for stack in counting.stacks if any(name in stack for name in of)]
    assert stacks
    return max(stacks, key=len)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_token_of_a_recording(counted: Callable[[Any], Counting], beam: int):
    model: Any = kvcast.load("demo", quantize="none", threads=1, runtime="native")
    counting = counted(model)
    list(model.transcribe(EXAMPLE, clip_end=6, beam=beam, word_timestamps=True))
    stack = deepest(counting, "Scheduler._decode", "Scheduler._prefill")
    assert stack[0] == "Transcription.__next__"
    assert len(stack) <= 7, stack
    assert len(max(counting.stacks, key=len)) <= 12  # windows are encoded and aligned, too


def test_a_token_of_the_command_line(
    counted: Callable[[Any], Counting], monkeypatch: pytest.MonkeyPatch
):
    options = {"quantize": "none", "threads": 1, "runtime": "native"}
    opened = opening.open_model("demo", LoadParams(**options))
    monkeypatch.setattr(opening, "open_model", lambda *_, **__: opened)
    counting = counted(opened.model)
    words = ["--model", "demo", "--clip-end", "6", "--quiet", str(EXAMPLE)]
    assert main(["transcribe", *words]) == 0
    stack = deepest(counting, "Scheduler._decode", "Scheduler._prefill")
    assert stack[0] == "main"
    assert len(stack) <= 12, stack


@pytest.mark.parametrize("options", [{}, {"beam": 2}, {"n": 2, "temperature": 1.0}], ids=str)
def test_a_token_of_a_text(counted: Callable[[Any], Counting], options: dict[str, Any]):
    model: Any = kvcast.load("demo-t5", threads=1, runtime="native")
    counting = counted(model)
    model.generate("3 March 2021", max_new_tokens=4, **options)
    stack = deepest(counting, "Scheduler._decode", "Scheduler._prefill")
    assert "generate" in stack[1]
    assert len(stack) <= 9, stack
