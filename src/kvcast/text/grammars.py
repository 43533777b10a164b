"""Grammars for one model: each is tried in a child process, compiled once, and kept.

llguidance bounds a grammar's cost, but not in all places: a hundred patterns that must hold
together take it minutes, and a long chain of references ends the process that reads it. So a
new grammar is first compiled in a child, which may fail. Knows no request.
"""

import contextlib
import threading
from collections import OrderedDict
from functools import cached_property
from typing import cast

from kvcast.decoding.grammar import Grammar, Kind
from kvcast.errors import KvcastError, UsageError
from kvcast.machine.child import ask
from kvcast.runtimes.exclusive import ForkSafeLock
from kvcast.text.constraint import GrammarPlace, Tokens, matcher
from kvcast.tokenizers.base import TextTokenizer

MOST_KEPT = 32
"""Compiled grammars of a model; one may take some megabytes."""

SECONDS = 10.0
"""Most time that a grammar may take to be compiled, a child's start included."""

_MEMORY = 4 << 30
_STACK = 1 << 20
"""Less than threads have elsewhere: a parent survives each grammar that a child survives."""


class Grammars:
    """Compiles and keeps the grammars of a model."""

    def __init__(self, tokenizer: TextTokenizer, size: int) -> None:
        """Take a model's tokenizer, and how many tokens it chooses from."""
        self._tokenizer, self._size = tokenizer, size
        self._kept: OrderedDict[tuple[Grammar, int], GrammarPlace | str] = OrderedDict()
        self._lock = ForkSafeLock()

    def begin(self, grammar: Grammar, after: int) -> GrammarPlace:
        """Return the first place in a grammar of a text after the token `after`.

        Raises:
            UsageError: for a grammar that the library refuses, one that takes too much to compile,
                one that no text of this model can keep, and a model whose tokens are not bytes.
            KvcastError: the library is not installed.

        """
        key = grammar, self._tokens.decoder.spaces_lost_after(after)
        with self._lock:
            begun = self._kept.get(key)
        if begun is None:
            begun = self._begun(*key)
        with self._lock:
            self._kept[key] = begun
            self._kept.move_to_end(key)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        if isinstance(begun, str):
            raise UsageError(begun)
        return begun

    @cached_property
    def _tokens(self) -> Tokens:
        try:
            import llguidance  # noqa: F401
        except ImportError:
            raise KvcastError(
                "grammars are kept with llguidance: pip install 'kvcast[structured]'"
            ) from None
        return Tokens(self._tokenizer, self._size)

    def _begun(self, grammar: Grammar, spaces: int) -> GrammarPlace | str:
        """Return the first place in a grammar, or the grammar's problem."""
        try:
            if grammar.kind != "json_object":
                _try_in_child(grammar)
            return self._tokens.begin(grammar, spaces)
        except UsageError as error:  # kept as well: thousands of prompts may share it
            return str(error)


def _try_in_child(grammar: Grammar) -> None:
    """Raise UsageError for a grammar that a child cannot compile."""
    answer = ask(f"{__name__}:trial", grammar.kind, grammar.text, seconds=SECONDS)
    if answer.ended:
        raise UsageError(f"{grammar.kind} is too complex to be compiled: {answer.problem}")
    # Without an interpreter there is no child, and the grammar is compiled here at once.
    if answer.result:
        raise UsageError(answer.result)


def trial(kind: str, text: str) -> str:
    """Run in the child: compile a grammar for single bytes; return its problem."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # elsewhere than on Unix
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    from llguidance import LLTokenizer

    problems: list[str] = []

    def compile_it() -> None:
        try:
            matcher(LLTokenizer("byte"), Grammar(cast("Kind", kind), text)).compute_bitmask()
        except UsageError as error:
            problems.append(str(error))

    threading.stack_size(_STACK)
    thread = threading.Thread(target=compile_it)
    thread.start()
    thread.join()
    return "".join(problems)
