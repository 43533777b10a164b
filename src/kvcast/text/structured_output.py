"""Structured output: a logits processor that holds texts to a grammar, and compiled grammars.

llguidance, an optional library, computes the tokens that may come next. Some grammars take it
minutes or end the process, so a new one is compiled in a child first (grammar_compiler.py).
"""

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.decoding.grammar import Grammar
from kvcast.decoding.logits_processors import LogitsProcessor
from kvcast.errors import KvcastError, UsageError, in_one_line
from kvcast.runtimes.base import Float32, ForkSafeLock, Int64
from kvcast.text import grammar_process
from kvcast.text.grammar_compiler import TRIALS
from kvcast.text.texts import LENGTH, STOP
from kvcast.tokenizers.base import TextTokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


_SPECIAL = b"\xff"  # marks a token without a text for llguidance
_STUCK = "NoExtensionBias"  # its stop reason if the grammar could continue, but no token can


class GrammarProcessor(LogitsProcessor):
    """Constrains the rows of one request to a grammar; `extend` passes it their tokens."""

    def __init__(self, begin: "GrammarPlace") -> None:
        self._places = [begin.copy()]

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        for logits_v, place in zip(logits_rv, self._places, strict=True):
            np.copyto(logits_v, -np.inf, where=place.barred_v)

    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        waiting = Counter(parents)
        places = []
        for parent, token in zip(parents, tokens, strict=True):
            waiting[parent] -= 1
            place = self._places[parent]
            places.append((place.copy() if waiting[parent] else place).after(token))
        self._places = places

    @property
    def ending(self) -> str | None:
        """STOP if the first row's text is complete, LENGTH if no token may follow, else None."""
        return self._places[0].ending


@dataclass(frozen=True, kw_only=True, eq=False)
class GrammarPlace:
    matcher: "LLMatcher"
    end_tokens: tuple[int, ...]
    barred_v: NDArray[np.bool_]  # [vocab], tokens that must not come next
    ending: str | None  # STOP: only an end token may come; LENGTH: no token may

    @classmethod
    def of(cls, matcher: "LLMatcher", end_tokens: tuple[int, ...], size: int) -> "GrammarPlace":
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        barred_v = np.unpackbits(~bits, count=size, bitorder="little").view(np.bool_)
        if matcher.is_error():  # it allows the end then
            barred_v[:] = True
        ends = len(end_tokens) - np.count_nonzero(barred_v[list(end_tokens)])
        goes_on = np.count_nonzero(barred_v) < size - ends
        ending = None if goes_on else STOP if ends else LENGTH
        return cls(matcher=matcher, end_tokens=end_tokens, barred_v=barred_v, ending=ending)

    def copy(self) -> "GrammarPlace":
        return replace(self, matcher=self.matcher.deep_copy())

    def after(self, token: int) -> "GrammarPlace":
        """Return the place after a token; invalidates this one."""
        if self.barred_v[token] or token in self.end_tokens:
            return replace(self, barred_v=np.ones_like(self.barred_v), ending=LENGTH)
        self.matcher.consume_token(token)
        return GrammarPlace.of(self.matcher, self.end_tokens, len(self.barred_v))


class Tokens:
    bos_token_id = None

    def __init__(self, tokenizer: TextTokenizer, size: int) -> None:
        """Raise UsageError if a token's text depends on its neighbours."""
        if tokenizer.decoder is None:
            raise UsageError(
                "this model's tokens are word pieces, between which spaces come and go: a grammar "
                "needs a model whose tokens are bytes"
            )
        self.decoder = tokenizer.decoder
        self._tokenizer, self._size = tokenizer, size
        self._end_tokens = tokenizer.end_tokens
        known = range(min(size, tokenizer.vocab_size))
        self._spelled = [self.decoder.token_bytes(token) for token in known]
        self._spelled += [b""] * (size - len(known))
        for token in self._end_tokens:
            self._spelled[token] = b""
        self.eos_token_id = self._end_tokens[0]
        self.special_token_ids: Sequence[int] = ()
        # 0xFF occurs in no UTF-8, so a token of that byte is as good as one without a text.
        self.tokens = [
            _SPECIAL + b"%d" % token if not text or text.startswith(_SPECIAL) else text
            for token, text in enumerate(self._spelled)
        ]

    @cached_property
    def library(self) -> "LLTokenizer":
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(self), eos_token=list(self._end_tokens))

    def begin(self, grammar: Grammar, spaces: int) -> GrammarPlace:
        """Return the matcher's initial state for a text that loses some leading spaces.

        Raises UsageError for a grammar that llguidance refuses, or that no text of these tokens
        matches.
        """
        place = GrammarPlace.of(
            matcher(self.library, grammar, spaces), self._end_tokens, self._size
        )
        if place.ending == STOP:
            raise UsageError(f"{grammar.kind} allows nothing but an empty text")
        if place.ending == LENGTH:
            problem = place.matcher.get_error()
            if _STUCK in problem:
                problem = "no token of this model begins what it allows"
            raise refused(grammar, problem)
        return place

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that follows another one."""
        spelled = text.encode()
        for before in ("", "\n", '"'):  # some tokenizers put a space before all texts
            tokens: list[int] = []
            missing = len(spelled)
            for token in reversed(self._tokenizer.encode(before + text)):
                if missing > 0 and self._spelled[token]:
                    tokens.insert(0, token)
                    missing -= len(self._spelled[token])
            if b"".join(self._spelled[token] for token in tokens) == spelled:
                return tokens
        return self.library.greedy_tokenize(text)


def matcher(library: "LLTokenizer", grammar: Grammar, spaces: int = 0) -> "LLMatcher":
    """Return llguidance's matcher for a new text; raises UsageError if it refuses."""
    try:
        return grammar_process.matcher(library, grammar.kind, grammar.text, spaces)
    except ValueError as error:
        raise refused(grammar, str(error)) from None


def refused(grammar: Grammar, problem: str) -> UsageError:
    lines = problem.replace("<non-verbose/>", "").splitlines() or [problem]
    problems = [line.strip().removeprefix("error: ") for line in lines if "error: " in line]
    return UsageError(f"{grammar.kind} cannot be used: {in_one_line((problems or lines)[0])}")


MOST_KEPT = 32
"""Compiled grammars of a model; one may take some megabytes."""


class Grammars:
    def __init__(self, tokenizer: TextTokenizer, size: int) -> None:
        self._tokenizer, self._size = tokenizer, size
        self._kept: OrderedDict[tuple[Grammar, int], GrammarPlace | str] = OrderedDict()
        self._lock = ForkSafeLock()

    def prepare(self) -> None:
        with contextlib.suppress(KvcastError):
            _ = self._tokens.library

    def begin(self, grammar: Grammar, after: int) -> GrammarPlace:
        """Return the first place in a grammar of a text after the token `after`."""
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
        try:
            if grammar.kind != "json_object":
                _try_in_child(grammar)
            return self._tokens.begin(grammar, spaces)
        except UsageError as error:  # kept as well: thousands of prompts may share it
            return str(error)


def _try_in_child(grammar: Grammar) -> None:
    # Without an interpreter there is no child, and the grammar is compiled here at once.
    problem = TRIALS.outcome(grammar).result()
    if problem.startswith("\n"):
        raise UsageError(f"{grammar.kind} is too complex to be compiled: {problem.strip()}")
    if problem:
        raise refused(grammar, problem)
