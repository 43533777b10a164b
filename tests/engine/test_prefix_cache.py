"""Prompts that go on from what rows hold: what is fed then, and that it changes no text."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.letters import END, FIRST, VOCAB
from kit.scripted_runtimes import (
    RecomputingRuntime,
    RuntimeOfApartPrompts,
    added,
    drain,
    random_model,
)
from kvcast.engine.callers import RequestList
from kvcast.engine.prefix_cache import WORTH_COPYING, Match, PrefixCache
from kvcast.engine.scheduler import Scheduler
from kvcast.text.requests import SampledText
from text.test_text_scheduler import outcome, prompts, request, run

RANDOM = random_model(VOCAB, 0)
CAPACITY = 80


def reusing(
    rows: int = 2,
    chunk: int = 512,
    turn: int | None = None,
    runtimes: type[RecomputingRuntime] = RecomputingRuntime,
) -> tuple[Scheduler, RecomputingRuntime]:
    runtime = runtimes(RANDOM)
    prefixes = PrefixCache(rows, CAPACITY, prompts_differ=runtime.prompts_differ)
    scheduler = Scheduler(
        runtime, rows=rows, capacity=CAPACITY, chunk=chunk, turn=turn, prefixes=prefixes
    )
    return scheduler, runtime


def alone(text: SampledText, runtimes: type[RecomputingRuntime] = RecomputingRuntime) -> tuple:
    return run(RANDOM, [text], runtimes=runtimes)[0][0]


def long_prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(FIRST, VOCAB, length).tolist()


def fed(runtime: RecomputingRuntime) -> int:
    return sum(len(tokens) for call in runtime.calls for tokens in call.values())


def test_the_next_turn_of_a_conversation_feeds_only_what_is_new():
    scheduler, runtime = reusing()
    first = request(long_prompt(20), max_new_tokens=6, ends=())
    list(scheduler.run([first]))
    said = [*long_prompt(20), *first.text.tokens]
    runtime.calls.clear()
    second = request([*said, 7, 8], max_new_tokens=3, ends=())
    list(scheduler.run([second]))
    # The last token of a text is chosen and never fed.
    assert second.reused == len(said) - 1
    assert runtime.calls[0] == {0: [said[-1], 7, 8]}
    assert outcome(second) == alone(request([*said, 7, 8], max_new_tokens=3, ends=()))
    assert not runtime.adopted


def test_a_prefix_in_a_row_that_is_being_written_is_copied():
    scheduler, runtime = reusing()
    system = long_prompt(30)
    text = request([*system, 5, 6], max_new_tokens=30, ends=())
    other = request([*system, 9], max_new_tokens=4, ends=())
    added(scheduler, text)
    scheduler.step()
    scheduler.step()
    added(scheduler, other)
    runtime.calls.clear()
    drain(scheduler)
    assert other.reused == 30
    assert runtime.adopted == [[1]]
    assert {1: [9]} in runtime.calls
    assert outcome(text) == alone(request([*system, 5, 6], max_new_tokens=30, ends=()))
    assert outcome(other) == alone(request([*system, 9], max_new_tokens=4, ends=()))


def test_what_prompts_of_the_same_moment_have_in_common_is_computed_once():
    scheduler, runtime = reusing(rows=4)
    system = long_prompt(40)
    several = [request([*system, i + FIRST], max_new_tokens=3, ends=()) for i in range(4)]
    list(scheduler.run(several))
    assert [text.reused for text in several] == [0, 40, 40, 40]
    for i, text in enumerate(several):
        assert outcome(text) == alone(request([*system, i + FIRST], max_new_tokens=3, ends=()))
    assert fed(runtime) == 41 + 3 + 4 * 2


def test_the_longest_unused_row_is_overwritten():
    scheduler, _ = reusing(rows=3)
    texts = [long_prompt(10, seed) for seed in range(4)]
    for text in texts:
        list(scheduler.run([request(text, max_new_tokens=1, ends=())]))
    again = [request([*text, 5], max_new_tokens=1, ends=()) for text in texts]
    for text in (again[3], again[2], again[1]):
        list(scheduler.run([text]))
        assert text.reused == 10
    list(scheduler.run([again[0]]))
    assert again[0].reused == 0


def test_little_in_common_with_another_row_is_computed_again():
    scheduler, runtime = reusing(rows=2)
    short = long_prompt(WORTH_COPYING - 1)
    list(scheduler.run([request([*short, *long_prompt(30, 1)], max_new_tokens=1, ends=())]))
    other = request([*short, 5], max_new_tokens=1, ends=())
    list(scheduler.run([other]))
    assert other.reused == 0
    assert not runtime.adopted


def test_a_cancelled_text_leaves_what_was_read_of_it():
    scheduler, _ = reusing(rows=1)
    text = request(long_prompt(20), max_new_tokens=50, ends=())
    caller = added(scheduler, text)
    scheduler.step()
    scheduler.remove(caller)
    assert scheduler.idle
    again = request([*long_prompt(20), 5], max_new_tokens=2, ends=())
    list(scheduler.run([again]))
    assert again.reused == 20
    assert outcome(again) == alone(request([*long_prompt(20), 5], max_new_tokens=2, ends=()))


def test_a_turn_bounds_what_is_read_before_those_that_write_go_on():
    scheduler, runtime = reusing(rows=3, chunk=8, turn=8)
    writing = request([5], max_new_tokens=20, ends=())
    added(scheduler, writing)
    scheduler.step()
    for seed in (1, 2):
        added(scheduler, request(long_prompt(24, seed), max_new_tokens=2, ends=()))
    runtime.calls.clear()
    drain(scheduler)
    for call, following in zip(runtime.calls, runtime.calls[1:], strict=False):
        read = sum(len(tokens) for tokens in call.values() if len(tokens) > 1)
        assert read <= 8
        if read and not writing.done:
            assert all(len(tokens) == 1 for tokens in following.values()) or writing.done


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_no_text_depends_on_what_rows_held_before(data: st.DataObject):
    rows, turn = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([None, 3, 20]))
    runtimes = data.draw(st.sampled_from([RecomputingRuntime, RuntimeOfApartPrompts]))
    scheduler, _ = reusing(rows, data.draw(st.integers(1, 9)), turn, runtimes)
    stems = [long_prompt(24, seed) for seed in range(2)]
    written: list[tuple[SampledText, SampledText]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        stem = data.draw(st.sampled_from(stems))[: data.draw(st.integers(0, 24))]
        prompt = [
            *stem,
            *data.draw(st.lists(st.integers(FIRST, VOCAB - 1), min_size=1, max_size=4)),
        ]
        ends: Sequence[int] = data.draw(st.sampled_from([(), (END, 3, 4)]))
        said, *pair = [request(prompt, max_new_tokens=9, ends=tuple(ends)) for _ in range(3)]
        turn_s = [*prompt, *alone(said, runtimes)[0]]
        stems.append(turn_s[: data.draw(st.integers(len(prompt), len(turn_s)))])
        written.append((pair[0], pair[1]))
        caller = added(scheduler, pair[0])
        for _ in range(data.draw(st.integers(0, 5))):
            scheduler.step()
        if data.draw(st.booleans()) and data.draw(st.booleans()) and not pair[0].done:
            scheduler.remove(caller)
            written.pop()
    drain(scheduler)
    for text, expected in written:
        assert outcome(text) == alone(expected, runtimes)


def test_where_prompts_differ_an_answer_is_read_again_and_its_prompt_is_not():
    scheduler, runtime = reusing(runtimes=RuntimeOfApartPrompts)
    prompt = long_prompt(20)
    first = request(prompt, max_new_tokens=6, ends=())
    list(scheduler.run([first]))
    said = [*prompt, *first.text.tokens]
    runtime.calls.clear()
    second = request([*said, 7, 8], max_new_tokens=3, ends=())
    list(scheduler.run([second]))
    assert second.reused == len(prompt)
    assert runtime.calls[0] == {0: [*first.text.tokens, 7, 8]}
    assert outcome(second) == alone(
        request([*said, 7, 8], max_new_tokens=3, ends=()), RuntimeOfApartPrompts
    )


def test_where_prompts_differ_a_paused_text_steps_again_through_what_it_wrote():
    scheduler, runtime = reusing(rows=2, chunk=9, runtimes=RuntimeOfApartPrompts)
    many = [request(long_prompt(12, seed), max_new_tokens=20, ends=()) for seed in range(2)]
    greedy = RequestList(many)
    scheduler.add(greedy)
    for _ in range(8):
        scheduler.step()
    added(scheduler, request(long_prompt(30, 5), max_new_tokens=9, ends=()))
    drain(scheduler)
    # What it wrote comes again in a few calls of up to `chunk` tokens, all of them stepped.
    repeated = [new for call in runtime.calls for new in call.values() if len(new) > 1]
    assert any(min(new) > RuntimeOfApartPrompts.STEPPED for new in repeated)
    for seed, text in enumerate(many):
        expected = request(long_prompt(12, seed), max_new_tokens=20, ends=())
        assert outcome(text) == alone(expected, RuntimeOfApartPrompts)


def test_rows_match_from_their_beginning_and_only_what_they_hold():
    held = PrefixCache(3, 40)
    held.feed([0, 1], [np.arange(30), np.arange(20)])
    tokens_s = np.arange(25)
    assert held.common(tokens_s) == [25, 20, 0]

    def any_length(_row, most):
        return most

    def reachable(row, most):
        return most if row else min(most, 3)

    assert held.match(2, tokens_s, any_length) == Match(0, 24)
    assert held.match(1, tokens_s, any_length) == Match(1, 20)  # four more are not worth a copy
    assert held.match(2, tokens_s, reachable) == Match(1, 20)  # a ring has let the rest go
    assert held.match(2, np.arange(1, 9), any_length) is None


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_many_prompts_are_as_without_reuse(rows: int):
    several = [request(prompt, stream=i, temperature=1.0) for i, prompt in enumerate(prompts(9))]
    expected = [
        alone(request(prompt, stream=i, temperature=1.0)) for i, prompt in enumerate(prompts(9))
    ]
    scheduler, _ = reusing(rows=rows, chunk=3)
    list(scheduler.run(several))
    assert [outcome(text) for text in several] == expected
