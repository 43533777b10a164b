"""An object that lives in a process of its own and is called through a pipe.

Between calls the process is blocked in a read and does nothing, its threads aside; its memory and
its imports are its own. The object is pickled once, arguments and results are JSON. Knows nothing
of what the object does.
"""

import base64
import contextlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, Self

from typing_extensions import override

from kvcast.errors import KvcastError


class RemoteError(KvcastError):
    """The object raised, or its process ended."""


class Remote:
    """The near side: starts a process that holds a copy of an object."""

    def __init__(self, served: object, environment: Mapping[str, str]) -> None:
        # A file, for a pipe that nobody reads would block the process in the end.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvcast.bench.remote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={**os.environ, **environment},
            text=True,
            encoding="utf-8",
        )
        try:
            self._exchange({"object": base64.b64encode(pickle.dumps(served)).decode()})
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def call(self, method: str, **arguments: Any) -> Any:
        """Return what the object's method returns; raises RemoteError with one line."""
        return self._exchange({"method": method, "arguments": arguments})

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._complaints.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exchange(self, request: dict[str, Any]) -> Any:
        to, back = self._process.stdin, self._process.stdout
        if to is None or back is None:
            raise RemoteError("the process has no pipes")
        try:
            to.write(json.dumps(request) + "\n")
            to.flush()
            answer = back.readline()
        except OSError:
            answer = ""
        if not answer:
            raise RemoteError(self._last_words())
        reply = json.loads(answer)
        if "error" in reply:
            raise RemoteError(reply["error"])
        return reply["result"]

    def _last_words(self) -> str:
        status = self._process.wait()
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with status {status}" + (f": {lines[-1]}" if lines else "")


class Local(Remote):
    """An object in this process, called as if it were far away."""

    def __init__(self, served: object, _: Mapping[str, str]) -> None:
        self._served = served

    @property
    @override
    def pid(self) -> int:
        return os.getpid()

    @override
    def call(self, method: str, **arguments: Any) -> Any:
        try:
            return getattr(self._served, method)(**arguments)
        except Exception as error:
            raise RemoteError(_one_line(error)) from error

    @override
    def close(self) -> None:
        """Leave the object to whoever else has it."""


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def serve() -> None:
    """Answer the near side's requests until standard input ends."""
    served: Any = None
    with _replies() as replies:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if served is None:
                    packed = base64.b64decode(request["object"])
                    served = pickle.loads(packed)  # noqa: S301 - from the process that began this
                    result = None
                else:
                    result = getattr(served, request["method"])(**request["arguments"])
                reply = {"result": result}
            except Exception as error:
                reply = {"error": _one_line(error)}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


def _replies() -> Any:
    """Take over standard output: what libraries print there goes to standard error instead."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="utf-8")


if __name__ == "__main__":
    serve()
