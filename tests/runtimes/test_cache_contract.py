"""The cache contract, on every runtime: what is valid follows from lengths and nothing else."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.runtimes.base import Cache, EncoderDecoder, Float32, Int64
from random_models import Subject

TOLERANCE = 1e-3  # two orders of the same fp32 sums
VOCAB = 300


def tokens(rows: int, new: int, seed: int) -> Int64:
    return np.random.default_rng(seed).integers(0, VOCAB, (rows, new))


def run(runtime: EncoderDecoder, source: tuple[NDArray[Any], ...], tokens_rs: Int64) -> Float32:
    """Logits of all tokens given at once."""
    cache = runtime.new_cache(runtime.encode(*source), len(tokens_rs))
    logits, _ = runtime.decode(tokens_rs, cache, range(tokens_rs.shape[1]))
    return logits


def one_of(source: tuple[NDArray[Any], ...], index: int) -> tuple[NDArray[Any], ...]:
    return tuple(part[index : index + 1] for part in source)


def overwrite_unused_slots(cache: Cache, value: float) -> None:
    """Put a large finite number wherever nothing valid is; NaN could hide in 0 x NaN."""
    cells = cache.cells if hasattr(cache, "cells") else cache.buffers.cells
    for row, length in enumerate(cache.lengths):
        cells[..., row, :, int(length) :, :] = value


def test_step_by_step_equals_all_at_once(subject: Subject) -> None:
    given = tokens(2, 12, seed=1)
    whole = run(subject.runtime, subject.source(2, 0), given)
    cache = subject.runtime.new_cache(subject.runtime.encode(*subject.source(2, 0)), 2)
    stepped = []
    for start, stop in ((0, 3), (3, 4), (4, 5), (5, 9), (9, 12)):
        logits, cache = subject.runtime.decode(given[:, start:stop], cache, range(stop - start))
        stepped.append(logits)
    assert cache.lengths.tolist() == [12, 12]
    assert np.ptp(whole) > 1
    np.testing.assert_allclose(np.concatenate(stepped, axis=1), whole, atol=TOLERANCE)


def test_batch_of_different_inputs_equals_one_by_one(subject: Subject) -> None:
    inputs, given = subject.source(3, 2), tokens(3, 7, seed=3)
    batch = run(subject.runtime, inputs, given)
    single = [run(subject.runtime, one_of(inputs, i), given[i : i + 1]) for i in range(3)]
    assert np.abs(batch[0] - batch[1]).max() > 1
    np.testing.assert_allclose(batch, np.concatenate(single), atol=TOLERANCE)


def test_rows_of_one_input_share_its_cross_cache(subject: Subject) -> None:
    inputs, given = subject.source(2, 4), tokens(6, 5, seed=5)
    shared = run(subject.runtime, inputs, given)
    repeated = run(subject.runtime, tuple(np.repeat(part, 3, axis=0) for part in inputs), given)
    np.testing.assert_allclose(shared, repeated, atol=TOLERANCE)


def test_garbage_in_unused_slots_changes_nothing(subject: Subject) -> None:
    given = tokens(2, 8, seed=7)
    whole = run(subject.runtime, subject.source(2, 6), given)
    cache = subject.runtime.new_cache(subject.runtime.encode(*subject.source(2, 6)), 2)
    stepped = []
    for position in range(8):
        overwrite_unused_slots(cache, 1e4)
        logits, cache = subject.runtime.decode(given[:, position : position + 1], cache)
        stepped.append(logits)
    np.testing.assert_allclose(np.concatenate(stepped, axis=1), whole, atol=TOLERANCE)


def test_second_input_equals_itself_alone(subject: Subject) -> None:
    given = tokens(1, 10, seed=8)
    alone = run(subject.runtime, subject.source(1, 10), given)
    run(subject.runtime, subject.source(1, 9), tokens(1, 20, seed=11))
    np.testing.assert_array_equal(run(subject.runtime, subject.source(1, 10), given), alone)


def test_what_becomes_of_an_input_after_it_was_encoded_changes_nothing(subject: Subject) -> None:
    given = tokens(1, 6, seed=19)
    whole = run(subject.runtime, subject.source(1, 20), given)
    source = subject.source(1, 20)
    cache = subject.runtime.new_cache(subject.runtime.encode(*source), 1)
    for part in source:
        part[...] = np.nan if part.dtype.kind == "f" else 1
    # The same memory holds an encoder's output again, for speech one of NaN.
    subject.runtime.encode(*source)
    stepped = []
    for position in range(6):
        logits, cache = subject.runtime.decode(given[:, position : position + 1], cache)
        stepped.append(logits)
    np.testing.assert_allclose(np.concatenate(stepped, axis=1), whole, atol=TOLERANCE)


def test_interleaved_caches_do_not_see_each_other(subject: Subject) -> None:
    given = [tokens(1, 6, seed=12), tokens(1, 6, seed=13)]
    inputs = [subject.source(1, 14), subject.source(1, 15)]
    caches = [subject.runtime.new_cache(subject.runtime.encode(*one), 1) for one in inputs]
    seen: list[list[Float32]] = [[], []]
    for position in range(6):
        for i in (0, 1):
            step = given[i][:, position : position + 1]
            logits, caches[i] = subject.runtime.decode(step, caches[i])
            seen[i].append(logits)
    for i in (0, 1):
        whole = run(subject.runtime, inputs[i], given[i])
        np.testing.assert_allclose(np.concatenate(seen[i], axis=1), whole, atol=TOLERANCE)


def test_an_older_handle_rolls_back(subject: Subject) -> None:
    given, other = tokens(1, 6, seed=16), tokens(1, 3, seed=17)
    cache = subject.runtime.new_cache(subject.runtime.encode(*subject.source(1, 18)), 1)
    _, prefix = subject.runtime.decode(given[:, :3], cache)
    subject.runtime.decode(other, prefix)
    logits, _ = subject.runtime.decode(given[:, 3:], prefix, range(3))
    whole = run(subject.runtime, subject.source(1, 18), given)
    np.testing.assert_allclose(logits, whole[:, 3:], atol=TOLERANCE)


def test_a_full_cache_is_refused(subject: Subject) -> None:
    cache = subject.runtime.new_cache(subject.runtime.encode(*subject.source(1, 19)), 1)
    _, cache = subject.runtime.decode(tokens(1, 30, seed=20), cache)
    with pytest.raises(KvcastError, match="holds 32 positions"):
        subject.runtime.decode(tokens(1, 3, seed=21), cache)
    logits, cache = subject.runtime.decode(tokens(1, 2, seed=22), cache)
    assert np.isfinite(logits).all()
    assert cache.lengths.tolist() == [32]
