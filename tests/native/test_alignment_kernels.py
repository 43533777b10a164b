"""Scores of alignment heads, and how tokens stand out: NumPy's, with any number of threads."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvcast.native.alignment import scores_plan, standing_out_plan
from kvcast.native.building import Plan
from kvcast.native.library import Machine
from kvcast.runtimes.attention_by_token import attention_by_token
from native.guarded import guarded
from native.native_calls import Floats, all_instructions, machine

seeds = st.integers(0, 2**32 - 1)


def run(runner: Machine, plan: Plan) -> None:
    assert not plan.arena
    runner.run(plan.words)


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
        found = []
        for threads in (1, 3):
            out = guarded(np.full((heads, tokens, positions), np.nan, np.float32))
            plan = scores_plan(queries_sx, [stored for stored, _ in keys], out)
            run(machine(threads, name), plan)
            found.append(out)
        np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-4)
        assert np.array_equal(*found)


@given(
    heads=st.integers(1, 4),
    tokens=st.integers(2, 40),
    positions=st.integers(1, 200),
    padding=st.integers(0, 20),
    seed=seeds,
)
@settings(deadline=None)
def test_tokens_stand_out_as_in_numpy(heads, tokens, positions, padding, seed):
    """Frames of padding are not read."""
    rng = np.random.default_rng(seed)
    scores_hst = 3 * rng.standard_normal((heads, tokens, positions + padding)).astype(np.float32)
    wanted_st = attention_by_token(scores_hst, positions)
    scores_hst[..., positions:] = np.nan
    for name in all_instructions():
        found = []
        for threads in (1, 3):
            out_st = guarded(np.full((tokens, positions), np.nan, np.float32))
            run(machine(threads, name), standing_out_plan(guarded(scores_hst), out_st))
            found.append(out_st)
        # Where all tokens attend almost alike, the division makes rounding errors larger.
        np.testing.assert_allclose(found[0], wanted_st, atol=1e-3)
        assert np.array_equal(*found)


def test_no_token_stands_out_where_all_attend_alike():
    scores_hst = np.zeros((2, 4, 9), np.float32)
    for name in all_instructions():
        out_st = np.ones((4, 9), np.float32)
        run(machine(2, name), standing_out_plan(scores_hst, out_st))
        assert not out_st.any()


def test_scores_without_a_number_do_no_harm():
    """A broken model's."""
    scores_hst = np.full((2, 4, 70), np.nan, np.float32)
    for name in all_instructions():
        out_st = guarded(np.ones((4, 70), np.float32))
        run(machine(2, name), standing_out_plan(scores_hst, out_st))
