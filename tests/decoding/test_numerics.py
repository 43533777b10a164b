"""The fast arithmetic gives what the definitions give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvcast.decoding.numerics import (
    best_first,
    log_probabilities,
    log_softmax,
    log_sum_exp,
    softmax,
    top_k,
)

LOGITS = st.floats(-200, 200, width=32) | st.just(-np.inf)
# Few different values, many of them equal, in rows shorter and longer than blocks of a row.
WIDE = st.tuples(st.integers(1, 3), st.integers(1, 700))
TIED_ROWS = arrays(np.float32, WIDE, elements=st.sampled_from([-np.inf, -3.0, 0.0, 1.0, 1.5]))
NAN_ROWS = arrays(np.float32, WIDE, elements=LOGITS | st.just(np.nan))
ROWS = arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 90)), elements=LOGITS).filter(
    lambda logits_rv: np.isfinite(logits_rv.max(axis=1)).all()
)


def exact_log_sum_exp(logits_rv: np.ndarray) -> np.ndarray:
    return np.logaddexp.reduce(logits_rv.astype(np.float64), axis=1)


def sorted_k(logits_rv: np.ndarray, k: int) -> list[list[int]]:
    return np.argsort(-logits_rv, axis=1, kind="stable")[:, :k].tolist()


@given(logits_rv=TIED_ROWS | ROWS, data=st.data())
def test_top_k_is_a_stable_descending_sort_so_ties_go_to_the_lower_index(logits_rv, data):
    k = data.draw(st.integers(1, logits_rv.shape[1]))
    assert top_k(logits_rv, k).tolist() == sorted_k(logits_rv, k)


@given(logits_rv=NAN_ROWS, data=st.data())
def test_top_k_finds_as_many_where_some_are_no_numbers(logits_rv, data):
    k = data.draw(st.integers(1, logits_rv.shape[1]))
    numbers = ~np.isnan(logits_rv).any(axis=1)
    best_rk = top_k(logits_rv, k)
    assert best_rk.shape == (len(logits_rv), k)
    assert best_rk[numbers].tolist() == sorted_k(logits_rv[numbers], k)


@pytest.mark.parametrize("vocab", [51864, 51865, 51866])
@pytest.mark.parametrize("k", [1, 2, 6, 11])
def test_top_k_over_a_whole_vocabulary(vocab: int, k: int):
    logits_rv = np.random.default_rng(k).normal(size=(3, vocab)).astype(np.float32)
    logits_rv[1, 50363:] = -np.inf
    logits_rv[1, [7, 50000]] = logits_rv[1].max() + 1
    # As a runtime's logits lie between those of other positions.
    apart_rpv = np.stack([logits_rv, logits_rv + 1], axis=1)
    assert top_k(apart_rpv[:, 0], k).tolist() == sorted_k(logits_rv, k)


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
def test_softmax_is_exponentials_over_their_sum(logits_rv):
    exact = np.exp(logits_rv.astype(np.float64) - exact_log_sum_exp(logits_rv)[:, None])
    np.testing.assert_allclose(softmax(logits_rv), exact, rtol=1e-4, atol=1e-7)


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


@given(logits_rv=ROWS)
def test_log_sum_exp_is_the_log_of_the_summed_exponentials(logits_rv):
    np.testing.assert_allclose(
        log_sum_exp(logits_rv), exact_log_sum_exp(logits_rv), rtol=1e-5, atol=1e-4
    )


def test_log_sum_exp_of_nothing_but_minus_infinity_is_minus_infinity():
    logits_rv = np.array([[-np.inf, -np.inf], [0, -np.inf]], np.float32)
    assert log_sum_exp(logits_rv).tolist() == [-np.inf, 0]
    assert logits_rv.tolist() == [[-np.inf, -np.inf], [0, -np.inf]]


@given(logits_rv=ROWS)
def test_log_softmax_is_in_place_and_exact(logits_rv):
    exact = logits_rv - exact_log_sum_exp(logits_rv)[:, None]
    returned = log_softmax(logits_rv)
    assert returned is logits_rv
    np.testing.assert_allclose(returned, exact, atol=1e-4)
