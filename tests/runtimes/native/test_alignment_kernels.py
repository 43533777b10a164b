"""What alignment needs, with any number of threads, is NumPy's.

Scores of heads, how tokens stand out, where they begin, and how probable they were.
"""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.runtimes.alignment import attention_by_token, dtw
from kvcast.runtimes.native.interpreter import (
    attention_by_token_plan,
    dtw_plan,
    probabilities_plan,
    scores_plan,
)
from kvcast.runtimes.native.library import Format, Machine, aligned
from kvcast.runtimes.native.plan_builder import Matrix as Packed
from kvcast.runtimes.native.plan_builder import Plan
from runtimes.native.guarded import guarded
from runtimes.native.native_calls import (
    BUNDLE_FORMATS,
    Floats,
    Matrix,
    all_instructions,
    machine,
    rounded,
)

seeds = st.integers(0, 2**32 - 1)


def run(runner: Machine, plan: Plan) -> None:
    words, arena = plan.words.copy(), aligned(plan.arena)
    words[plan.in_arena] += arena.ctypes.data
    runner.run(words)


def lines(keys_td: Floats, dtype: str) -> tuple[NDArray[np.generic], NDArray[np.float64]]:
    """Return keys as a cache has them, and what they stand for."""
    if dtype != "int8":
        stored = guarded(keys_td.astype(dtype))
        return stored, stored.astype(np.float64)
    scales = np.abs(keys_td).max(-1, keepdims=True) / np.float32(127)
    codes = np.rint(keys_td / scales).astype(np.int8)
    stored = guarded(np.concatenate([codes, scales.view(np.int8)], axis=1))
    return stored, codes * scales.astype(np.float64)


@given(
    heads=st.integers(1, 3),
    tokens=st.integers(1, 70),
    positions=st.integers(1, 200),
    head_dim=st.integers(1, 80),
    dtype=st.sampled_from(["float32", "float16", "int8"]),
    seed=seeds,
)
@settings(deadline=None)
def test_scores_are_scaled_products(heads, tokens, positions, head_dim, dtype, seed):
    rng = np.random.default_rng(seed)
    queries_sx = guarded(rng.normal(size=(tokens, heads * head_dim)).astype(np.float32))
    shape = (positions, head_dim)
    keys = [lines(rng.normal(size=shape).astype(np.float32), dtype) for _ in range(heads)]
    queries_shd = queries_sx.reshape(tokens, heads, head_dim).astype(np.float64)
    wanted = np.einsum("shd,htd->hst", queries_shd, np.stack([meant for _, meant in keys]))
    wanted *= head_dim**-0.5
    for name in all_instructions():
        results = []
        for threads in (1, 3):
            out = guarded(np.full((heads, tokens, positions), np.nan, np.float32))
            plan = scores_plan(queries_sx, [stored for stored, _ in keys], out)
            run(machine(threads, name), plan)
            results.append(out)
        np.testing.assert_allclose(results[0], wanted, rtol=1e-4, atol=1e-4)
        assert np.array_equal(*results)


def rounding_errors(scores_hst: Floats) -> NDArray[np.float64]:
    """Bound the errors of fp32 at each frame: dividing by a small deviation enlarges them."""
    weights_hst = np.exp(scores_hst.astype(np.float64))
    weights_hst /= weights_hst.sum(axis=2, keepdims=True)
    deviation_ht = weights_hst.std(axis=1)  # 0 where the results are exact zeros
    rounding_ht = 16 * np.finfo(np.float32).eps * weights_hst.max(axis=1)
    error_ht = np.divide(
        rounding_ht, deviation_ht, np.zeros_like(rounding_ht), where=deviation_ht > 0
    )
    padded_t = np.pad(error_ht.max(axis=0), 3)  # a median moves by no more than one of its seven
    return np.lib.stride_tricks.sliding_window_view(padded_t, 7).max(axis=1)


@given(
    heads=st.integers(1, 4),
    tokens=st.integers(2, 40),
    positions=st.integers(1, 200),
    padding=st.integers(0, 20),
    seed=seeds,
)
@settings(deadline=None)
@example(heads=1, tokens=2, positions=64, padding=3, seed=1)  # frame 59 has almost one weight
def test_tokens_stand_out_as_in_numpy(heads, tokens, positions, padding, seed):
    """Frames of padding are not read."""
    rng = np.random.default_rng(seed)
    scores_hst = 3 * rng.standard_normal((heads, tokens, positions + padding)).astype(np.float32)
    wanted_st = attention_by_token(scores_hst, positions)
    allowed_t = 1e-4 + rounding_errors(scores_hst[..., :positions])
    scores_hst[..., positions:] = np.nan
    for name in all_instructions():
        results = []
        for threads in (1, 3):
            out_st = guarded(np.full((tokens, positions), np.nan, np.float32))
            run(machine(threads, name), attention_by_token_plan(guarded(scores_hst), out_st))
            results.append(out_st)
        assert (np.abs(results[0] - wanted_st) <= allowed_t).all()
        assert np.array_equal(*results)


def test_no_token_stands_out_where_all_attend_alike():
    scores_hst = np.zeros((2, 4, 9), np.float32)
    for name in all_instructions():
        out_st = np.ones((4, 9), np.float32)
        run(machine(2, name), attention_by_token_plan(scores_hst, out_st))
        assert not out_st.any()


def test_scores_without_a_number_do_no_harm():
    """A broken model's."""
    scores_hst = np.full((2, 4, 70), np.nan, np.float32)
    for name in all_instructions():
        out_st = guarded(np.ones((4, 70), np.float32))
        run(machine(2, name), attention_by_token_plan(scores_hst, out_st))


@given(
    rows=st.integers(1, 40),
    frames=st.integers(1, 200),
    values=st.sampled_from([3, 1000]),
    seed=seeds,
)
@settings(deadline=None)
def test_rows_begin_where_they_do_in_numpy(rows, frames, values, seed):
    """With few values many paths cost the same."""
    weights_nt = np.random.default_rng(seed).integers(-values, values + 1, (rows, frames))
    weights_nt = guarded((weights_nt / np.float32(values)).astype(np.float32))
    for name in all_instructions():
        begins_n = guarded(np.full(rows, -1, np.int64))
        run(machine(2, name), dtw_plan(weights_nt, begins_n))
        assert begins_n.tolist() == dtw(weights_nt).tolist()


def test_rows_without_a_number_begin_somewhere():
    """A broken model's."""
    begins_n = guarded(np.full(3, -1, np.int64))
    weights_nt = guarded(np.full((3, 5), np.nan, np.float32))
    run(machine(2, "plain"), dtw_plan(weights_nt, begins_n))
    assert ((begins_n >= 0) & (begins_n < 5)).all()


@given(
    rows=st.integers(1, 70),
    vocab=st.integers(1, 1200),
    inputs=st.integers(1, 130),
    format_=st.sampled_from(BUNDLE_FORMATS),
    seed=seeds,
)
@settings(deadline=None)
def test_probabilities_are_a_softmax_of_the_product(rows, vocab, inputs, format_, seed):
    """Some tokens count; there may be whole tiles of which none does."""
    rng = np.random.default_rng(seed)
    matrix = Matrix(rng, format_, vocab, inputs, bias=False)
    x_rk = guarded(rng.normal(size=(rows, inputs)).astype(np.float32))
    tokens_r = guarded(rng.integers(0, vocab, rows))
    counts_v = (rng.random(vocab) < 0.7) & (np.arange(vocab) % 300 > 150)
    counts_v[tokens_r] = True
    among_v = guarded(np.where(counts_v, 0, -np.inf).astype(np.float32))
    read_rk = x_rk.astype(np.float64) if format_ == Format.F32 else rounded(x_rk).floats()
    logits_rv = read_rk[:, :inputs] @ matrix.weights.T
    weights_rv = np.exp(logits_rv - logits_rv[:, counts_v].max(axis=1, keepdims=True)) * counts_v
    wanted_r = weights_rv[np.arange(rows), tokens_r] / weights_rv.sum(axis=1)
    for name in all_instructions():
        results = []
        for threads in (1, 3):
            runner = machine(threads, name)
            packed = Packed(format_, vocab, inputs, matrix.packed(runner))
            out_r = guarded(np.full(rows, np.nan, np.float32))
            run(runner, probabilities_plan(x_rk, packed, tokens_r, among_v, out_r))
            results.append(out_r)
        np.testing.assert_allclose(results[0], wanted_r, rtol=1e-3, atol=1e-30)
        assert np.array_equal(*results)


def test_a_token_past_the_vocabulary_is_refused():
    x_rk, among_v, out_r = np.ones((1, 8), np.float32), np.zeros(9, np.float32), np.zeros(1)
    runner = machine(1, "plain")
    packed = Packed(Format.F32, 9, 8, runner.pack(Format.F32, np.ones((9, 8), np.float32)))
    for token in (-1, 9):
        plan = probabilities_plan(x_rk, packed, np.array([token]), among_v, out_r.astype("f"))
        with pytest.raises(KvcastError, match="past the vocabulary"):
            run(runner, plan)
