"""`kvcast` with scripted models: `python scripted_program.py ARGS…`.

The module that opens models is replaced: importing it would take most of a run's time. A recording
slow.wav waits until it is interrupted; odd.wav's text has escape sequences. KVCAST_KILL_AT=N kills
the program before the Nth line of the code that keeps a folder's results; KVCAST_COUNT=FILE writes
how many such lines there were; KVCAST_PAUSE is the seconds that each segment of a folder takes.
"""

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

from fakes import ESCAPES, FakeModel, FakeTextModel, ReadingModel, segment

import kvcast
from kvcast import saving
from kvcast.cli import main
from kvcast.spec.runtimes import OnPhase
from kvcast.transcripts import folders
from kvcast.transcripts.segments import Segment

TRACED = (str(Path(folders.__file__).parent), saving.__file__)


class Patient(FakeModel):
    def _segments(self, name: str) -> Iterator[Segment]:
        if name == "odd.wav":
            yield segment(start=0.0, end=1.0, text=f" a{ESCAPES}b")
            return
        for part in super()._segments(name):
            yield part
            time.sleep(600.0 if name == "slow.wav" else 0.0)

    def live(self, **_: Any) -> Any:
        from live_fakes import FakeLive

        return FakeLive()


def wait(on_phase: OnPhase) -> None:
    on_phase("compiling decode")
    if sys.stderr is not None and sys.stderr.isatty():
        time.sleep(0.3)  # a spinner is drawn again ten times a second


def open_model(_: str, params: Any, **__: Any) -> SimpleNamespace:
    wait(params.on_phase)
    model = FakeTextModel() if "generate" in sys.argv else Patient()
    if "--recursive" in sys.argv:
        model = ReadingModel()
    return SimpleNamespace(model=model, runtime="onnx", on_trust=None, notices=())


def export_bundle(model: str, output: Path, *, on_phase: OnPhase, **_: Any) -> Path:
    wait(on_phase)
    return output


def trace_lines(kill_at: int) -> "itertools.count[int]":
    """Count lines of the traced code from now on, and die before one of them."""
    lines = itertools.count(1)

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and next(lines) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return on_line

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        return on_line if frame.f_code.co_filename.startswith(TRACED) else None

    threading.settrace(on_call)
    sys.settrace(on_call)
    return lines


if __name__ == "__main__":
    opening = ModuleType("kvcast.loading.opening")
    opening.open_model, opening.model_digest = open_model, lambda *_: ""
    sys.modules[opening.__name__] = opening
    kvcast.export_bundle = export_bundle
    if not {"KVCAST_KILL_AT", "KVCAST_COUNT"}.isdisjoint(os.environ):
        # Imported before lines are counted: a module's own lines are no part of a run.
        import kvcast.transcripts.folders.recordings

        counted = trace_lines(int(os.environ.get("KVCAST_KILL_AT", "0")))
    code = main()
    sys.settrace(None)
    if "KVCAST_COUNT" in os.environ:
        Path(os.environ["KVCAST_COUNT"]).write_text(str(next(counted)))
    raise SystemExit(code)
