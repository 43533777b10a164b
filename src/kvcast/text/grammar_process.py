"""Compiles grammars in a separate process, because some take minutes or crash the process.

Reads JSON objects from standard input, one a line, each with "kind", "text" and "seconds". Answers
each with a line on standard output: {"problem": …}, empty for a valid grammar, and whether this was
the "last", as the process has used much. A grammar that exceeds its CPU seconds ends the process.
Imports nothing of kvcast, to start quickly.
"""

import contextlib
import json
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_MEMORY = 2 << 30
_STACK = 1 << 20
"""Less than threads have elsewhere: a parent survives each grammar that this process survives."""
_MOST_SECONDS = 2.0
_MOST_MEMORY = 256 << 10
"""CPU seconds, and kilobytes, after which another process takes over."""


def matcher(library: "LLTokenizer", kind: str, text: str, spaces: int = 0) -> "LLMatcher":
    """Return the library's matcher for a new text; raises ValueError if the library refuses."""
    from llguidance import LLMatcher

    grammar = _in_llguidance(kind, text, spaces)
    made = LLMatcher(library, grammar, log_level=0, limits=_limits())
    if made.is_error():
        raise ValueError(made.get_error())
    return made


def _limits() -> "LLParserLimits":
    """Return bounds on a grammar's cost; a lexer's state takes 2 kB."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


def _in_llguidance(kind: str, text: str, spaces: int) -> str:
    """Return a grammar for llguidance, of a text that loses leading `spaces`."""
    part: dict[str, Any]
    match kind:
        case "json_schema" | "json_object":
            part = {"json_schema": json.loads(text)}
        case "regex":
            from llguidance import regex_to_lark

            part = {"lark_grammar": f"start: /{regex_to_lark(text, use_ascii='d')}/"}
        case _:
            part = {"lark_grammar": text}
    parts = [part | {"name": "text"}]
    if spaces:
        parts.insert(0, {"lark_grammar": f"start: {json.dumps(' ' * spaces)} @text"})
    return json.dumps({"grammars": parts})


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # elsewhere than on Unix
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def _limit_time(seconds: float) -> None:
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _has_taken_much() -> bool:
    if time.process_time() > _MOST_SECONDS:
        return True
    with contextlib.suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > _MOST_MEMORY
    return False


def _problem(library: "LLTokenizer", kind: str, text: str) -> str:
    problems: list[str] = []

    def compile_it() -> None:
        try:
            matcher(library, kind, text).compute_bitmask()
        except ValueError as error:
            problems.append(str(error) or "no reason is given")

    thread = threading.Thread(target=compile_it)
    thread.start()
    thread.join()
    return "".join(problems)


def main() -> None:
    from llguidance import LLTokenizer

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to deal with
    _limit_memory()
    threading.stack_size(_STACK)
    library = LLTokenizer("byte")
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _limit_time(request["seconds"])
        problem = _problem(library, request["kind"], request["text"])
        _limit_time(0)
        last = _has_taken_much()
        print(json.dumps({"problem": problem, "last": last}), flush=True)
        if last:
            return


if __name__ == "__main__":
    main()
