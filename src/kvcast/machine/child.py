"""Runs code in a child process: one function, or an object that is called through a pipe.

`ask` reports a crash or a hang. A `Remote` object's process blocks between calls; its imports are
separate, while `multiprocessing` would import the main module. All data are pickled.
"""

import contextlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.errors import KvcastError

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from kvcast.machine.child import reply; reply(*sys.argv[2:])"
)
_READY = "ready"


@dataclass(frozen=True, kw_only=True)
class Answer:
    result: Any = None  # read back from JSON
    problem: str = ""  # one line
    ended: bool = False  # the child crashed or took too long


def ask(function: str, *words: str, seconds: float) -> Answer:
    """Call `module:name` with string arguments in a child process, killed after `seconds`."""
    # Import the same modules as here, and none that happens to lie in the working folder.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = json.dumps([part for part in (*given, *sys.path) if part])
    try:
        done = subprocess.run(  # noqa: S603 - this package
            [sys.executable, "-P", "-W", "ignore", "-c", _START, path, function, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return Answer(problem=f"no answer within {seconds:.0f} s", ended=True)
    except (OSError, TypeError) as error:  # a program that embeds Python may have no interpreter
        reason = getattr(error, "strerror", None) or error
        return Answer(problem=f"cannot start {sys.executable}: {reason}")
    lines = done.stdout.splitlines()
    with contextlib.suppress(ValueError, IndexError, AttributeError):
        answer = json.loads(lines[-1])
        return Answer(
            result=answer.get("result"), problem=" ".join(answer.get("problem", "").split())
        )
    ending = f"signal {-done.returncode}" if done.returncode < 0 else f"code {done.returncode}"
    return Answer(problem=f"its process ended with {ending}", ended=lines[:1] == [_READY])


def reply(function: str, *words: str) -> None:
    """Call the function in the child and print the answer as JSON, on the last line."""
    answers = os.fdopen(os.dup(1), "w")
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # native code may write anything to standard output
    print(_READY, file=answers, flush=True)
    module, _, name = function.partition(":")
    try:
        answer = {"result": getattr(import_module(module), name)(*words)}
    except KvcastError as error:
        answer = {"problem": str(error)}
    except ModuleNotFoundError as error:
        answer = {"problem": f"{error.name} is not installed"}
    except Exception as error:  # whatever a broken package raises
        answer = {"problem": f"{type(error).__name__}: {error}"}
    print("\n" + json.dumps(answer), file=answers, flush=True)
    # Skip the interpreter's shutdown, where a broken package may fail once more.
    os._exit(0)


_CHUNK = 2**20


class RemoteError(KvcastError):
    """The object raised, or its process ended."""


class Remote(AbstractContextManager["Remote"]):
    """Starts an interpreter (`python`, process `pid`) that holds a copy of an object."""

    def __init__(
        self, served: object, environment: Mapping[str, str], python: str | None = None
    ) -> None:
        # A file, because an unread pipe would eventually block the process.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process: Any = subprocess.Popen(  # noqa: S603 - an interpreter, and this module
            [python or sys.executable, "-m", "kvcast.machine.child"],
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


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def serve() -> None:
    """Answer pickled requests: first the object, then calls of its methods.

    Standard output becomes standard error, so that libraries cannot corrupt the answers.
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
        # The parent may still be writing an unreadable message; its reply comes after that.
        while served is None and requests.read(_CHUNK):
            pass


if __name__ == "__main__":
    serve()
