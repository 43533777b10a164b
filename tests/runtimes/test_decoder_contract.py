"""The cache contract of decoder-only models, beyond verification's checks (test_cache_checks.py).

All of it compares with one computation that uses no cached position: the whole sequence at once.
"""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest

from kit.dimensions import DSA, GEMMA3, GEMMA4, GRANITE4, KIMI, LFM2, MISTRAL, QWEN3_5, YOUTU
from kit.marks import slow
from kit.models import opened
from kit.rounding import assert_logits_equal
from kvcast.runtimes.onnx.runtime import OnnxRuntime

SUBJECTS = [
    *((GEMMA3, runtime) for runtime in ("eager", "onnx", "native")),
    *((dimensions, "native") for dimensions in (LFM2, QWEN3_5, GEMMA4, YOUTU, DSA, KIMI)),
    # Compiling takes long: the model with the most kinds of things in it.
    slow((replace(GEMMA3, windows=(5, None)), "aoti")),
]
RINGS = [(MISTRAL, "eager"), (MISTRAL, "onnx"), (MISTRAL, "native")]
CONVOLUTIONS = [
    *((LFM2, runtime) for runtime in ("eager", "native", "onnx")),
    slow((LFM2, "aoti")),
    slow((replace(LFM2, windows=(None,) * 2, mixers=LFM2.mixers[:2]), "executorch")),
]
STATES = [
    *((QWEN3_5, runtime) for runtime in ("eager", "native", "onnx")),
    *((dimensions, "native") for dimensions in (GRANITE4, KIMI)),
]


def name(subject):
    return f"{subject[0].architecture}-{subject[1]}"


@pytest.fixture(scope="module", params=SUBJECTS, ids=name)
def subject(request):
    return request.param


@pytest.fixture
def runtime(subject):
    return opened(subject[0], runtime=subject[1])


@pytest.fixture
def whole(subject):
    """A sequence's logits [s, vocab], all positions at once on a fresh eager cache."""
    eager = opened(subject[0], runtime="eager")

    def compute(*tokens):
        tokens_s = np.concatenate([np.atleast_1d(part) for part in tokens])
        cache = eager.new_cache(1, len(tokens_s))
        logits, _ = eager.decode([tokens_s], cache, positions=range(len(tokens_s)))
        return logits[0]

    return compute


def random_tokens(count, seed=0):
    return np.random.default_rng(seed).integers(0, 160, count)


def one_each(tokens):
    return [np.array([token]) for token in tokens]


@pytest.fixture
def assert_close(subject):
    return partial(assert_logits_equal, dimensions=subject[0])


def test_every_position_can_be_asked_for(runtime, whole, assert_close):
    prompts = [random_tokens(20, seed=1), random_tokens(20, seed=2)]
    logits, _ = runtime.decode(prompts, runtime.new_cache(2, 20), positions=[0, 13, -1])
    for prompt, row in zip(prompts, logits, strict=True):
        assert_close(row, whole(prompt)[[0, 13, 19]])


def test_the_content_of_unused_slots_changes_nothing(runtime, whole, assert_close):
    """A cache is filled with large numbers before it is emptied and used again."""
    cache = runtime.new_cache(2, 128)
    _, cache = runtime.decode([random_tokens(60, seed=n) for n in (1, 2)], cache)
    for cell in cache.memory.cells:
        cell[...] = 1e9  # finite: NaN would hide behind a zero
    cache = runtime.reset(cache, [0, 1])
    prompt = random_tokens(9, seed=3)
    logits, cache = runtime.decode([prompt, prompt[:4]], cache)
    assert_close(logits[:, 0], whole(prompt)[[-1, 3]])


def test_a_longer_row_that_goes_on_from_a_shorter_one_with_its_own_past(
    runtime, whole, assert_close
):
    """The longer row's rings have turned past what the shorter one's hold."""
    prompt = random_tokens(300, seed=7)
    _, cache = runtime.decode([prompt[:20], prompt], runtime.new_cache(2, 320))
    cache = runtime.reorder(cache, [0, 0])
    logits, cache = runtime.decode(one_each([3, 4]), cache)
    assert_close(logits[:, 0], [whole(prompt[:20], token)[-1] for token in (3, 4)])


@pytest.fixture
def rejected_and_kept(runtime, whole, assert_close):
    """Feed tokens ahead of what stays, again and again; return how many could be fed ahead."""

    def feed(prompt, tokens, kept, most):
        other = random_tokens(9, seed=99)
        cache = runtime.new_cache(2, len(prompt) + len(tokens) + most)
        _, cache = runtime.decode([prompt, other], cache)
        history, rooms, fed = prompt, [], 0
        while fed < len(tokens):
            stay = tokens[fed : fed + kept]
            rooms.append(cache.revocable(0, len(stay), most))
            wrong = random_tokens(rooms[-1], seed=fed)
            ahead = np.concatenate([stay, wrong])
            logits, cache = runtime.decode([ahead], cache, rows=[0], positions=range(len(ahead)))
            assert_close(logits[0], whole(history, ahead)[-len(ahead) :])
            history, fed = np.concatenate([history, stay]), fed + len(stay)
            cache = runtime.truncate(cache, [0], [len(history)])
        assert cache.lengths.tolist() == [len(history), len(other)]
        logits, _ = runtime.decode(one_each([1, 2]), cache)
        assert_close(logits[:, 0], [whole(history, 1)[-1], whole(other, 2)[-1]])
        return rooms

    return feed


@pytest.mark.parametrize("subject", RINGS, ids=name)
def test_a_ring_says_how_much_can_be_taken_off_wherever_it_turns(runtime, rejected_and_kept):
    """Windows of 7. Eager's rings have 7 slots, ONNX Runtime's 135, which it empties by 129."""
    tokens = random_tokens(30, seed=1)
    rooms = rejected_and_kept(random_tokens(115), tokens, 1, 15)
    is_compacted = isinstance(runtime, OnnxRuntime)
    # The 136th position makes ONNX Runtime let go, and nothing before it can come back then.
    compacted = [min(15, 135 - length) for length in range(116, 136)] + [15] * 10
    assert rooms == (compacted if is_compacted else [1] * 30)


@pytest.mark.parametrize(
    ("subject", "room"),
    [
        *product(CONVOLUTIONS[:3], [16]),
        *(pytest.param(*each.values, 16, marks=each.marks) for each in CONVOLUTIONS[3:]),
        *product(STATES, [0]),
    ],
    ids=lambda part: name(part) if isinstance(part, tuple) else str(part),
)
def test_a_convolution_keeps_inputs_of_what_is_fed_ahead_and_a_state_nothing(
    rejected_and_kept, room
):
    rooms = rejected_and_kept(random_tokens(90), random_tokens(9, seed=1), 1, 99)
    assert rooms == [room] * 9


def test_more_than_a_row_holds_or_a_ring_kept_is_refused(runtime):
    cache = runtime.new_cache(2, 300)
    _, cache = runtime.decode([random_tokens(300), random_tokens(4)], cache)
    with pytest.raises(ValueError, match="row 1 holds 4 positions"):
        runtime.truncate(cache, [1], [5])
    if cache.memory.has_rings:
        with pytest.raises(ValueError, match="row 0 holds 300 positions and can be cut to"):
            runtime.truncate(cache, [0], [100])


def test_the_caller_may_overwrite_logits(runtime, whole, assert_close):
    prompt = random_tokens(8, seed=8)
    cache = runtime.new_cache(2, 16)
    for token in prompt:
        logits, cache = runtime.decode(one_each([token, token]), cache)
        last = logits[:, 0].copy()
        logits[...] = np.nan
    assert_close(last, [whole(prompt)[-1]] * 2)


@pytest.mark.parametrize("subject", [RINGS[1]], ids=name)
def test_two_thousand_tokens_past_the_window_stay_equal(runtime, whole, assert_close):
    tokens = random_tokens(2050, seed=6)
    cache = runtime.new_cache(1, 2050)
    stepped = []
    for token in tokens:
        logits, cache = runtime.decode([token[None]], cache)
        stepped.append(logits[0, 0].copy())
    assert_close(stepped, whole(tokens))


@pytest.mark.parametrize("subject", [*CONVOLUTIONS, *STATES], ids=name)
def test_a_row_comes_back_to_its_snapshots_and_others_adopt_it_there(runtime, whole, assert_close):
    tokens = random_tokens(100)
    cache = runtime.new_cache(3, 110)
    for first in range(0, 100, 10):
        _, cache = runtime.decode([tokens[first : first + 10]], cache, rows=[0])
        cache = runtime.take_snapshots(cache, [0])
    # 16 positions can be taken off in any case.
    kept = sorted({cache.reachable(0, most) for most in range(84)} - {0})
    assert kept == [40, 60, 80]
    for length in kept[::-1]:
        source = runtime.truncate(cache, [0], [length])
        cache = runtime.adopt(cache, [1], source, [0])
        new = random_tokens(6, seed=length)
        logits, cache = runtime.decode([new], cache, rows=[1])
        assert_close(logits[0, 0], whole(tokens[:length], new)[-1])
    logits, cache = runtime.decode([tokens[:1]], cache, rows=[0])
    assert_close(logits[0, 0], whole(tokens, tokens[0])[-1])
    cache = runtime.truncate(cache, [0], [kept[0]])
    cache = runtime.reorder(cache, [1, 0, 0])
    logits, cache = runtime.decode([tokens[:2]], cache, rows=[2])
    assert_close(logits[0, 0], whole(tokens[: kept[0]], tokens[:2])[-1])


@pytest.mark.parametrize("subject", RINGS, ids=name)
def test_a_ring_takes_as_much_memory_for_a_long_text_as_for_a_short_one(runtime):
    short, long = (runtime.new_cache(2, capacity) for capacity in (300, 4000))
    sizes = [[cell.nbytes for cell in cache.memory.cells] for cache in (short, long)]
    assert sizes[0] == sizes[1]
