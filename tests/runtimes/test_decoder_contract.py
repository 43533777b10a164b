"""The cache contract of decoder-only models, held against every runtime and every kind of layer.

All of it compares with one computation that uses no cached position: the whole sequence at once.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from kit.dimensions import (
    BLOCKS,
    DECODERS,
    GEMMA3,
    GEMMA4,
    GRANITE4,
    LFM2,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN3_5,
)
from kit.models import opened
from kvcast.errors import KvcastError
from kvcast.runtimes.onnx.runtime import OnnxRuntime

TOLERANCE = 1e-4
SUBJECTS = [(dimensions, "eager") for dimensions in DECODERS]
# Of the others' graphs, Qwen 2's biases are held against transformers; Qwen 3's norms are Gemma's.
SUBJECTS += [(dimensions, "onnx") for dimensions in (LLAMA, MISTRAL, GEMMA3, MIXTRAL)]
SUBJECTS += [
    (GEMMA3, "native"),
    (GRANITE4, "native"),
    *product((LFM2, QWEN3_5, GEMMA4), ("eager", "native")),
]
SUBJECTS += [
    pytest.param(subject, marks=pytest.mark.slow)
    for subject in (
        *product(DECODERS, ("onnx", "native")),
        *product(BLOCKS, ("eager", "native")),
        *product((LFM2, QWEN3_5), ("onnx",)),
    )
    if subject not in SUBJECTS
]
# Compiling takes long: the model with the most kinds of things in it.
SUBJECTS += [
    pytest.param((dimensions, "aoti"), marks=pytest.mark.slow)
    for dimensions in (replace(GEMMA3, windows=(5, None)), LFM2)
]
RINGS = [(MISTRAL, "eager"), (MISTRAL, "onnx"), (MISTRAL, "native")]
CONVOLUTIONS = [
    *((LFM2, runtime) for runtime in ("eager", "native", "onnx")),
    *(pytest.param((LFM2, name), marks=pytest.mark.slow) for name in ("aoti", "executorch")),
]
STATES = [(QWEN3_5, runtime) for runtime in ("eager", "native", "onnx")] + [(GRANITE4, "native")]


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

    def compute(tokens):
        cache = eager.new_cache(1, len(tokens))
        logits, _ = eager.decode([tokens], cache, positions=range(len(tokens)))
        return logits[0]

    return compute


def random_tokens(count, seed=0):
    return np.random.default_rng(seed).integers(0, 160, count)


def in_chunks(runtime, prompts, chunk, capacity=128):
    """Prefill; return each row's last logits and the cache."""
    cache = runtime.new_cache(len(prompts), capacity)
    last = [None] * len(prompts)
    for start in range(0, max(map(len, prompts)), chunk):
        rows = [row for row, prompt in enumerate(prompts) if len(prompt) > start]
        pieces = [prompts[row][start : start + chunk] for row in rows]
        logits, cache = runtime.decode(pieces, cache, rows=rows)
        for row, row_logits in zip(rows, logits, strict=True):
            last[row] = row_logits[-1].copy()
    return np.stack(last), cache


def one_each(tokens):
    return [np.array([token]) for token in tokens]


@pytest.mark.parametrize("chunk", [1, 3, 7, 12, 40])
def test_chunks_and_steps_of_ragged_rows_equal_all_at_once(runtime, whole, chunk):
    prompts = [random_tokens(n, seed=n) for n in (4, 1, 30)]
    last_rv, cache = in_chunks(runtime, prompts, chunk)
    expected = [whole(prompt)[-1] for prompt in prompts]
    np.testing.assert_allclose(last_rv, expected, atol=TOLERANCE)
    histories = prompts
    for step in range(10):
        new = random_tokens(3, seed=100 + step)
        logits, cache = runtime.decode(one_each(new), cache)
        histories = [np.append(old, token) for old, token in zip(histories, new, strict=True)]
    expected = [whole(history)[-1] for history in histories]
    np.testing.assert_allclose(logits[:, 0], expected, atol=TOLERANCE)


def test_every_position_can_be_asked_for(runtime, whole):
    prompts = [random_tokens(20, seed=1), random_tokens(20, seed=2)]
    cache = runtime.new_cache(2, 20)
    logits, _ = runtime.decode(prompts, cache, positions=[0, 13, -1])
    for prompt, row in zip(prompts, logits, strict=True):
        np.testing.assert_allclose(row, whole(prompt)[[0, 13, 19]], atol=TOLERANCE)


def test_rows_that_take_no_part_stay_as_they_are(runtime, whole):
    prompts = [random_tokens(n, seed=n) for n in (9, 14, 5, 11)]
    _, cache = in_chunks(runtime, prompts, chunk=16)
    histories = list(prompts)
    for step, rows in enumerate([[0, 3], [3], [1, 3], [0, 1, 2, 3], [2], [0, 2]]):
        new = random_tokens(len(rows), seed=step)
        logits, cache = runtime.decode(one_each(new), cache, rows=rows)
        for row, token in zip(rows, new, strict=True):
            histories[row] = np.append(histories[row], token)
        expected = [whole(histories[row])[-1] for row in rows]
        np.testing.assert_allclose(logits[:, 0], expected, atol=TOLERANCE)
    assert cache.lengths.tolist() == [len(history) for history in histories]


def test_a_row_that_was_reset_takes_a_new_prompt_while_the_others_go_on(runtime, whole):
    prompts = [random_tokens(n, seed=n) for n in (12, 25, 6)]
    _, cache = in_chunks(runtime, prompts, chunk=8)
    cache = runtime.reset(cache, [1])
    newcomer = random_tokens(10, seed=50)
    logits, cache = runtime.decode([newcomer], cache, rows=[1])
    np.testing.assert_allclose(logits[0, 0], whole(newcomer)[-1], atol=TOLERANCE)
    new = random_tokens(3, seed=51)
    logits, cache = runtime.decode(one_each(new), cache)
    for row, history in enumerate([prompts[0], newcomer, prompts[2]]):
        expected = whole(np.append(history, new[row]))[-1]
        np.testing.assert_allclose(logits[row, 0], expected, atol=TOLERANCE)


def test_what_lies_in_unused_slots_changes_nothing(runtime, whole):
    """A cache is filled with other rows' large numbers before it is emptied and used again."""
    _, cache = in_chunks(runtime, [random_tokens(60, seed=n) for n in (1, 2)], chunk=60)
    spoil(cache)
    cache = runtime.reset(cache, [0, 1])
    prompt = random_tokens(9, seed=3)
    logits, cache = runtime.decode([prompt, prompt[:4]], cache)
    np.testing.assert_allclose(logits[0, 0], whole(prompt)[-1], atol=TOLERANCE)
    np.testing.assert_allclose(logits[1, 0], whole(prompt[:4])[-1], atol=TOLERANCE)


def spoil(cache):
    """Large finite numbers in every slot: NaN would hide behind a zero."""
    for cell in cache.memory.cells:
        cell[...] = 1e9


def test_beams_that_change_places_go_on_from_their_new_pasts(runtime, whole):
    prompt = random_tokens(11, seed=4)
    _, filled_cache = in_chunks(runtime, [prompt], chunk=16)
    cache = runtime.fork(filled_cache, [0, 0, 0])
    histories = [prompt] * 3
    for step, parents in enumerate([[0, 1, 2], [1, 1, 0], [2, 0, 0], [0, 0, 0], [1, 2, 0]]):
        cache = runtime.reorder(cache, parents)
        histories = [histories[parent] for parent in parents]
        for more in range(2):
            new = random_tokens(3, seed=10 * step + more)
            logits, cache = runtime.decode(one_each(new), cache)
            histories = [np.append(old, token) for old, token in zip(histories, new, strict=True)]
        expected = [whole(history)[-1] for history in histories]
        np.testing.assert_allclose(logits[:, 0], expected, atol=TOLERANCE)


def test_a_longer_row_that_goes_on_from_a_shorter_one_with_its_own_past(runtime, whole):
    """The longer row's rings have turned past what the shorter one's hold."""
    prompt = random_tokens(300, seed=7)
    cache = runtime.new_cache(2, 320)
    _, cache = runtime.decode([prompt[:20], prompt], cache)
    cache = runtime.reorder(cache, [0, 0])
    logits, cache = runtime.decode(one_each([3, 4]), cache)
    for row, token in enumerate((3, 4)):
        expected = whole(np.append(prompt[:20], token))[-1]
        np.testing.assert_allclose(logits[row, 0], expected, atol=TOLERANCE)


def test_a_prefix_can_be_continued_many_times(runtime, whole):
    prefix = random_tokens(20, seed=5)
    _, kept = in_chunks(runtime, [prefix], chunk=6, capacity=24)
    for attempt in range(3):
        rest = random_tokens(8 + attempt, seed=20 + attempt)
        forked = runtime.fork(kept, [0], capacity=64)
        logits, forked = runtime.decode([rest], forked)
        expected = whole(np.concatenate([prefix, rest]))[-1]
        np.testing.assert_allclose(logits[0, 0], expected, atol=TOLERANCE)
    assert kept.lengths.tolist() == [20]


def test_rows_adopt_a_prefix_while_others_go_on(runtime, whole):
    """A prefix longer than the window, adopted by rows that saw more and less than it."""
    prefix = random_tokens(20, seed=5)
    _, kept = in_chunks(runtime, [random_tokens(3, seed=6), prefix], chunk=6, capacity=24)
    histories = [random_tokens(n, seed=n) for n in (12, 60, 6, 9)]
    _, cache = in_chunks(runtime, histories, chunk=16)
    for rows, parents in (([1, 2], [1, 1]), ([0], [0])):
        cache = runtime.adopt(cache, rows, kept, parents)
        for row, parent in zip(rows, parents, strict=True):
            histories[row] = (random_tokens(3, seed=6), prefix)[parent]
        for step in range(3):
            new = random_tokens(4, seed=70 + step)
            logits, cache = runtime.decode(one_each(new), cache)
            histories = [np.append(old, token) for old, token in zip(histories, new, strict=True)]
        expected = [whole(history)[-1] for history in histories]
        np.testing.assert_allclose(logits[:, 0], expected, atol=TOLERANCE)
    assert kept.lengths.tolist() == [3, 20]


def test_a_prefix_that_is_too_long_to_adopt_is_one_line(runtime):
    _, kept = in_chunks(runtime, [random_tokens(20)], chunk=20)
    with pytest.raises(KvcastError, match="of 19 positions cannot hold 20"):
        runtime.adopt(runtime.new_cache(2, 19), [1], kept, [0])


def rejected_and_kept(runtime, whole, prompt, tokens, kept, most):
    """Feed tokens ahead of what stays, again and again; return how many could be fed ahead."""
    capacity = len(prompt) + len(tokens) + most
    other = random_tokens(9, seed=99)
    _, cache = in_chunks(runtime, [prompt, other], chunk=64, capacity=capacity)
    history, rooms, fed = prompt, [], 0
    while fed < len(tokens):
        stay = tokens[fed : fed + kept]
        rooms.append(cache.revocable(0, len(stay), most))
        wrong = random_tokens(rooms[-1], seed=fed)
        ahead = np.concatenate([stay, wrong])
        logits, cache = runtime.decode([ahead], cache, rows=[0], positions=range(len(ahead)))
        expected = whole(np.concatenate([history, ahead]))[-len(ahead) :]
        np.testing.assert_allclose(logits[0], expected, atol=TOLERANCE)
        history, fed = np.concatenate([history, stay]), fed + len(stay)
        cache = runtime.truncate(cache, [0], [len(history)])
    assert cache.lengths.tolist() == [len(history), len(other)]
    logits, _ = runtime.decode(one_each([1, 2]), cache)
    expected = [whole(np.append(past, token))[-1] for past, token in ((history, 1), (other, 2))]
    np.testing.assert_allclose(logits[:, 0], expected, atol=TOLERANCE)
    return rooms


def test_what_is_fed_ahead_and_taken_off_again_leaves_nothing(subject, runtime, whole):
    rooms = rejected_and_kept(runtime, whole, random_tokens(1), random_tokens(12, seed=1), 1, 3)
    assert rooms[0] == (0 if subject in STATES else 3)


@pytest.mark.parametrize("subject", RINGS, ids=name)
def test_a_ring_says_how_much_can_be_taken_off_wherever_it_turns(runtime, whole):
    """Windows of 7. Eager's rings have 7 slots, ONNX Runtime's 135, which it empties by 129."""
    tokens = random_tokens(30, seed=1)
    rooms = rejected_and_kept(runtime, whole, random_tokens(115), tokens, 1, 15)
    is_compacted = isinstance(runtime, OnnxRuntime)
    # The 136th position makes ONNX Runtime let go, and nothing before it can come back then.
    compacted = [min(15, 135 - length) for length in range(116, 136)] + [15] * 10
    assert rooms == (compacted if is_compacted else [1] * 30)


def test_more_than_a_row_holds_or_a_ring_kept_is_refused(runtime):
    cache = runtime.new_cache(2, 300)
    _, cache = runtime.decode([random_tokens(300), random_tokens(4)], cache)
    with pytest.raises(ValueError, match="row 1 holds 4 positions"):
        runtime.truncate(cache, [1], [5])
    if cache.memory.has_rings:
        with pytest.raises(ValueError, match="row 0 holds 300 positions and can be cut to"):
            runtime.truncate(cache, [0], [100])


def test_the_caller_may_overwrite_logits(runtime, whole):
    prompt = random_tokens(8, seed=8)
    cache = runtime.new_cache(2, 16)
    for token in prompt:
        logits, cache = runtime.decode(one_each([token, token]), cache)
        last = logits[:, 0].copy()
        logits[...] = np.nan
    np.testing.assert_allclose(last, [whole(prompt)[-1]] * 2, atol=TOLERANCE)


def test_too_many_positions_are_one_line(runtime):
    cache = runtime.new_cache(1, 5)
    with pytest.raises(KvcastError, match="holds 5 positions and is full"):
        runtime.decode([random_tokens(6)], cache)


@pytest.mark.parametrize(
    "subject", [pytest.param(RINGS[0], marks=pytest.mark.slow), RINGS[1]], ids=name
)
def test_two_thousand_tokens_past_the_window_stay_equal(runtime, whole):
    tokens = random_tokens(2050, seed=6)
    cache = runtime.new_cache(1, 2050)
    stepped = []
    for token in tokens:
        logits, cache = runtime.decode([token[None]], cache)
        stepped.append(logits[0, 0].copy())
    np.testing.assert_allclose(stepped, whole(tokens), atol=TOLERANCE)


@pytest.mark.parametrize("subject", CONVOLUTIONS, ids=name)
def test_a_convolution_keeps_as_many_more_inputs_as_are_fed_ahead(runtime, whole):
    rooms = rejected_and_kept(runtime, whole, random_tokens(90), random_tokens(9, seed=1), 1, 99)
    assert rooms == [16] * 9


@pytest.mark.parametrize("subject", [*CONVOLUTIONS, *STATES], ids=name)
def test_a_row_comes_back_to_its_snapshots_and_others_adopt_it_there(runtime, whole):
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
        expected = whole(np.concatenate([tokens[:length], new]))[-1]
        np.testing.assert_allclose(logits[0, 0], expected, atol=TOLERANCE)
    logits, cache = runtime.decode([tokens[:1]], cache, rows=[0])
    expected = whole(np.append(tokens, tokens[0]))[-1]
    np.testing.assert_allclose(logits[0, 0], expected, atol=TOLERANCE)
    cache = runtime.truncate(cache, [0], [kept[0]])
    cache = runtime.reorder(cache, [1, 0, 0])
    logits, cache = runtime.decode([tokens[:2]], cache, rows=[2])
    expected = whole(np.concatenate([tokens[: kept[0]], tokens[:2]]))[-1]
    np.testing.assert_allclose(logits[0, 0], expected, atol=TOLERANCE)


@pytest.mark.parametrize("subject", RINGS, ids=name)
def test_a_ring_takes_as_much_memory_for_a_long_text_as_for_a_short_one(runtime):
    short, long = (runtime.new_cache(2, capacity) for capacity in (300, 4000))
    sizes = [[cell.nbytes for cell in cache.memory.cells] for cache in (short, long)]
    assert sizes[0] == sizes[1]
