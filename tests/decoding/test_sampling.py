"""The native sampling kernels give what their definitions give."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvcast.decoding.sampling import (
    NativeKernels,
    best_first,
    log_probabilities,
    log_softmax,
    log_sum_exp,
    sampling_kernels,
    softmax,
)
from kvcast.decoding.sampling_kernels import (
    Distribution,
    NumpyKernels,
    Penalties,
    SamplingKernels,
    TimestampTokens,
)
from kvcast.errors import KvcastError
from kvcast.runtimes.native import build
from runtimes.native.guarded import guarded
from runtimes.native.native_calls import all_instructions, machine

LOGITS = st.floats(-200, 200, width=32) | st.just(-np.inf)
# Few different values, many of them equal, in rows shorter and longer than blocks of a row.
WIDE = st.tuples(st.integers(1, 3), st.integers(1, 700))
TIED_ROWS = arrays(np.float32, WIDE, elements=st.sampled_from([-np.inf, -3.0, 0.0, 1.0, 1.5]))
NAN_ROWS = arrays(np.float32, WIDE, elements=LOGITS | st.sampled_from([np.nan, np.inf]))
ROWS = arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 90)), elements=LOGITS).filter(
    lambda logits_rv: np.isfinite(logits_rv.max(axis=1)).all()
)


def exact_log_sum_exp(logits_rv: np.ndarray) -> np.ndarray:
    return np.logaddexp.reduce(logits_rv.astype(np.float64), axis=1)


def sorted_k(logits_rv: np.ndarray, k: int) -> list[list[int]]:
    return np.argsort(-logits_rv, axis=1, kind="stable")[:, :k].tolist()


@cache
def all_kernels() -> list[SamplingKernels]:
    """NumPy's, and the library's with each set of instructions."""
    return [NumpyKernels(), *(NativeKernels(machine(1, name)) for name in all_instructions())]


@given(logits_rv=TIED_ROWS | ROWS, data=st.data())
def test_top_tokens_are_a_stable_descending_sort_so_ties_go_to_the_lower_index(logits_rv, data):
    k = data.draw(st.integers(0, logits_rv.shape[1]))
    exact_r = exact_log_sum_exp(logits_rv)
    for each in all_kernels():
        tokens_rk, logits_rk, log_sums_r = each.top_tokens(logits_rv, k)
        assert tokens_rk.tolist() == sorted_k(logits_rv, k)
        assert logits_rk.tolist() == np.take_along_axis(logits_rv, tokens_rk, axis=1).tolist()
        np.testing.assert_allclose(log_sums_r, exact_r, rtol=1e-6, atol=1e-6)
        assert each.top_tokens(logits_rv, k, sums=False).tokens_rk.tolist() == tokens_rk.tolist()


@given(logits_rv=NAN_ROWS, data=st.data())
def test_top_tokens_say_which_rows_have_what_is_no_number(logits_rv, data):
    k = data.draw(st.integers(1, logits_rv.shape[1]))
    odd_r = np.isnan(logits_rv).any(axis=1) | np.isposinf(logits_rv).any(axis=1)
    for each in all_kernels():
        tokens_rk, logits_rk, log_sums_r = each.top_tokens(logits_rv, k)
        assert tokens_rk.shape == logits_rk.shape == (len(logits_rv), k)
        assert tokens_rk[~odd_r].tolist() == sorted_k(logits_rv[~odd_r], k)
        assert (np.isnan(logits_rk).all(axis=1) == odd_r).all()
        assert (np.isnan(log_sums_r) == odd_r).all()


@pytest.mark.parametrize("vocab", [51864, 51865, 51866])
def test_top_tokens_of_a_whole_vocabulary(vocab: int):
    logits_rv = np.random.default_rng(vocab).normal(size=(3, vocab)).astype(np.float32)
    logits_rv[1, 50363:] = -np.inf
    logits_rv[1, [7, 50000]] = logits_rv[1].max() + 1
    # As a runtime's logits lie between those of other positions, and before memory's end.
    apart_rpv = guarded(np.stack([logits_rv + 1, logits_rv], axis=1))
    exact_r = exact_log_sum_exp(logits_rv)
    for each in all_kernels():
        for k in (1, 2, 6, 11, 900):
            top = each.top_tokens(apart_rpv[:, 1], k)
            assert top.tokens_rk.tolist() == sorted_k(logits_rv, k)
        np.testing.assert_allclose(top.log_sums_r, exact_r, rtol=1e-6)
        alone = each.top_tokens(logits_rv[2:], k)
        assert np.array_equal(alone.log_sums_r, top.log_sums_r[2:])


DISTRIBUTIONS = st.builds(
    Distribution,
    temperature=st.sampled_from([1e-300, 0.3, 1.0, 2.5, 1e300]),
    top_k=st.none() | st.integers(1, 900),
    top_p=st.just(1.0) | st.floats(0.01, 0.999),
    min_p=st.just(0.0) | st.floats(0, 1),
)


@given(
    seed=st.integers(0, 9999),
    size=st.integers(1, 3000),
    tied=st.booleans(),
    distribution=DISTRIBUTIONS,
    number=st.floats(0, 1, exclude_max=True),
)
def test_draws_take_what_the_truncations_leave_at_its_probability(
    seed, size, tied, distribution, number
):
    logits_v = np.random.default_rng(seed).normal(0, 4, size).astype(np.float32)
    logits_v = logits_v.round() if tied else logits_v
    scaled_c = (logits_v - logits_v.max()) / np.float32(distribution.divisor)
    tokens_c = np.arange(len(logits_v))
    for truncation in distribution.truncations:
        kept_c = truncation.keeps(scaled_c)
        scaled_c, tokens_c = scaled_c[kept_c], tokens_c[kept_c]
    weights_c = np.exp(scaled_c.astype(np.float64))
    ends_c = weights_c.cumsum() / weights_c.sum()
    for each in all_kernels():
        at = tokens_c.tolist().index(each.draw(logits_v, distribution, number))
        assert (ends_c[at - 1] if at else 0) - 1e-5 <= number <= ends_c[at] + 1e-5


@pytest.mark.parametrize(
    "distribution",
    [
        Distribution(0.8),
        Distribution(0.8, top_k=40),
        Distribution(1.1, top_p=0.9),
        Distribution(1.5, min_p=0.02),
        Distribution(0.7, 50, 0.95, 0.02),
    ],
)
def test_the_library_draws_as_numpy(distribution: Distribution):
    rng = np.random.default_rng(0)
    reference, *others = all_kernels()
    for number in [0, *rng.random(40), np.nextafter(1, 0)]:
        logits_v = rng.normal(0, 3, 51865).astype(np.float32)
        logits_v[rng.integers(0, 51865, 500)] = -np.inf
        expected = reference.draw(logits_v, distribution, number)
        assert [other.draw(logits_v, distribution, number) for other in others] == [expected] * len(
            others
        )


def test_rows_without_numbers_have_no_draws():
    for odd in ([np.nan, 1.0], [1.0, np.nan], [-np.inf] * 3, [np.inf, 0.0]):
        for each in all_kernels():
            for distribution in (Distribution(1.0), Distribution(1.0, top_k=1, top_p=0.5)):
                assert each.draw(np.array(odd, np.float32), distribution, 0.5) is None


@given(data=st.data(), vocab=st.integers(1, 90))
def test_penalties_are_those_of_numpy(data, vocab):
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(0, 20)))
    tokens_rn = data.draw(arrays(np.int64, shape, elements=st.integers(0, vocab - 1)))
    logits_rv = data.draw(arrays(np.float32, (shape[0], vocab), elements=LOGITS))
    number = st.just(0.0) | st.floats(-2, 2)
    penalties = Penalties(data.draw(st.floats(0.1, 5)), data.draw(number), data.draw(number))
    results = []
    for each in all_kernels():
        results.append(logits_rv.copy())
        each.penalise(results[-1], tokens_rn, penalties)
    assert all(np.array_equal(results[0], other) for other in results[1:])


@given(data=st.data(), begin=st.integers(1, 12), added=st.integers(0, 3))
def test_timestamp_rules_are_those_of_numpy(data, begin, added):
    vocab = begin + 10 + added
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 6)))
    generated_rn = data.draw(arrays(np.int64, shape, elements=st.integers(0, vocab - 1)))
    # Eighths keep away from ties that each side's rounding decides.
    eighths = st.integers(-32, 32).map(lambda number: number / 8) | st.just(-np.inf)
    logits_rv = data.draw(arrays(np.float32, (shape[0], vocab), elements=eighths))
    timestamps = TimestampTokens(begin, vocab - added, max(0, begin - 2), begin - 1)
    results = []
    for each in all_kernels():
        results.append(guarded(logits_rv.copy()))
        each.apply_timestamp_rules(results[-1], generated_rn, timestamps)
    assert all(np.array_equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("problem", [None, KvcastError("it does not load")])
def test_without_a_library_numpy_computes(problem: KvcastError | None, monkeypatch):
    def find_library() -> None:
        if problem is not None:
            raise problem

    monkeypatch.setattr(build, "find_library", find_library)
    assert isinstance(sampling_kernels.__wrapped__(), NumpyKernels)


@given(data=st.data())
def test_the_best_of_all_rows_come_in_the_order_of_a_stable_sort(data):
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 5)))
    scores_rk = data.draw(arrays(np.float32, shape, elements=st.sampled_from([-np.inf, 0.0, 1.0])))
    tokens_rk = data.draw(arrays(np.intp, shape, elements=st.integers(0, 99)))
    count = data.draw(st.integers(1, 20))
    best = best_first(scores_rk, tokens_rk, count)
    every = [
        (float(scores_rk[place]), place[0], int(tokens_rk[place])) for place in np.ndindex(*shape)
    ]
    every.sort(key=lambda scored: -scored[0])
    assert list(zip(*best, strict=True)) == every[:count]


@given(logits_rv=ROWS)
def test_log_sum_exp_and_both_softmaxes_are_exact_and_the_logarithmic_is_in_place(logits_rv):
    sums_r = exact_log_sum_exp(logits_rv)
    exact = logits_rv - sums_r[:, None]
    np.testing.assert_allclose(softmax(logits_rv), np.exp(exact), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(log_sum_exp(logits_rv), sums_r, rtol=1e-5, atol=1e-4)
    returned = log_softmax(logits_rv)
    assert returned is logits_rv
    np.testing.assert_allclose(returned, exact, atol=1e-4)


@given(logits_rv=ROWS, data=st.data())
def test_log_probabilities_are_logits_less_their_log_sum_exp(logits_rv, data):
    rows, vocab = logits_rv.shape
    shape = (rows, data.draw(st.integers(1, 3)))
    tokens_rk = data.draw(arrays(np.intp, shape, elements=st.integers(0, vocab - 1)))
    chosen_rk = np.take_along_axis(logits_rv, tokens_rk, axis=1).astype(np.float64)
    exact = chosen_rk - exact_log_sum_exp(logits_rv)[:, None]
    np.testing.assert_allclose(
        log_probabilities(logits_rv.copy(), tokens_rk), exact, rtol=1e-5, atol=1e-4
    )


def test_log_sum_exp_of_nothing_but_minus_infinity_is_minus_infinity():
    logits_rv = np.array([[-np.inf, -np.inf], [0, -np.inf]], np.float32)
    assert log_sum_exp(logits_rv).tolist() == [-np.inf, 0]
    assert logits_rv.tolist() == [[-np.inf, -np.inf], [0, -np.inf]]
