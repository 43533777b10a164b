"""Chat templates, which format conversations as a model expects them.

Each is an untrusted Jinja2 program, so it is rendered in a separate process (template_process.py):
started when first needed, ended after a failure or much work.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kvcast.chat.tool_calls import ToolForm, form_of, knows_tools
from kvcast.errors import KvcastError, in_one_line
from kvcast.spec.text_files import whole_characters

MOST = 4
"""Maximum idle processes; beyond it, the least recently used is ended."""

_PROGRAM = Path(__file__).with_name("template_process.py")


class EndedError(Exception):
    """The process ended without an answer."""


class TooSlowError(Exception):
    """The process took too long, and was ended."""


class TemplateWorker:
    """Renders one template. Threads may share it; a forked process gets a new process."""

    def __init__(self, template: str, limits: Mapping[str, int], longest: int) -> None:
        beginning = {"template": template, "limits": limits, "longest": longest}
        self._beginning = json.dumps(beginning).encode()
        self._longest = 12 * longest + 1000  # a character is up to two escapes, of six bytes each
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._used = 0.0
        with _crowd.lock:
            _crowd.workers.add(self)

    def render(self, values: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer; raises EndedError, TooSlowError, and OSError if no process starts."""
        request = json.dumps(values).encode()
        with self._lock:
            self._used = time.monotonic()
            if self._process is not None:
                # An idle process may have been ended by others, which is no fault of the template.
                with contextlib.suppress(EndedError):
                    return self._exchange(self._process, request, seconds)
            _crowd.make_room()
            self._process = _Process(self._longest)
            return self._exchange(self._process, self._beginning + b"\n" + request, seconds)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    @property
    def last_used(self) -> float | None:
        return None if self._process is None else self._used

    def close_if_idle(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._lock.release()

    def forget(self) -> None:
        """After a fork, drop the handle of the worker process, which is still the parent's."""
        self._lock = threading.Lock()  # a thread that is not here may have held the other
        process, self._process = self._process, None
        if process is not None:
            process.leave()

    def _exchange(self, process: "_Process", request: bytes, seconds: float) -> dict[str, Any]:
        try:
            reply = process.exchange(request, seconds)
        except BaseException:  # an interrupt, too: the answer may still come
            self.close()
            raise
        if reply.pop("last"):
            self.close()
        return reply


class _Process:
    """A process with this one's import path, without the current folder and open files."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        importable = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path if folder)
        self._process = subprocess.Popen(  # noqa: S603, our own program
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # nothing that a forked process could send once more
            cwd=_PROGRAM.parent,  # folders of users can go while it waits
            env=os.environ | {"PYTHONPATH": importable},
        )

    def exchange(self, request: bytes, seconds: float) -> dict[str, Any]:
        too_slow = threading.Event()

        def end_it() -> None:
            too_slow.set()
            self._process.kill()

        timer = threading.Timer(seconds, end_it)
        timer.daemon = True
        timer.start()
        try:
            self._send(request + b"\n")
            reply = self._read(self._line())
        except (OSError, ValueError):  # it ended before it had answered
            status = self._process.wait()
            if too_slow.is_set():
                raise TooSlowError from None
            raise EndedError(f"its process ended with status {status}") from None
        finally:
            timer.cancel()
        return reply

    def _send(self, content: bytes) -> None:
        pipe, rest = self._process.stdin, memoryview(content)
        assert pipe is not None
        while rest:
            rest = rest[pipe.write(rest) :]

    def _line(self) -> bytearray:
        pipe, line = self._process.stdout, bytearray()
        assert pipe is not None
        while not line.endswith(b"\n"):  # which JSON does not contain
            if not (piece := pipe.read(1 << 16)):
                raise ValueError("the process ended")
            line += piece
            if len(line) > self._longest:
                self._process.kill()
        return line

    def _read(self, line: bytearray) -> dict[str, Any]:
        """Read an answer; it is malformed only if a template escaped from its sandbox."""
        with contextlib.suppress(ValueError, RecursionError):
            match json.loads(line):
                case {"last": bool(), **answer} as reply if set(map(type, answer.values())) == {
                    str
                }:
                    return dict(reply)
        self._process.kill()
        raise ValueError("the answer is none")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close()

    def leave(self) -> None:
        self._process.returncode = 0  # as if it had been waited for
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class _WorkerPool:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.workers: weakref.WeakSet[TemplateWorker] = weakref.WeakSet()

    def make_room(self) -> None:
        with self.lock:
            used = [(w.last_used, w) for w in self.workers]
        waiting = sorted(((when, id(w), w) for when, w in used if when is not None))
        for *_, worker in waiting[: max(0, len(waiting) - MOST + 1)]:
            worker.close_if_idle()

    def forget(self) -> None:
        self.lock = threading.Lock()
        for worker in list(self.workers):
            worker.forget()


_crowd = _WorkerPool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crowd.forget)


NO_TEMPLATE = "this model has no chat template: prompt it with plain text"

_PARTS = re.compile(r"for \w+ in \w+(?:\.content|\[['\"]content['\"]\])")

SECONDS = 10.0
"""Time limit for one conversation; published templates take milliseconds."""

LONGEST = 16_000_000
"""Limit on the characters of a formatted conversation."""

# Limits on memory in bytes, CPU seconds (if the parent is gone), file size, processes.
_LIMITS = {"AS": 1 << 30, "CPU": 2 * int(SECONDS), "FSIZE": 0, "NPROC": 0}


class TemplateRefusalError(KvcastError):
    """The template itself refuses a conversation."""


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A Jinja2 template and its constants, such as bos_token; `with_tools` is for tool use."""

    source: str
    constants: Mapping[str, str]
    with_tools: "ChatTemplate | None" = None

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Format a conversation, up to where the assistant's answer starts.

        Raises TemplateRefusalError if the template refuses it, KvcastError if the template is
        damaged, tries to leave its sandbox, or exceeds the limits on time, memory or text.
        """
        if tools and self.with_tools is not None:
            return self.with_tools.render(messages, tools)
        values = {
            **self.constants,
            "messages": list(map(_with_reasoning, messages)),
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": True,
        }
        reply = self._reply(values)
        if "refused" in reply:
            raise TemplateRefusalError(
                f"the chat template refuses the conversation: {_line(reply)}"
            )
        if "failed" in reply:
            raise KvcastError(
                f"the chat template failed: {_line(reply)}; use a model that you trust"
            )
        return whole_characters(reply["text"])

    def _reply(self, values: Mapping[str, Any]) -> dict[str, str]:
        try:
            return self._worker.render(values, SECONDS)
        except TooSlowError:
            return {"failed": f"it takes more than {SECONDS:g} seconds"}
        except EndedError as error:
            return {"failed": str(error)}
        except OSError as error:
            raise KvcastError(f"cannot start a process for the chat template: {error}") from None

    @property
    def tool_form(self) -> ToolForm | None:
        return form_of(self._for_tools.source)

    @property
    def knows_tools(self) -> bool:
        return knows_tools(self._for_tools.source)

    @property
    def reads_parts(self) -> bool:
        """Whether the template iterates over parts of a content."""
        sources = [self.source, self._for_tools.source]
        return all(_PARTS.search(source) for source in sources)

    @property
    def _for_tools(self) -> "ChatTemplate":
        return self if self.with_tools is None else self.with_tools

    @cached_property
    def _worker(self) -> TemplateWorker:
        worker = TemplateWorker(self.source, _LIMITS, LONGEST)
        weakref.finalize(self, worker.close)  # at the interpreter's end at the latest
        return worker


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    given = (
        message[name] for name in ("reasoning_content", "thinking", "reasoning") if name in message
    )
    reasoning = next(given, None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _line(reply: Mapping[str, str]) -> str:
    (message,) = reply.values()
    return in_one_line(message)
