"""Logit filters of Whisper's windows: openai/whisper's decoding.py has the same rules.

Knows no options.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from typing_extensions import override

from kvcast.decoding.arithmetic import TimestampTokens
from kvcast.decoding.filters import LogitFilter
from kvcast.decoding.numerics import arithmetic
from kvcast.runtimes.base import Float32, Int64
from kvcast.whisper.tokenizer import timestamps_from


@dataclass(frozen=True)
class SuppressBlank(LogitFilter):
    """A text does not start with these tokens."""

    blank: tuple[int, ...]

    @override
    def apply(self, logits_rv: Float32, written_rn: Int64) -> None:
        if not written_rn.shape[1]:
            logits_rv[:, self.blank] = -np.inf


@dataclass(frozen=True, kw_only=True)
class TimestampRules(LogitFilter):
    """Timestamps come in pairs, never go back, start the transcript, and win by total weight.

    Ids from `begin` to before `end` are timestamps; text is below `eot` and, where a fine-tune has
    added some, from `end` on. The first timestamp is at most `begin + latest_initial`; None lifts
    that bound.
    """

    begin: int
    end: int
    eot: int
    no_timestamps: int
    latest_initial: int | None

    @cached_property
    def _tokens(self) -> TimestampTokens:
        return TimestampTokens(self.begin, self.end, self.eot, self.no_timestamps)

    @override
    def apply(self, logits_rv: Float32, written_rn: Int64) -> None:
        if not written_rn.shape[1]:
            last = self.end
            if self.latest_initial is not None:
                last = min(last, self.begin + self.latest_initial + 1)
            logits_rv[:, : self.begin] = -np.inf
            logits_rv[:, last:] = -np.inf
            return
        arithmetic().apply_timestamp_rules(logits_rv, written_rn, self._tokens)


class Continued(LogitFilter):
    """Another filter, to which tokens before the sampled ones count as sampled."""

    def __init__(self, following: LogitFilter, before: Sequence[int]) -> None:
        self._following = following
        self._before_1n = np.asarray(before, np.int64)[None]

    @override
    def apply(self, logits_rv: Float32, written_rn: Int64) -> None:
        before_rn = np.repeat(self._before_1n, len(written_rn), axis=0)
        self._following.apply(logits_rv, np.concatenate([before_rn, written_rn], axis=1))


@dataclass(frozen=True, kw_only=True)
class FinishSegments(LogitFilter):
    """A text does not end where a segment begins, up to the timestamp `latest`.

    With such an end Whisper leaves a segment to the next window, if there is one. Ids from `begin`
    on are timestamps.
    """

    begin: int
    eot: int
    latest: int

    @override
    def apply(self, logits_rv: Float32, written_rn: Int64) -> None:
        if written_rn.shape[1] < 2:
            return
        last_r2 = written_rn[:, -2:]
        timestamps = timestamps_from(self.begin)
        begins_r = ((last_r2 >= timestamps.start) & (last_r2 < timestamps.stop)).all(axis=1)
        logits_rv[begins_r & (written_rn[:, -1] <= self.latest), self.eot] = -np.inf
