"""Logit filters of Whisper's windows: openai/whisper's decoding.py has the same rules.

Knows no options.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from kvcast.decoding.filters import LogitFilter
from kvcast.decoding.numerics import log_sum_exp
from kvcast.runtimes.base import Float32, Int64
from kvcast.whisper.tokenizer import timestamps_from

_WEAKEST = 1e-6
"""Penalties below this, or above its inverse, would overflow in fp32; all of them say never."""


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

    @override
    def apply(self, logits_rv: Float32, written_rn: Int64) -> None:
        if not written_rn.shape[1]:
            last = self.end
            if self.latest_initial is not None:
                last = min(last, self.begin + self.latest_initial + 1)
            logits_rv[:, : self.begin] = -np.inf
            logits_rv[:, last:] = -np.inf
            return
        logits_rv[:, self.no_timestamps] = -np.inf
        for row_v, written_n in zip(logits_rv, written_rn, strict=True):
            self._keep_order(row_v, written_n)
        # A timestamp is due once all of them together outweigh the best single text token.
        total_r = log_sum_exp(logits_rv[:, self.begin : self.end])
        best_r = logits_rv[:, : self.begin].max(axis=1)
        added_r = logits_rv[:, self.end :].max(axis=1, initial=-np.inf)
        due_r = total_r > np.maximum(best_r, added_r)
        logits_rv[due_r, : self.begin] = -np.inf
        logits_rv[due_r, self.end :] = -np.inf

    def _keep_order(self, row_v: Float32, written_n: Int64) -> None:
        begin, end = self.begin, self.end
        is_timestamp_n = (written_n >= begin) & (written_n < end)
        timestamps_at = np.flatnonzero(is_timestamp_n)
        if not timestamps_at.size:
            return
        latest, last = int(written_n[timestamps_at[-1]]), len(written_n) - 1
        after_timestamp = timestamps_at[-1] == last
        opening = after_timestamp and (last == 0 or is_timestamp_n[last - 1])
        closing = after_timestamp and not opening
        if opening:  # text must follow
            row_v[begin:end] = -np.inf
        elif closing:  # the next segment's start must follow, or the end
            row_v[: self.eot] = -np.inf
            row_v[end:] = -np.inf
        # A segment may start where the last one ended, but must not end where it starts.
        row_v[begin : latest if closing else latest + 1] = -np.inf


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
