"""An object that lives in a process of its own and is called through a pipe.

Between calls the process is blocked in a read and does nothing, its threads aside; its memory and
its imports are its own. Knows nothing of what the object does. Arguments and results are JSON.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Self

from kvcast.errors import KvcastError


class RemoteError(KvcastError):
    """The object raised, or its process ended."""


class Remote:
    """The near side: starts a process that holds `target`, "module:class", made of `arguments`."""

    def __init__(
        self, target: str, arguments: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        # A file, for a pipe that nobody reads would block the process in the end.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(  # noqa: S603 - this package, and a name of its own
            [sys.executable, "-m", "kvcast.bench.remote", target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={**os.environ, **environment},
            text=True,
            encoding="utf-8",
        )
        try:
            self._exchange(dict(arguments))
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


def serve(target: str) -> None:
    """Answer the far side's requests until standard input ends."""
    with _replies() as replies:
        module, _, name = target.partition(":")
        served: Any = None
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if served is None:
                    served, result = getattr(import_module(module), name)(**request), None
                else:
                    result = getattr(served, request["method"])(**request["arguments"])
                reply = {"result": result}
            except Exception as error:
                reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


def _replies() -> Any:
    """Take over standard output: what libraries print there goes to standard error instead."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="utf-8")


if __name__ == "__main__":
    serve(sys.argv[1])
