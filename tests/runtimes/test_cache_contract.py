"""The cache contract, on every runtime: what is valid follows from lengths and nothing else."""

from typing import Any

import numpy as np
import pytest

from kit.models import Source, Subject, encoded, input_at, random_tokens, stepped, whole
from kvcast.errors import KvcastError
from kvcast.runtimes.base import EncoderDecoder, Float32, Int64

TOLERANCE = 1e-3  # two orders of the same fp32 sums


def overwrite_unused_positions(cache: Any, value: float) -> None:
    """Put a large finite number wherever nothing valid is; NaN could hide in 0 x NaN."""
    for row, length in enumerate(cache.lengths):
        for cell in cache.memory.cells:
            cell[cache.memory.places[row], :, int(length) :] = value


def alone(runtime: EncoderDecoder, source: Source, index: int, tokens_s: Int64) -> Float32:
    """Logits [s, vocab] of a row whose input is the only one."""
    return whole(runtime, input_at(source, index), [tokens_s])[0]


def test_step_by_step_equals_all_at_once(subject: Subject) -> None:
    runtime, given = subject.runtime, random_tokens(2, 12, seed=1)
    expected = whole(runtime, subject.source(2, 0), given)
    cache = encoded(runtime, subject.source(2, 0))
    steps = []
    for start, stop in ((0, 3), (3, 4), (4, 5), (5, 9), (9, 12)):
        logits, cache = runtime.decode(
            list(given[:, start:stop]), cache, positions=range(stop - start)
        )
        steps.append(logits.copy())
    assert cache.lengths.tolist() == [12, 12]
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(np.concatenate(steps, axis=1), expected, atol=TOLERANCE)


def test_batch_of_different_inputs_equals_one_by_one(subject: Subject) -> None:
    inputs, given = subject.source(3, 2), random_tokens(3, 7, seed=3)
    batch = whole(subject.runtime, inputs, given)
    single = [alone(subject.runtime, inputs, i, given[i]) for i in range(3)]
    assert np.abs(batch[0] - batch[1]).max() > 1
    np.testing.assert_allclose(batch, np.stack(single), atol=TOLERANCE)


def test_rows_of_one_input_share_its_cross_cache(subject: Subject) -> None:
    inputs, given = subject.source(2, 4), random_tokens(6, 5, seed=5)
    shared = whole(subject.runtime, inputs, given, rows=6)
    repeated = whole(subject.runtime, tuple(np.repeat(part, 3, axis=0) for part in inputs), given)
    np.testing.assert_allclose(shared, repeated, atol=TOLERANCE)


def test_rows_with_tokens_of_different_numbers_in_one_call(subject: Subject) -> None:
    runtime, inputs = subject.runtime, subject.source(3, 30)
    chunks = [random_tokens(1, new, seed=new)[0] for new in (5, 1, 5)]
    logits, cache = runtime.decode(chunks, encoded(runtime, inputs))
    for row in range(3):
        expected = alone(runtime, inputs, row, chunks[row])
        np.testing.assert_allclose(logits[row, 0], expected[-1], atol=TOLERANCE)
    assert cache.lengths.tolist() == [5, 1, 5]


def test_inputs_that_are_read_by_different_numbers_of_rows(subject: Subject) -> None:
    """Rows lie in no order; each input is read by another number of them."""
    runtime, inputs = subject.runtime, subject.source(3, 31)
    reads = [2, 0, 1, 2, 0, 2]
    cache = runtime.encode(runtime.new_cache(6, 32, inputs=3), range(3), *inputs)
    cache = runtime.reset(cache, range(6), reads)
    given = random_tokens(6, 6, seed=32)
    first, cache = stepped(runtime, cache, given[:, :4])
    some = [1, 2, 5]
    more, _ = stepped(runtime, cache, given[some, 4:], some)
    for row, slot in enumerate(reads):
        expected = alone(runtime, inputs, slot, given[row])
        np.testing.assert_allclose(first[row], expected[:4], atol=TOLERANCE)
        if row in some:
            np.testing.assert_allclose(more[some.index(row)], expected[4:], atol=TOLERANCE)


def test_inputs_come_and_go_while_other_rows_go_on(subject: Subject) -> None:
    """Each newcomer is encoded alone into the slot that another left, with another length."""
    runtime = subject.runtime
    sources = [subject.source(1, seed) for seed in range(40, 46)]
    rows, slots = 3, 3
    cache = runtime.new_cache(rows, 32, inputs=slots)
    reads: dict[int, int] = {}
    histories: dict[int, Int64] = {}
    for step, source in enumerate(sources):
        # The slot and the row that are free are not always of one number.
        slot, row = step % slots, (step * 2) % rows
        cache = runtime.reset(cache, [row])
        cache = runtime.encode(cache, [slot], *source)
        cache = runtime.reset(cache, [row], [slot])
        reads[row], histories[row] = step, np.zeros(0, np.int64)
        for more in range(2):
            taking_part = sorted(histories)
            new = random_tokens(len(taking_part), 1, seed=10 * step + more)
            logits, cache = runtime.decode(list(new), cache, taking_part)
            for i, member in enumerate(taking_part):
                histories[member] = np.append(histories[member], new[i])
                expected = whole(runtime, sources[reads[member]], [histories[member]])
                np.testing.assert_allclose(logits[i, 0], expected[0, -1], atol=TOLERANCE)


def test_a_slot_that_was_filled_again_equals_a_fresh_one(subject: Subject) -> None:
    given = random_tokens(2, 8, seed=50)
    fresh = encoded(subject.runtime, subject.source(2, 51))
    expected, _ = stepped(subject.runtime, fresh, given)
    cache = encoded(subject.runtime, subject.source(2, 52))
    _, cache = stepped(subject.runtime, cache, random_tokens(2, 20, seed=53))
    cache = subject.runtime.reset(cache, [0, 1])
    cache = subject.runtime.encode(cache, [0, 1], *subject.source(2, 51))
    cache = subject.runtime.reset(cache, [0, 1], [0, 1])
    actual, _ = stepped(subject.runtime, cache, given)
    np.testing.assert_array_equal(actual, expected)


def test_a_slot_that_is_read_cannot_be_filled(subject: Subject) -> None:
    cache = encoded(subject.runtime, subject.source(2, 54))
    with pytest.raises(ValueError, match="input 1 is still read by row 1"):
        subject.runtime.encode(cache, [1], *subject.source(1, 55))


def test_a_row_that_reads_nothing_is_refused(subject: Subject) -> None:
    cache = encoded(subject.runtime, subject.source(2, 56))
    cache = subject.runtime.reset(cache, [1])
    with pytest.raises(ValueError, match="row 1 reads no input"):
        subject.runtime.decode([np.array([1])] * 2, cache)


def test_a_row_goes_on_from_one_that_reads_another_input(subject: Subject) -> None:
    runtime, inputs = subject.runtime, subject.source(2, 57)
    same = random_tokens(1, 5, seed=58)[0]
    _, cache = runtime.decode([same, same], encoded(runtime, inputs))
    cache = runtime.reorder(cache, [1, 1])
    logits, _ = runtime.decode([np.array([3]), np.array([4])], cache)
    for row, token in enumerate((3, 4)):
        expected = alone(runtime, inputs, 1, np.append(same, token))[-1]
        np.testing.assert_allclose(logits[row, 0], expected, atol=TOLERANCE)


def test_garbage_in_unused_slots_changes_nothing(subject: Subject) -> None:
    given = random_tokens(2, 8, seed=7)
    expected = whole(subject.runtime, subject.source(2, 6), given)
    cache = encoded(subject.runtime, subject.source(2, 6))
    steps = []
    for position in range(8):
        overwrite_unused_positions(cache, 1e4)
        logits, cache = subject.runtime.decode(list(given[:, position : position + 1]), cache)
        steps.append(logits.copy())
    np.testing.assert_allclose(np.concatenate(steps, axis=1), expected, atol=TOLERANCE)


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
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)


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
        np.testing.assert_allclose(np.concatenate(seen[i], axis=1), expected, atol=TOLERANCE)


def test_an_older_handle_rolls_back(subject: Subject) -> None:
    given, other = random_tokens(1, 6, seed=16), random_tokens(1, 3, seed=17)
    cache = encoded(subject.runtime, subject.source(1, 18))
    _, prefix = subject.runtime.decode(list(given[:, :3]), cache)
    subject.runtime.decode(list(other), prefix)
    logits, _ = subject.runtime.decode(list(given[:, 3:]), prefix, positions=range(3))
    expected = whole(subject.runtime, subject.source(1, 18), given)
    np.testing.assert_allclose(logits, expected[:, 3:], atol=TOLERANCE)


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
