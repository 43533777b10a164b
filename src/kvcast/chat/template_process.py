"""Renders a chat template in a separate process, because templates are untrusted programs.

Reads JSON objects from standard input, one a line. The first has "template", "limits" and "longest"
(a limit on characters); each later one has the template's variables for one conversation. Answers
each of these with a line on standard output: {"text": …}, or {"refused": …} with the template's own
message, or {"failed": …}, and whether this was the "last": the process ends after a failure, and
when half of its processor time is used up. Behind Jinja2's sandbox, resource limits bound memory,
and forbid writing files and starting processes. The caller limits the time of each answer.
"""

import json
import signal
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _RefusedError(TemplateError):
    """The template itself refuses the conversation."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks answers for training; ignored here."""

    tags = {"generation"}  # noqa: RUF012, as Jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """As in transformers' chat_template_utils.py."""

    def __init__(self) -> None:
        extensions = [_Generation, "jinja2.ext.loopcontrols"]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Fail immediately; Jinja2 would print nothing and fail at the next use."""
        raise SecurityError(f"{attribute} of a {type(obj).__name__}")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise _RefusedError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _limit_resources(limits: Mapping[str, int]) -> None:
    if sys.platform == "win32":
        return
    import resource

    for name, limit in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        lowered = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        try:
            resource.setrlimit(kind, (lowered, lowered))
        except (OSError, ValueError):  # macOS has some limits that it refuses to set
            continue


class _Renderer:
    def __init__(self, source: str, longest: int) -> None:
        self._source = source
        self._longest = longest
        self._compiled: Template | None = None

    def answer(self, line: bytes) -> dict[str, str]:
        try:
            values = json.loads(line)
            if self._compiled is None:
                self._compiled = _Environment().from_string(self._source)
            pieces, length = [], 0
            for piece in self._compiled.generate(**values):
                pieces.append(piece)
                length += len(piece)
                if length > self._longest:
                    return {"failed": f"it writes more than {self._longest:,} characters"}
            return {"text": "".join(pieces)}
        except _RefusedError as error:
            return {"refused": str(error)}
        except SecurityError as error:
            return {"failed": f"it reaches outside its sandbox ({error})"}
        except TemplateSyntaxError as error:
            return {"failed": f"line {error.lineno}: {error.message}"}
        except MemoryError:
            return {"failed": "it takes too much memory"}
        except Exception as error:  # whatever an untrusted program can cause
            return {"failed": f"{type(error).__name__}: {str(error)[:300]}"}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to deal with
    requests = sys.stdin.buffer
    beginning = json.loads(requests.readline())
    _limit_resources(beginning["limits"])
    renderer = _Renderer(beginning["template"], beginning["longest"])
    while line := requests.readline():
        answer: dict[str, str | bool] = {**renderer.answer(line)}
        answer["last"] = "failed" in answer or time.process_time() > beginning["limits"]["CPU"] / 2
        print(json.dumps(answer), flush=True)
        if answer["last"]:
            return


if __name__ == "__main__":
    main()
