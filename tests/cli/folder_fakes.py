"""The command line over a model that reads its recordings, and can be killed at any line.

As a program: `python folder_fakes.py ARGS…` is `kvcast ARGS…`. KVCAST_KILL_AT=N kills it when the
Nth line of the code that keeps a folder's results is about to run; KVCAST_COUNT=FILE writes how
many such lines there were; KVCAST_PAUSE is the seconds that each segment takes.
"""

import hashlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from cli_fakes import FakeSegment, FakeTranscription

from kvcast import saving
from kvcast.cli import main
from kvcast.errors import InputOutputError
from kvcast.loading import opening as loading
from kvcast.loading.params import LoadParams
from kvcast.transcripts import folders

TRACED = (str(Path(folders.__file__).parent), saving.__file__)


class ReadingModel:
    """Tells the hash of what it reads; recordings that begin with "bad" are damaged."""

    task: ClassVar[str] = "transcribe"

    def transcribe(self, source: str, **_: Any) -> FakeTranscription:
        content = Path(source).read_bytes()
        return FakeTranscription(self._segments(source, content), duration=2.0)

    def transcribe_all(self, sources: Sequence[str], **options: Any) -> list[FakeTranscription]:
        return [self.transcribe(source, **options) for source in sources]

    def _segments(self, source: str, content: bytes) -> Iterator[FakeSegment]:
        for number, digest in enumerate((hashlib.sha1(content), hashlib.md5(content))):
            time.sleep(float(os.environ.get("KVCAST_PAUSE", "0")))
            yield FakeSegment(
                id=number, start=float(number), end=number + 1.0, text=f" {digest.hexdigest()}"
            )
            if content.startswith(b"bad"):
                raise InputOutputError(f"{source} is damaged")


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

    def open_model(_: str, params: LoadParams, **__: Any) -> loading.OpenedModel:
        return loading.OpenedModel(model=ReadingModel(), runtime="onnx")

    loading.open_model = open_model
    loading.model_digest = lambda *_: ""
    # Imported before lines are counted: a module's own lines are no part of a run.
    import kvcast.transcripts.folders.recordings  # noqa: F401

    counted = trace_lines(int(os.environ.get("KVCAST_KILL_AT", "0")))
    code = main()
    sys.settrace(None)
    if "KVCAST_COUNT" in os.environ:
        Path(os.environ["KVCAST_COUNT"]).write_text(str(next(counted)))
    raise SystemExit(code)
