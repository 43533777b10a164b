"""Calls a function in a child process, so that a crash or a hang there can be reported.

Knows none of the functions that it calls.
"""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from kvcast.errors import KvcastError

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from kvcast.machine.child import reply; reply(*sys.argv[2:])"
)
_READY = "ready"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A child process's answer.

    Attributes:
        result: the function's result, as read back from JSON; None if there was a problem.
        problem: one line; empty if there is none.
        ended: whether the child started, but crashed or took too long instead of answering.

    """

    result: Any = None
    problem: str = ""
    ended: bool = False


def ask(function: str, *words: str, seconds: float) -> Answer:
    """Call the function `module:name` with string arguments in a child process.

    The child is killed after `seconds`.
    """
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
    """Run in the child: call the function and print the answer as JSON, on the last line."""
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
