"""The cache contract of UniLM generators, beyond the checks in test_cache_checks.py.

All of it compares with one computation without a cached position: source and target at once.
"""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from kit.dimensions import ROFORMER, SIMBERT
from kit.marks import slow
from kit.models import opened, random_programs, whole_logits
from kit.rounding import assert_logits_equal
from kvcast.errors import KvcastError

VOCAB = ROFORMER.vocab_size
NOTHING = np.zeros(0, np.int64)


SUBJECTS = [
    *((dimensions, "eager") for dimensions in (ROFORMER, SIMBERT)),
    *((ROFORMER, runtime) for runtime in ("onnx", "native")),
    # Compiling takes long: the model with the most programs.
    slow((replace(ROFORMER, layers=1), "aoti")),
    slow((SIMBERT, "onnx")),
]
programs_of = cache(random_programs)


@pytest.fixture(
    scope="module", params=SUBJECTS, ids=lambda subject: f"{subject[0].architecture}-{subject[1]}"
)
def subject(request):
    return request.param


@pytest.fixture
def runtime(subject):
    return opened(subject[0], runtime=subject[1])


@pytest.fixture
def eager(subject):
    return opened(subject[0], runtime="eager")


@pytest.fixture
def last(subject):
    """The logits [rows, vocab] of each row's last position, source and target at once."""
    programs = programs_of(subject[0])

    def compute(sources, targets):
        rows = zip(sources, targets, strict=True)
        return np.stack([whole_logits(programs, source, target)[-1] for source, target in rows])

    return compute


@pytest.fixture
def assert_close(subject):
    return partial(assert_logits_equal, dimensions=subject[0])


def random_tokens(count, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, count)


def random_rows(*lengths):
    return [random_tokens(length, seed=length) for length in lengths]


def one_each(tokens):
    return [np.array([token]) for token in tokens]


def filled(runtime, sources, capacity=96):
    """Return each source's last logits and the cache."""
    logits, cache = runtime.decode(sources, runtime.new_cache(len(sources), capacity))
    return logits[:, 0].copy(), cache


def written_on(runtime, cache, steps, seed=0):
    """Feed random tokens; return the last logits, the targets [rows, steps] and the cache."""
    targets = np.random.default_rng(seed).integers(0, VOCAB, (len(cache.lengths), steps))
    for tokens in targets.T:
        logits, cache = runtime.decode(one_each(tokens), cache)
    return logits[:, 0].copy(), targets, cache


def test_source_b_after_source_a_gives_what_a_fresh_cache_gives(runtime):
    first, second = random_rows(40, 7)
    _, cache = filled(runtime, [first])
    _, _, cache = written_on(runtime, cache, 5)
    cache = runtime.reset(cache, [0])
    logits, cache = runtime.decode([second], cache)
    after, _, _ = written_on(runtime, cache, 5, seed=1)
    fresh, cache = filled(runtime, [second])
    fresh_after, _, _ = written_on(runtime, cache, 5, seed=1)
    np.testing.assert_array_equal(logits[:, 0], fresh)
    np.testing.assert_array_equal(after, fresh_after)


def test_what_lies_in_unused_slots_changes_nothing(runtime, last, assert_close):
    sources = random_rows(9, 4)
    cache = runtime.new_cache(2, 48)
    for cell in cache.memory.cells:
        cell[...] = 1e9  # large and finite: NaN would hide behind a zero
    logits, cache = runtime.decode(sources, cache)
    assert_close(logits[:, 0], last(sources, [NOTHING] * 2))
    logits, targets, _ = written_on(runtime, cache, 4)
    assert_close(logits, last(sources, targets))


@pytest.mark.parametrize(
    ("pasts", "order"),
    [
        # Tokens are equal up to a position, and what lies there is not.
        ([([7, 8, 9], [4]), ([7, 8, 5], [4])], [1, 1]),
        ([([7, 8, 9], [4]), ([7, 8], [9, 4])], [1, 1]),
        ([([7, 8], [9, 4]), ([7, 8, 9], [4])], [1, 1]),
        ([([7, 8], [9]), ([7, 8, 9, 6, 2], [4])], [1, 1]),
        ([([7, 8, 9], [4]), ([7, 8, 9, 4], [4])], [1, 0]),
    ],
)
def test_a_row_goes_on_from_another_whose_source_begins_alike(
    runtime, last, pasts, order, assert_close
):
    sources = [np.array(source) for source, _ in pasts]
    targets = [np.array(target) for _, target in pasts]
    _, cache = filled(runtime, sources)
    _, cache = runtime.decode(targets, cache)
    cache = runtime.reorder(cache, order)
    logits, _ = runtime.decode(one_each([3, 4]), cache)
    grown = [np.append(targets[row], token) for row, token in zip(order, [3, 4], strict=True)]
    expected = last([sources[row] for row in order], grown)
    assert_close(logits[:, 0], expected)


def test_a_source_can_be_continued_many_times(runtime, last, assert_close):
    (source,) = random_rows(20)
    _, kept = filled(runtime, [source], capacity=24)
    for attempt in range(3):
        forked = runtime.fork(kept, [0, 0], capacity=64)
        logits, targets, _ = written_on(runtime, forked, 8, seed=attempt)
        assert_close(logits, last([source] * 2, targets))
    assert kept.lengths.tolist() == [20]


def test_rows_adopt_a_source_while_others_go_on(runtime, last, assert_close):
    (source,) = random_rows(20)
    _, kept = filled(runtime, [source], capacity=24)
    sources = random_rows(9, 30, 5)
    _, cache = filled(runtime, sources)
    _, targets, cache = written_on(runtime, cache, 3)
    cache = runtime.adopt(cache, [0, 1], kept, [0, 0])
    targets = [NOTHING, NOTHING, targets[2]]
    logits, new, _ = written_on(runtime, cache, 4, seed=1)
    grown = [np.append(old, more) for old, more in zip(targets, new, strict=True)]
    assert_close(logits, last([source, source, sources[2]], grown))


def test_a_batch_of_embeddings_equals_each_alone_and_leaves_caches_alone(
    runtime, last, assert_close
):
    sources = random_rows(12, 3, 12, 1)
    _, cache = filled(runtime, sources)
    together = runtime.embed(sources)
    assert_close(together, np.concatenate([runtime.embed([source]) for source in sources]))
    assert together.shape == (4, 64)
    assert np.abs(together[0] - together[2]).max() == 0, "equal sources"
    assert np.abs(together[0] - together[1]).max() > 0.1, "different sources"
    logits, targets, _ = written_on(runtime, cache, 2)
    assert_close(logits, last(sources, targets))


def test_embeddings_are_those_of_eager(eager, runtime, assert_close):
    sources = random_rows(12, 3, 128)
    expected = eager.embed(sources)
    assert_close(runtime.embed(sources), expected)


def test_no_sources_have_no_embeddings(runtime):
    assert runtime.embed([]).shape == (0, 64)


@pytest.mark.parametrize("length", [0, 129])
def test_sources_that_cannot_be_embedded_are_one_line(runtime, length):
    with pytest.raises(KvcastError, match=f"source 1 has {length} tokens .* takes 1 to 128"):
        runtime.embed([random_tokens(3), random_tokens(length)])
