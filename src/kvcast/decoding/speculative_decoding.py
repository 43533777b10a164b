"""Speculative decoding: when to verify a drafter's tokens, and how many, in one call of the model.

A call with several tokens costs little more than a call with one, as both read all weights once. If
the model accepts the drafts, it has taken several steps for little more than the cost of one
(Leviathan et al., arXiv:2211.17192). Here a draft is accepted only if the request chooses the same
token from the model's logits and its own random stream (`Scheduler._decode_drafted`). So drafts
change the speed, never the text.

Whether drafts pay is measured while a text is generated: the time of calls of each size, the time
of drafting, and the acceptance rate of each kind of draft. No call is made that could lose more
than a small share of the time that the tokens so far would have taken without drafts, minus the
losses of drafts, plus their gains. Free drafts are compared with tokens even when not fed, so an
acceptance rate that improves is seen at no cost.
"""

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from typing_extensions import override

from kvcast.decoding.drafters import Drafter, Drafting, Guess, ModelDrafting, NgramDrafting
from kvcast.decoding.logits_processors import LogitsProcessor
from kvcast.decoding.params import NGRAM
from kvcast.engine.requests import Drafts, Prompt
from kvcast.errors import UsageError
from kvcast.runtimes.base import Runtime
from kvcast.tokenizers.base import Vocabulary, texts_of_tokens

MOST = 15
"""Most drafted tokens of a call."""

_ALLOWED = 0.03
"""Share of the time without drafts that these may lose."""
_MARGIN = 1.03
"""How much faster a call must promise to be, per token, than a step."""
_SLOPE = 0.1
"""Assumed cost of another token in a call before it is measured, in steps."""


class _Clock:
    """A clock of calls; `typical` is the median of the last few in seconds, 0 before the first."""

    def __init__(self) -> None:
        self.typical = 0.0
        self._last: deque[float] = deque(maxlen=9)

    def add(self, seconds: float) -> None:
        self._last.append(seconds)
        # Of two the shorter: the first call of its size prepares much.
        self.typical = sorted(self._last)[(len(self._last) - 1) // 2]


class _Record:
    """The acceptance rate of one kind of guess, with recent ones weighted more."""

    _FADING = 0.95
    _BEFORE = 1.2, 0.8  # right and wrong, as if seen before anything else

    def __init__(self) -> None:
        self._right, self._wrong = 0.0, 0.0

    @property
    def chance(self) -> float:
        right, wrong = self._BEFORE
        return (self._right + right) / (self._right + self._wrong + right + wrong)

    def add(self, *, right: bool) -> None:
        self.fade()
        self._right += right
        self._wrong += not right

    def fade(self) -> None:
        self._right *= self._FADING
        self._wrong *= self._FADING


class Ledger:
    """The costs and gains of drafting, over all requests of a model with one drafter."""

    def __init__(self) -> None:
        self._calls: dict[int, _Clock] = defaultdict(_Clock)  # by tokens fed
        self._prepared: set[int] = set()  # sizes of calls that a runtime has had
        self._seconds: list[float] = []  # that a call takes, by tokens fed, tried or not
        self._token = _Clock()  # drafting one token
        self._records: dict[int, _Record] = defaultdict(_Record)  # by kind of guess
        self._plain = 0.0  # seconds that the tokens so far would have taken in single steps
        self._gained = 0.0  # seconds, without prefills
        self._begun = 0.0  # seconds that drafters took to read prompts

    def affordable(self, kind: int, most: int) -> int:
        """Return how many drafts of a kind are worth verifying, up to `most`."""
        if not self._seconds:
            return 0
        step, chance = self._seconds[1], self._records[kind].chance
        spare = self._gained + _ALLOWED * self._plain
        best, best_rate = 0, _MARGIN / step
        tokens = likely = 1.0
        for count in range(1, most + 1):
            seconds = self._seconds[count + 1] + count * self._token.typical
            likely *= chance
            tokens += likely
            if seconds - step > spare:
                break
            if tokens / seconds > best_rate:
                best, best_rate = count, tokens / seconds
        return best

    def can_begin(self) -> bool:
        return self._begun <= max(0.0, self._gained + _ALLOWED * self._plain)

    def began(self, seconds: float) -> None:
        self._begun += seconds

    def drafted(self, tokens: int, seconds: float) -> None:
        self._gained -= seconds
        if tokens:
            self._token.add(seconds / tokens)

    def called(self, fed: int, kept: int, seconds: float) -> None:
        """Record a call; the first of a size prepares later ones, so it does not predict them."""
        if fed in self._prepared:
            self._calls[fed].add(seconds)
        self._prepared.add(fed)
        if not self._calls:
            return
        self._seconds = self._expected()
        plain = kept * self._seconds[1]
        self._plain += plain
        if fed > 1:
            self._gained += plain - seconds

    def compared(self, kind: int, *, right: bool) -> None:
        self._records[kind].add(right=right)

    def passed(self, kind: int) -> None:
        """Record a token without a guess: acceptance rates fade, so drafts are tried again."""
        self._records[kind].fade()

    def _expected(self) -> list[float]:
        """Return expected seconds per call, by tokens fed; untried sizes are interpolated."""
        tried = sorted((size, clock.typical) for size, clock in self._calls.items())
        slope = _SLOPE * tried[0][1] / tried[0][0]
        tried.append((MOST + 2, tried[-1][1] + slope * (MOST + 2 - tried[-1][0])))
        sizes, seconds = zip((0, 0.0), *tried, strict=True)
        return list(np.interp(range(MOST + 2), sizes, seconds))


@dataclass(frozen=True, kw_only=True)
class DraftCounts:
    proposed: int
    accepted: int

    @classmethod
    def total(cls, counts: Iterable[Self]) -> Self:
        each = list(counts)
        return cls(
            proposed=sum(drafted.proposed for drafted in each),
            accepted=sum(drafted.accepted for drafted in each),
        )

    def __str__(self) -> str:
        return f"{self.accepted} of {self.proposed} drafted tokens accepted"


class Speculation(Drafts):
    def __init__(self, drafter: Drafter, ledger: Ledger, history: Sequence[int]) -> None:
        self._proposed = self._accepted = 0
        self._drafter = drafter
        self._ledger = ledger
        self._history = list(history)
        self._has_begun = False
        self._expected: deque[int] = deque()
        self._kind = 0

    def counts(self) -> DraftCounts:
        return DraftCounts(proposed=self._proposed, accepted=self._accepted)

    @override
    def propose(self, most: int) -> Sequence[int]:
        most = min(most, MOST)
        if self._drafter.is_free:
            guess = self._guess(MOST)
            worth = self._ledger.affordable(guess.kind, min(most, len(guess.tokens)))
            if worth or not self._expected:
                self._expect(guess)
            return guess.tokens[:worth]
        worth = self._ledger.affordable(self._kind, most)
        if not worth or not (self._has_begun or self._ledger.can_begin()):
            self._ledger.passed(self._kind)
            return ()
        guess = self._guess(worth)
        self._expect(guess)
        return guess.tokens

    @override
    def chose(self, token: int) -> None:
        self._history.append(token)
        if self._expected:
            right = self._expected.popleft() == token
            self._ledger.compared(self._kind, right=right)
            if not right:
                self._expected.clear()

    @override
    def called(self, fed: int, kept: int, seconds: float, drafted: int) -> None:
        self._proposed += drafted
        self._accepted += kept - 1
        self._ledger.called(fed, kept, seconds)

    def _guess(self, most: int) -> Guess:
        began = time.perf_counter()
        guess = self._drafter.guess(self._history, most)
        seconds = time.perf_counter() - began
        if self._has_begun:
            self._ledger.drafted(len(guess.tokens), seconds)
        else:
            self._ledger.began(seconds)
        self._has_begun = True
        return guess

    def _expect(self, guess: Guess) -> None:
        self._expected = deque(guess.tokens)
        self._kind = guess.kind


class Speculations:
    def __init__(self, drafting: Drafting) -> None:
        self._drafting = drafting
        self._ledger = Ledger()

    def begin(
        self, prompt: Prompt, capacity: int, filters: Sequence[LogitsProcessor] = ()
    ) -> Speculation:
        drafter = self._drafting.begin(prompt, capacity, filters)
        return Speculation(drafter, self._ledger, prompt.sequence.tolist())


@dataclass(frozen=True, kw_only=True)
class Paired:
    runtime: Runtime
    family: str
    vocabulary: Vocabulary
    tokens: int  # vocabulary size; embedding tables may be padded
    longest: int
    chunk: int | None = None  # most prompt tokens of a call; None is all

    @cached_property
    def texts(self) -> Sequence[str]:
        return texts_of_tokens(self.vocabulary)


def speculations(draft: Any, larger: Paired) -> Speculations | None:
    """Return drafts for a model, if any; raises UsageError for a model that cannot draft for it."""
    if draft is None:
        return None
    if draft == NGRAM:
        return Speculations(NgramDrafting())
    smaller = getattr(draft, "paired", None)
    if not isinstance(smaller, Paired):
        raise UsageError(f"draft must be {NGRAM}, or a model that kvcast.load returned")
    if smaller.family != larger.family:
        raise UsageError(
            f"draft is a {smaller.family} model and this one is {larger.family}: give another draft"
        )
    if smaller.vocabulary is not larger.vocabulary and smaller.texts != larger.texts:
        raise UsageError("draft has another vocabulary than this model: give another draft")
    drafting = ModelDrafting(
        smaller.runtime,
        longest=smaller.longest,
        vocabulary=min(smaller.tokens, larger.tokens),
        chunk=smaller.chunk,
    )
    return Speculations(drafting)
