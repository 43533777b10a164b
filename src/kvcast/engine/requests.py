"""Requests: sequences to generate token by token, for every family of models.

A request has one row of a cache, or one for each beam of a search. `kvcast.engine.scheduler` feeds
its prompt, passes it logits, and continues its rows with the tokens it returns.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import Float32, Int64, Runtime, exclusive


class Input(ABC):
    """An encoder's input for one or more requests. Inputs are compared by identity."""

    most_together: ClassVar[int | None] = None

    @property
    @abstractmethod
    def positions(self) -> int:
        """How many positions the encoder computes for it."""

    @property
    def tokens(self) -> Int64:
        return np.empty(0, np.int64)

    @classmethod
    @abstractmethod
    def batch(cls, inputs: Sequence[Self]) -> tuple[NDArray[Any], ...]:
        """Return the inputs as a `source` of `kvcast.runtimes.base.EncoderDecoderOf.encode`."""


@dataclass(frozen=True, eq=False)
class Prefix:
    tokens: Int64
    cache: Any = field(repr=False)
    logits_v: Float32 = field(repr=False)  # [vocab], after the last token


@dataclass(frozen=True, eq=False)
class Prompt:
    """The content of a row before the first token is chosen."""

    tokens: Int64
    prefix: Prefix | None = None
    input: Input | None = None

    @property
    def sequence(self) -> Int64:
        if self.prefix is None:
            return self.tokens
        return np.concatenate([self.prefix.tokens, self.tokens])

    @property
    def length(self) -> int:
        return len(self.tokens) + (0 if self.prefix is None else len(self.prefix.tokens))

    @property
    def last(self) -> int:
        if self.prefix is None or len(self.tokens):
            return int(self.tokens[-1])
        return int(self.prefix.tokens[-1])

    def shared(self, runtime: Runtime, chunk: int | None) -> "Prompt":
        """Return a prompt that several requests share, computed once."""
        if self.input is not None:  # encoded once, however many rows read it
            return self
        prefix = compute(runtime, self, chunk)
        return Prompt(np.empty(0, np.int64), prefix=prefix)


def compute(runtime: Runtime, prompt: Prompt, chunk: int | None) -> Prefix:
    """Prefill a prompt of a decoder-only model, `chunk` tokens per call; None: all."""
    prefix, tokens = prompt.prefix, prompt.tokens
    if prefix is not None:
        if not len(tokens):
            return prefix
        cache = runtime.fork(prefix.cache, [0], prompt.length)
    else:
        cache = runtime.new_cache(1, prompt.length)
    size = chunk or len(tokens)
    for first in range(0, len(tokens), size):
        with exclusive(runtime):
            logits_rpv, cache = runtime.prefill([tokens[first : first + size]], cache)
            logits_v = logits_rpv[0, -1].copy()
    return Prefix(prompt.sequence, cache, logits_v)


class Histories:
    """The tokens of rows of equal length, at first one; views are valid until the next token."""

    def __init__(self, room: int, before: Sequence[int] | Int64 = ()) -> None:
        """Allocate `room` tokens after the tokens that precede all rows."""
        self._tokens: Int64 = np.empty((1, len(before) + room), np.int64)
        self._tokens[0, : len(before)] = before
        self._begin = self._end = len(before)

    @property
    def length(self) -> int:
        return self._end - self._begin

    @property
    def generated_rn(self) -> Int64:
        return self._tokens[:, self._begin : self._end]

    @property
    def all_rn(self) -> Int64:
        return self._tokens[:, : self._end]

    def extend(self, parents: Sequence[int], tokens_r: Sequence[int]) -> None:
        moved = [row for row, parent in enumerate(parents) if row != parent]
        if len(parents) != len(self._tokens):
            self._tokens = self._tokens[list(parents)]
        elif moved:
            taken = [parents[row] for row in moved]
            self._tokens[moved, : self._end] = self._tokens[taken, : self._end]
        self._tokens[:, self._end] = tokens_r
        self._end += 1


class Continuations(NamedTuple):
    """Rows that continue, ascending: row `rows[i]` of a request continues `parents[i]`."""

    rows: list[int]
    parents: list[int]
    tokens: list[int]  # fed next


OVER = Continuations([], [], [])


class Drafts(Protocol):
    """Draft tokens, to verify several in one call; the request chooses tokens as without drafts."""

    def propose(self, most: int) -> Sequence[int]:
        """Return up to `most` drafts worth feeding after the last chosen token, or none."""

    def chose(self, token: int) -> None:
        """Record a token that the request chose."""

    def called(self, fed: int, kept: int, seconds: float, drafted: int) -> None:
        """Record a call for this request alone, which fed `fed` tokens, `drafted` of them drafts.

        `kept` tokens were chosen from it, accepted drafts first.
        """


class Request(ABC):
    """A sequence to generate.

    Attributes:
        capacity: maximum positions of a row; the last token need not be fed.
        probe: index of a prompt token whose logits are kept.
        drafts: only used while the request has one row.
        error: exception that ended it while it chose a token; set by the scheduler.

    """

    def __init__(
        self, prompt: Prompt, *, capacity: int, width: int = 1, probe: int | None = None
    ) -> None:
        self.prompt = prompt
        self.width = width
        self.capacity = capacity
        self.probe = probe
        self.probed_v: Float32 = np.empty(0, np.float32)
        self.drafts: Drafts | None = None
        self.reused = 0
        self.error: Exception | None = None
        self.done = False

    def read_at_once(self, runtime: Runtime, cache: Any, row: int) -> bool:  # noqa: ARG002
        """Compute the prompt in a separate call, if more than its logits are needed.

        The row is empty before and after, and reads the prompt's input. Returns whether the request
        is done; otherwise the scheduler feeds the prompt.
        """
        return False

    @abstractmethod
    def advance(self, logits_rv: Float32) -> Continuations:
        """Choose the next tokens from logits [rows, vocab], which may be overwritten.

        Rows that are not returned are free from then on, so a request with several rows returns all
        of them the first time. `OVER`, with none, ends the request.
        """
