"""Norms and gates of rows: against NumPy, alone and among others, with any number of threads."""

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvcast.runtimes.native.library import Machine
from kvcast.runtimes.native.opcodes import Activation, Operation
from runtimes.native.guarded import guarded
from runtimes.native.native_calls import (
    Floats,
    Rounded,
    activated,
    address,
    all_instructions,
    call,
    flat,
    machine,
    rounded,
    strided,
    untouched,
)

EPSILON = 1e-5

seeds = st.integers(0, 2**32 - 1)
shapes = st.tuples(st.integers(1, 40), st.integers(1, 1000))

Call = Callable[[Machine, Floats, Floats | None, Rounded | None], None]
"""Runs an instruction on x, to floats and to int8."""


def random_rows(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    x = rng.normal(size=shape) * 10 ** rng.uniform(-2, 2, (shape[0], 1))
    return (x + rng.normal(size=(shape[0], 1))).astype(np.float32)


def check(run: Call, x: Floats, pad: int, wanted: NDArray[np.float64]) -> None:
    """Compare with NumPy, a row alone with itself among others, and numbers of threads."""
    rows, width = x.shape
    for name in all_instructions():
        results = []
        for threads in (1, 2, 3):
            out, to = strided(np.zeros_like(x), width + pad), Rounded(rows, width)
            run(machine(threads, name), strided(x, width + pad), out, to)
            assert untouched(out)
            assert to.equals(rounded(np.ascontiguousarray(out)))
            results.append(out)
        assert np.allclose(results[0], wanted, rtol=2e-5, atol=2e-5)
        assert all(np.array_equal(results[0], other) for other in results[1:])

        alone, codes, last = np.zeros((1, width), np.float32), Rounded(1, width), x[rows - 1 :]
        run(machine(2, name), last, alone, None)
        run(machine(2, name), last, None, codes)
        assert np.array_equal(alone, results[0][rows - 1 :])
        assert codes.equals(rounded(alone))

        in_place = x.copy()
        run(machine(2, name), in_place, in_place, None)
        assert np.array_equal(in_place, results[0])


@settings(max_examples=40, deadline=None)
@given(seeds, shapes, st.integers(0, 40), st.booleans())
def test_layer_norm(seed: int, shape: tuple[int, int], pad: int, plain: bool) -> None:
    rng = np.random.default_rng(seed)
    x = random_rows(rng, shape)
    gain, bias = guarded(rng.normal(size=(2, shape[1])).astype(np.float32))
    gains, shifts = (1, 0) if plain else (gain.astype(np.float64), bias.astype(np.float64))
    wide = x.astype(np.float64)
    mean, variance = wide.mean(1, keepdims=True), wide.var(1, keepdims=True)

    def run(runner: Machine, rows: Floats, out: Floats | None, to: Rounded | None) -> None:
        call(
            runner, Operation.LAYER_NORM, *flat(rows), *rows.shape,
            *((0, 0) if plain else (address(gain), address(bias))), EPSILON,
            *flat(out), address(to.data if to else None),
        )  # fmt: skip

    # Where a row's numbers are nearly one, float32 leaves little of their differences.
    x[:] = np.where(variance < 1e-2 * mean**2, 0, x)
    wide = x.astype(np.float64)
    mean, variance = wide.mean(1, keepdims=True), wide.var(1, keepdims=True)
    check(run, x, pad, (wide - mean) / np.sqrt(variance + EPSILON) * gains + shifts)


@settings(max_examples=40, deadline=None)
@given(seeds, shapes, st.integers(0, 40), st.booleans())
def test_rms_norm(seed: int, shape: tuple[int, int], pad: int, plain: bool) -> None:
    rng = np.random.default_rng(seed)
    x = random_rows(rng, shape)
    gain = guarded(rng.normal(size=shape[1]).astype(np.float32))
    wide = x.astype(np.float64)

    def run(runner: Machine, rows: Floats, out: Floats | None, to: Rounded | None) -> None:
        call(
            runner, Operation.RMS_NORM, *flat(rows), *rows.shape, 0 if plain else address(gain),
            EPSILON, *flat(out), address(to.data if to else None),
        )  # fmt: skip

    rms = np.sqrt((wide**2).mean(1, keepdims=True) + EPSILON)
    check(run, x, pad, wide / rms * (1 if plain else gain.astype(np.float64)))


@settings(max_examples=40, deadline=None)
@given(seeds, shapes, st.integers(0, 40), st.sampled_from(Activation))
def test_gates(seed: int, shape: tuple[int, int], pad: int, activation: Activation) -> None:
    rng = np.random.default_rng(seed)
    gate = random_rows(rng, shape)
    width = shape[1]
    ups = rng.uniform(-1, 1, width).astype(np.float32)

    def run(runner: Machine, rows: Floats, out: Floats | None, to: Rounded | None) -> None:
        up = strided(np.tile(ups, (len(rows), 1)), width + 3)
        call(
            runner, Operation.GATED, *flat(rows), *flat(up), *rows.shape, activation, *flat(out),
            address(to.data if to else None),
        )  # fmt: skip

    check(run, gate, pad, activated(activation, gate.astype(np.float64)) * ups)
