"""The contract of caches with encoded inputs, beyond the checks in test_cache_checks.py."""

from typing import Any

import numpy as np
import pytest

from kit.models import Subject, encoded, random_tokens, stepped, whole
from kit.rounding import assert_logits_equal
from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32


def overwrite_unused_positions(cache: Any, value: float) -> None:
    """Put a large finite number wherever nothing valid is; NaN could hide in 0 x NaN."""
    for row, length in enumerate(cache.lengths):
        for cell in cache.memory.cells:
            cell[cache.memory.places[row], :, int(length) :] = value


def test_a_slot_that_is_read_cannot_be_filled(subject: Subject) -> None:
    cache = encoded(subject.runtime, subject.source(2, 54))
    with pytest.raises(ValueError, match="input 1 is still read by row 1"):
        subject.runtime.encode(cache, [1], *subject.source(1, 55))


def test_garbage_in_unused_slots_changes_nothing(subject: Subject) -> None:
    given = random_tokens(2, 8, seed=7)
    expected = whole(subject.runtime, subject.source(2, 6), given)
    cache = encoded(subject.runtime, subject.source(2, 6))
    steps = []
    for position in range(8):
        overwrite_unused_positions(cache, 1e4)
        logits, cache = subject.runtime.decode(list(given[:, position : position + 1]), cache)
        steps.append(logits.copy())
    assert_logits_equal(np.concatenate(steps, axis=1), expected, subject.dimensions)


def test_second_input_equals_itself_alone(subject: Subject) -> None:
    given = random_tokens(1, 10, seed=8)
    expected = whole(subject.runtime, subject.source(1, 10), given)
    whole(subject.runtime, subject.source(1, 9), random_tokens(1, 20, seed=11))
    actual = whole(subject.runtime, subject.source(1, 10), given)
    np.testing.assert_array_equal(actual, expected)


def test_what_becomes_of_an_input_after_it_was_encoded_changes_nothing(subject: Subject) -> None:
    given = random_tokens(1, 6, seed=19)
    expected = whole(subject.runtime, subject.source(1, 20), given)
    source = subject.source(1, 20)
    cache = encoded(subject.runtime, source)
    for part in source:
        part[...] = np.nan if part.dtype.kind == "f" else 1
    # The same memory holds an encoder's output again, for speech one of NaN.
    encoded(subject.runtime, source)
    actual, _ = stepped(subject.runtime, cache, given)
    assert_logits_equal(actual, expected, subject.dimensions)


def test_interleaved_caches_do_not_see_each_other(subject: Subject) -> None:
    given = [random_tokens(1, 6, seed=12), random_tokens(1, 6, seed=13)]
    inputs = [subject.source(1, 14), subject.source(1, 15)]
    caches = [encoded(subject.runtime, features) for features in inputs]
    seen: list[list[Float32]] = [[], []]
    for position in range(6):
        for i in (0, 1):
            step = given[i][:, position : position + 1]
            logits, caches[i] = subject.runtime.decode(list(step), caches[i])
            seen[i].append(logits.copy())
    for i in (0, 1):
        expected = whole(subject.runtime, inputs[i], given[i])
        assert_logits_equal(np.concatenate(seen[i], axis=1), expected, subject.dimensions)


def test_an_older_handle_rolls_back(subject: Subject) -> None:
    given, other = random_tokens(1, 6, seed=16), random_tokens(1, 3, seed=17)
    cache = encoded(subject.runtime, subject.source(1, 18))
    if cache.has_snapshots:
        pytest.skip("a state rolls back to snapshots alone")
    _, prefix = subject.runtime.decode(list(given[:, :3]), cache)
    subject.runtime.decode(list(other), prefix)
    logits, _ = subject.runtime.decode(list(given[:, 3:]), prefix, positions=range(3))
    expected = whole(subject.runtime, subject.source(1, 18), given)
    assert_logits_equal(logits, expected[:, 3:], subject.dimensions)


def test_the_caller_may_overwrite_logits(subject: Subject) -> None:
    given = random_tokens(2, 6, seed=59)
    expected, _ = stepped(subject.runtime, encoded(subject.runtime, subject.source(2, 60)), given)
    cache = encoded(subject.runtime, subject.source(2, 60))
    for position in range(6):
        logits, cache = subject.runtime.decode(list(given[:, position : position + 1]), cache)
        np.testing.assert_array_equal(logits[:, 0], expected[:, position])
        logits[...] = np.nan


def test_a_full_cache_is_refused(subject: Subject) -> None:
    cache = encoded(subject.runtime, subject.source(1, 19))
    _, cache = subject.runtime.decode(list(random_tokens(1, 30, seed=20)), cache)
    with pytest.raises(KvcastError, match="holds 32 positions"):
        subject.runtime.decode(list(random_tokens(1, 3, seed=21)), cache)
    logits, cache = subject.runtime.decode(list(random_tokens(1, 2, seed=22)), cache)
    assert np.isfinite(logits).all()
    assert cache.lengths.tolist() == [32]


def test_a_cache_has_no_more_positions_than_the_model_knows(subject: Subject) -> None:
    assert subject.runtime.new_cache(1, 1000, inputs=1).capacity == 32
