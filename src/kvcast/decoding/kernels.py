"""The arithmetic over rows of logits in the native library, whichever runtime made them.

`src/logits.hpp` describes the functions. Knows no meaning of tokens.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.decoding.arithmetic import Arithmetic, Penalties, Survey, TimestampTokens
from kvcast.decoding.truncation import Distribution
from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.native.library import Machine

T = TypeVar("T", bound=np.generic)


class NativeArithmetic(Arithmetic):
    """Functions that run on the caller's thread; any number of threads may call them at once."""

    def __init__(self, machine: Machine) -> None:
        """Take a machine for its instructions; its threads rest."""
        self._machine = machine

    @override
    def survey(self, logits_rv: Float32, k: int, *, sums: bool = True) -> Survey:
        out_rx = np.empty((len(logits_rv), 2 * k + 1), np.int32)
        logits_rv = _beside(logits_rv)
        self._machine.call("kvcast_likeliest", *_rows(logits_rv), k, sums, out_rx.ctypes.data)
        numbers_rx = out_rx.view(np.float32)
        return Survey(out_rx[:, :k], numbers_rx[:, k:-1], numbers_rx[:, -1])

    @override
    def draw(self, logits_v: Float32, distribution: Distribution, number: float) -> int | None:
        logits_v = np.ascontiguousarray(logits_v, np.float32)
        token = np.empty(1, np.int64)
        self._machine.call(
            "kvcast_draw",
            logits_v.ctypes.data,
            len(logits_v),
            distribution.divisor,
            distribution.top_k or 0,
            distribution.top_p,
            distribution.min_p,
            number,
            token.ctypes.data,
        )
        return None if token[0] < 0 else int(token[0])

    @override
    def penalise(self, logits_rv: Float32, tokens_rn: Int64, penalties: Penalties) -> None:
        changed_rv, tokens_rn = _beside(logits_rv), _beside(tokens_rn)
        self._machine.call("kvcast_penalise", *_rows(changed_rv), *_tokens(tokens_rn), *penalties)
        if changed_rv is not logits_rv:
            logits_rv[...] = changed_rv

    @override
    def apply_timestamp_rules(
        self, logits_rv: Float32, written_rn: Int64, timestamps: TimestampTokens
    ) -> None:
        changed_rv, written_rn = _beside(logits_rv), _beside(written_rn)
        self._machine.call(
            "kvcast_apply_timestamp_rules", *_rows(changed_rv), *_tokens(written_rn), *timestamps
        )
        if changed_rv is not logits_rv:
            logits_rv[...] = changed_rv


def _beside(numbers_rn: NDArray[T]) -> NDArray[T]:
    """Return rows whose numbers lie side by side: the same ones, if they do."""
    beside = numbers_rn.strides[1] == numbers_rn.itemsize
    return numbers_rn if beside else np.ascontiguousarray(numbers_rn)


def _rows(logits_rv: Float32) -> tuple[int, int, int, int]:
    """Return address, stride, rows and vocabulary as C takes them."""
    return (logits_rv.ctypes.data, logits_rv.strides[0] // 4, *logits_rv.shape)


def _tokens(tokens_rn: Int64) -> tuple[int, int, int]:
    """Return address, stride and number of each row as C takes them."""
    return tokens_rn.ctypes.data, tokens_rn.strides[0] // 8, tokens_rn.shape[1]
