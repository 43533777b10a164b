"""Logit filters: what may not come next is set to -inf, in place, before a token is chosen.

The rules are those of openai/whisper's decoding.py. A filter sees the logits and what each row has
sampled so far; it knows neither the prompt nor how a token will be chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvcast.decoding.numerics import log_sum_exp
from kvcast.runtimes.base import Float32


class LogitFilter(Protocol):
    """One rule."""

    def apply(self, logits_rv: Float32, histories: Sequence[Sequence[int]]) -> None:
        """Mask logits [rows, vocab], given the tokens sampled so far, as many for each row."""


@dataclass(frozen=True)
class SuppressBlank:
    """Nothing that is blank comes first."""

    blank: tuple[int, ...]

    def apply(self, logits_rv: Float32, histories: Sequence[Sequence[int]]) -> None:
        """See the protocol."""
        if not histories[0]:
            logits_rv[:, self.blank] = -np.inf


class SuppressTokens:
    """These never come."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = np.asarray(tokens, np.intp)

    def apply(self, logits_rv: Float32, histories: Sequence[Sequence[int]]) -> None:  # noqa: ARG002
        """See the protocol."""
        logits_rv[:, self._tokens] = -np.inf


@dataclass(frozen=True, kw_only=True)
class TimestampRules:
    """Timestamps come in pairs, never go back, start the transcript, and win by total weight.

    Ids from `begin` on are timestamps, those below `eot` are text. The first timestamp is at most
    `begin + latest_initial`; None lifts that bound.
    """

    begin: int
    eot: int
    no_timestamps: int
    latest_initial: int | None

    def apply(self, logits_rv: Float32, histories: Sequence[Sequence[int]]) -> None:
        """See the protocol."""
        if not histories[0]:
            logits_rv[:, : self.begin] = -np.inf
            if self.latest_initial is not None:
                logits_rv[:, self.begin + self.latest_initial + 1 :] = -np.inf
            return
        logits_rv[:, self.no_timestamps] = -np.inf
        for row_v, history in zip(logits_rv, histories, strict=True):
            self._keep_order(row_v, history)
        # A timestamp is due once all of them together outweigh the best single text token.
        total_r = log_sum_exp(logits_rv[:, self.begin :])
        logits_rv[total_r > logits_rv[:, : self.begin].max(axis=1), : self.begin] = -np.inf

    def _keep_order(self, row_v: Float32, history: Sequence[int]) -> None:
        begin = self.begin
        after_timestamp = history[-1] >= begin
        opening = after_timestamp and (len(history) < 2 or history[-2] >= begin)
        closing = after_timestamp and not opening
        if opening:  # text must follow
            row_v[begin:] = -np.inf
        elif closing:  # the next segment's start must follow, or the end
            row_v[: self.eot] = -np.inf
        latest = next((token for token in reversed(history) if token >= begin), None)
        if latest is not None:
            # A segment may start where the last one ended, but must not end where it starts.
            row_v[begin : latest if closing else latest + 1] = -np.inf
