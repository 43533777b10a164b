"""Sampling and log-softmax over rows of fp32 logits, by the native library where there is one.

`sampling_kernels.py` defines temperature, top-k, top-p and min-p.
"""

import math
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.decoding.sampling_kernels import (
    Distribution,
    NumpyKernels,
    Penalties,
    SamplingKernels,
    TimestampTokens,
    TopTokens,
)
from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.native.library import Machine

_NOT_FINITE = "the model's logits are NaN or infinite: its weights are damaged"


class Likeliest(NamedTuple):
    tokens_rk: NDArray[np.signedinteger]  # best first; ties go to the lower index
    logprobs_rk: Float32
    log_sums_r: Float32  # log-softmax is logits minus this


@cache
def sampling_kernels() -> SamplingKernels:
    """Return the native library's kernels if it is there (it is not compiled), else NumPy's."""
    from kvcast.runtimes.native.build import find_library

    try:
        return NumpyKernels() if find_library() is None else NativeKernels(Machine(1))
    except KvcastError:  # it does not load, or this processor lacks the ISA
        return NumpyKernels()


def likeliest(logits_rv: Float32, k: int) -> Likeliest:
    """Return each row's k >= 0 likeliest tokens, or all; KvcastError for NaN or infinite logits."""
    tokens_rk, logits_rk, log_sums_r = sampling_kernels().top_tokens(
        logits_rv, min(k, logits_rv.shape[1])
    )
    if not math.isfinite(np.add.reduce(log_sums_r)):
        raise KvcastError(_NOT_FINITE)
    return Likeliest(tokens_rk, logits_rk - log_sums_r[:, None], log_sums_r)


def top_k(logits_rv: Float32, k: int) -> tuple[NDArray[np.signedinteger], Float32]:
    """Return indices and values of each row's k largest [rows, k]; ties by lower index."""
    top = sampling_kernels().top_tokens(logits_rv, min(k, logits_rv.shape[1]), sums=False)
    return top.tokens_rk, top.logits_rk


def log_sum_exp(logits_rv: Float32) -> Float32:
    """Return log(sum(exp(row))), [rows]; -inf for a row of only -inf."""
    return sampling_kernels().top_tokens(logits_rv, 0).log_sums_r


def log_probabilities(logits_rv: Float32, tokens_rk: NDArray[np.intp]) -> Float32:
    """Return the log-softmax of each row at its tokens, [rows, k]."""
    chosen_rk: Float32 = logits_rv[np.arange(len(logits_rv))[:, None], tokens_rk]
    chosen_rk -= log_sum_exp(logits_rv)[:, None]
    return chosen_rk


def log_softmax(logits_rv: Float32) -> Float32:
    """Return the logits [rows, vocab] as log-probabilities; they are overwritten."""
    np.subtract(logits_rv, log_sum_exp(logits_rv)[:, None], out=logits_rv)
    return logits_rv


def softmax(logits_rv: Float32) -> Float32:
    """Return probabilities [rows, vocab]; -inf becomes 0."""
    weights_rv: Float32 = np.exp(logits_rv - logits_rv.max(axis=1, keepdims=True))
    weights_rv /= weights_rv.sum(axis=1, keepdims=True)
    return weights_rv


def likeliest_token(logits_v: Float32) -> int:
    """Return the likeliest token; raises KvcastError for NaN or infinite logits."""
    token = int(logits_v.argmax())
    if not math.isfinite(logits_v[token]):  # argmax finds a NaN if there is one
        raise KvcastError(_NOT_FINITE)
    return token


def draw(logits_v: Float32, distribution: Distribution, uniform: float) -> int:
    """Draw a token by inverse CDF, `uniform` in [0, 1); KvcastError for NaN or infinite logits."""
    token = sampling_kernels().draw(logits_v, distribution, uniform)
    if token is None:
        raise KvcastError(_NOT_FINITE)
    return token


def penalise(logits_rv: Float32, tokens_rn: Int64, penalties: Penalties) -> None:
    """Apply penalties in place, for the tokens [rows, n] that each row has seen."""
    sampling_kernels().penalise(logits_rv, tokens_rn, penalties)


def check_not_nan(scores: Float32) -> None:
    if np.isnan(scores).any():
        raise KvcastError(_NOT_FINITE)


def best_first(
    scores_rk: Float32, tokens_rk: NDArray[np.signedinteger], count: int
) -> tuple[list[float], list[int], list[int]]:
    """Return scores, rows and tokens of the best `count` continuations; ties in row-major order."""
    best = (-scores_rk).argsort(axis=None, kind="stable")[:count]
    scores, tokens = scores_rk.ravel()[best], tokens_rk.ravel()[best]
    rows = best // scores_rk.shape[1]
    return scores.tolist(), rows.tolist(), tokens.tolist()


T = TypeVar("T", bound=np.generic)


class NativeKernels(SamplingKernels):
    """Runs on the caller's thread; thread-safe."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    @override
    def top_tokens(self, logits_rv: Float32, k: int, *, sums: bool = True) -> TopTokens:
        out_rx = np.empty((len(logits_rv), 2 * k + 1), np.int32)
        logits_rv = _contiguous_rows(logits_rv)
        self._machine.call("kvcast_likeliest", *_rows(logits_rv), k, sums, out_rx.ctypes.data)
        floats_rx = out_rx.view(np.float32)
        return TopTokens(out_rx[:, :k], floats_rx[:, k:-1], floats_rx[:, -1])

    @override
    def draw(self, logits_v: Float32, distribution: Distribution, uniform: float) -> int | None:
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
            uniform,
            token.ctypes.data,
        )
        return None if token[0] < 0 else int(token[0])

    @override
    def penalise(self, logits_rv: Float32, tokens_rn: Int64, penalties: Penalties) -> None:
        changed_rv, tokens_rn = _contiguous_rows(logits_rv), _contiguous_rows(tokens_rn)
        self._machine.call("kvcast_penalise", *_rows(changed_rv), *_tokens(tokens_rn), *penalties)
        if changed_rv is not logits_rv:
            logits_rv[...] = changed_rv

    @override
    def apply_timestamp_rules(
        self, logits_rv: Float32, generated_rn: Int64, timestamps: TimestampTokens
    ) -> None:
        changed_rv, generated_rn = _contiguous_rows(logits_rv), _contiguous_rows(generated_rn)
        self._machine.call(
            "kvcast_apply_timestamp_rules", *_rows(changed_rv), *_tokens(generated_rn), *timestamps
        )
        if changed_rv is not logits_rv:
            logits_rv[...] = changed_rv


def _contiguous_rows(values_rn: NDArray[T]) -> NDArray[T]:
    is_contiguous = values_rn.strides[1] == values_rn.itemsize
    return values_rn if is_contiguous else np.ascontiguousarray(values_rn)


def _rows(logits_rv: Float32) -> tuple[int, int, int, int]:
    return (logits_rv.ctypes.data, logits_rv.strides[0] // 4, *logits_rv.shape)


def _tokens(tokens_rn: Int64) -> tuple[int, int, int]:
    """Return the rows' address, stride and length as C takes them."""
    return tokens_rn.ctypes.data, tokens_rn.strides[0] // 8, tokens_rn.shape[1]
