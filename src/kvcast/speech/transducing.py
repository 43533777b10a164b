"""Requests about sounds whose positions become tokens one after the other: transducers, and CTC.

A step is fed a token beside the number of the position that is read next, as the family of the
model has them. Knows no recording and no text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from typing_extensions import override

from kvcast.decoding.numerics import check_numbers
from kvcast.engine.requests import OVER, Continuations, Input, Prompt, Request
from kvcast.runtimes.base import Float32


class TransducerSizes(Protocol):
    """The dimensions that determine what follows from logits."""

    @property
    def tokens(self) -> int:
        """Number of tokens; logits of durations follow theirs."""

    @property
    def blank(self) -> int:
        """The token that means "nothing here"."""

    @property
    def prediction_layers(self) -> int:
        """0: CTC, where each position has a token, and the same ones side by side are one."""

    @property
    def durations(self) -> Sequence[int]:
        """How many positions a token may take; empty: a blank takes one and others none."""

    @property
    def most_symbols(self) -> int:
        """Tokens at one position, at most; on average where there are durations."""


@dataclass(frozen=True)
class Emission:
    """A token, and the positions that it was heard at.

    Attributes:
        token: not blank.
        first: its first position.
        end: the one after its last.
        logprob: its log-probability, among tokens.

    """

    token: int
    first: int
    end: int
    logprob: float


class TransducerRequest(Request):
    """Writes the tokens of a sound, the likeliest of each step.

    Attributes:
        emissions: so far.

    """

    def __init__(self, sound: Input, sizes: TransducerSizes) -> None:
        self._sizes, self._positions = sizes, sound.positions
        # As in transformers, which counts the token that starts.
        self._left = sizes.most_symbols * sound.positions - 1
        if not sizes.prediction_layers:
            self._left = sound.positions
        super().__init__(
            Prompt(np.array([sizes.blank], np.int64), input=sound), capacity=max(1, self._left)
        )
        self._position = self._symbols = 0
        self._before = sizes.blank
        self.emissions: list[Emission] = []

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        check_numbers(logits_rv)
        sizes, [logits_v] = self._sizes, logits_rv
        of_tokens = logits_v[: sizes.tokens]
        token, first = int(of_tokens.argmax()), self._position
        taken = self._taken(token, logits_v[sizes.tokens :])
        self._position += taken
        if token != sizes.blank:
            self._emit(token, first, taken, of_tokens)
        self._before = token
        self._left -= 1
        if self._position >= self._positions or self._left <= 0:
            return OVER
        # CTC's logits depend on positions alone.
        return Continuations([0], [0], [token + sizes.tokens * self._position])

    def _taken(self, token: int, of_durations: Float32) -> int:
        """Return how many positions a token takes."""
        sizes, is_blank = self._sizes, token == self._sizes.blank
        if not sizes.prediction_layers:
            return 1
        if sizes.durations:
            taken = sizes.durations[int(of_durations.argmax())]
            return max(1, taken) if is_blank else taken
        self._symbols = 0 if is_blank else self._symbols + 1
        if is_blank or self._symbols >= sizes.most_symbols:
            self._symbols = 0
            return 1
        return 0

    def _emit(self, token: int, first: int, taken: int, logits_v: Float32) -> None:
        sizes, most = self._sizes, logits_v.max()
        logprob = float(logits_v[token] - most - np.log(np.exp(logits_v - most).sum()))
        end = first + (taken if sizes.durations else 1)
        if not sizes.prediction_layers and token == self._before:
            last = self.emissions[-1]
            self.emissions[-1] = Emission(token, last.first, end, max(last.logprob, logprob))
            return
        self.emissions.append(Emission(token, first, end, logprob))
