"""Grammars for one model: each is tried in a child process, compiled once, and kept.

llguidance bounds a grammar's cost, but not in all places: a hundred patterns that must hold
together take it minutes, and a long chain of references ends the process that reads it. So a
new grammar is first compiled in a child, which may fail (`kvcast.text.grammar_trials`). Knows no
request.
"""

import contextlib
from collections import OrderedDict
from functools import cached_property

from kvcast.decoding.grammar import Grammar
from kvcast.errors import KvcastError, UsageError
from kvcast.runtimes.exclusive import ForkSafeLock
from kvcast.text.constraint import GrammarPlace, Tokens, refused
from kvcast.text.grammar_trials import TRIALS
from kvcast.tokenizers.base import TextTokenizer

MOST_KEPT = 32
"""Compiled grammars of a model; one may take some megabytes."""


class Grammars:
    """Compiles and keeps the grammars of a model."""

    def __init__(self, tokenizer: TextTokenizer, size: int) -> None:
        """Take a model's tokenizer, and how many tokens it chooses from."""
        self._tokenizer, self._size = tokenizer, size
        self._kept: OrderedDict[tuple[Grammar, int], GrammarPlace | str] = OrderedDict()
        self._lock = ForkSafeLock()

    def prepare(self) -> None:
        """Make what all grammars need, if the library is here and can keep any."""
        with contextlib.suppress(KvcastError):
            _ = self._tokens.library

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
    # Without an interpreter there is no child, and the grammar is compiled here at once.
    problem = TRIALS.outcome(grammar).result()
    if problem.startswith("\n"):
        raise UsageError(f"{grammar.kind} is too complex to be compiled: {problem.strip()}")
    if problem:
        raise refused(grammar, problem)
