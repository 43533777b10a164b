"""An object that lives in a process of its own and is called through a pipe.

Between calls the process is blocked in a read and does nothing, its threads aside; its memory and
its imports are its own, which `multiprocessing` would share with the main module. Objects,
arguments and results are pickled. Knows nothing of the object.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from typing_extensions import override

from kvcast.errors import KvcastError

_CHUNK = 2**20


class RemoteError(KvcastError):
    """The object raised, or its process ended."""


class Remote(AbstractContextManager["Remote"]):
    """The near side: starts a process that holds a copy of an object, and ends it.

    `pid` is the process's. `python` is the interpreter that it runs; None is this one.
    """

    def __init__(
        self, served: object, environment: Mapping[str, str], python: str | None = None
    ) -> None:
        # A file, for a pipe that nobody reads would block the process in the end.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process: Any = subprocess.Popen(  # noqa: S603 - an interpreter, and this module
            [python or sys.executable, "-m", "kvcast.machine.remote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={**os.environ, **environment},
        )
        self.pid: int = self._process.pid
        try:
            self._exchange(served)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, **arguments: Any) -> Any:
        """Return the result of the object's method; raises RemoteError with one line."""
        return self._exchange((method, arguments))

    def close(self) -> None:
        """End the process."""
        try:
            self._process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._complaints.close()

    @override
    def __exit__(self, *_: object) -> None:
        self.close()

    def _exchange(self, request: object) -> Any:
        try:
            # Protocol 5 reads an array in place: a copy would count as the process's peak memory.
            pickle.dump(request, self._process.stdin, protocol=5)
            self._process.stdin.flush()
            result, error = pickle.load(self._process.stdout)  # noqa: S301 - our own process
        except (OSError, EOFError, pickle.UnpicklingError):
            raise RemoteError(self._last_words()) from None
        if error is not None:
            raise RemoteError(error)
        return result

    def _last_words(self) -> str:
        status = self._process.wait()
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with status {status}" + (f": {lines[-1]}" if lines else "")


class Local(Remote):
    """An object in this process, called as if it were far away."""

    def __init__(self, served: object, *_: object) -> None:
        self._served, self.pid = served, os.getpid()

    @override
    def call(self, method: str, **arguments: Any) -> Any:
        try:
            return getattr(self._served, method)(**arguments)
        except Exception as error:
            raise RemoteError(_one_line(error)) from error

    @override
    def close(self) -> None:
        """Release the object."""


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def serve() -> None:
    """Answer the near side's requests, of which the first is the object, until there are no more.

    Answers take over standard output: output of libraries goes to standard error instead.
    """
    served: Any = None
    requests: Any = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while requests.peek(1):
        try:
            request, result = pickle.load(requests), None  # noqa: S301 - from who started this
            if served is None:
                served = request
            else:
                method, arguments = request
                result = getattr(served, method)(**arguments)
            answer = pickle.dumps((result, None))
        except Exception as error:
            answer = pickle.dumps((None, _one_line(error)))
        answers.write(answer)
        answers.flush()
        # The near side may still be writing what could not be read; its answer comes after that.
        while served is None and requests.read(_CHUNK):
            pass


if __name__ == "__main__":
    serve()
