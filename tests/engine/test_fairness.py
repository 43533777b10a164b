"""Rows are given out round by round: who asks for much does not keep others waiting."""

from collections.abc import Sequence

import numpy as np
import pytest

from kit.scripted_runtimes import ScriptedRuntime, added, drain, windows
from kvcast.engine.callers import RequestList
from kvcast.engine.requests import Prompt, Request
from kvcast.engine.scheduler import Scheduler
from kvcast.whisper.strategies import BeamSearch, Greedy, SearchRequest, Strategy

VOCAB = 6
ROWS = 4


def scheduler() -> Scheduler:
    runtime = ScriptedRuntime(lambda _, written: np.arange(VOCAB, dtype=np.float32))
    return Scheduler(runtime, rows=ROWS, capacity=448, inputs=ROWS)


def text(tokens: int, strategy: Strategy | None = None) -> SearchRequest:
    """A request that takes so many steps."""
    return SearchRequest(
        Prompt(np.zeros(1, np.int64), input=windows(0)[0]),
        strategy=strategy or Greedy(),
        filters=(),
        eot=-1,  # which is never chosen
        max_new_tokens=tokens,
    )


def steps_until_done(scheduler: Scheduler, request: Request) -> int:
    steps = 0
    while not request.done:
        scheduler.step()
        steps += 1
        assert steps < 1000
    return steps


def test_many_texts_of_one_caller_do_not_keep_a_short_one_waiting():
    shared, tokens = scheduler(), 10
    many = [text(tokens) for _ in range(128)]
    caller = added(shared, *many)
    shared.step()
    assert caller.rows == ROWS  # alone it has all
    short = text(1)
    added(shared, short)
    # It has the first row that is free, however many of the others wait.
    assert steps_until_done(shared, short) <= tokens + 1
    assert sum(request.done for request in many) <= ROWS
    drain(shared)
    assert all(request.done for request in many)


def test_callers_of_many_texts_share_the_rows():
    shared = scheduler()
    callers = [added(shared, *(text(3) for _ in range(40))) for _ in range(2)]
    rows: list[list[int]] = []
    for _ in range(30):
        shared.step()
        rows.append([caller.rows for caller in callers])
    # At first the one that came first has all rows.
    assert all(abs(first - second) <= 1 for first, second in rows[8:])
    drain(shared)


def test_callers_of_one_text_each_are_served_in_their_order():
    shared = scheduler()
    texts = [text(2) for _ in range(20)]
    for request in texts:
        added(shared, request)
    order: list[int] = []
    while not shared.idle:
        shared.step()
        order += [i for i, text in enumerate(texts) if text.done and i not in order]
    assert order == sorted(order)


def test_a_caller_of_many_texts_is_not_kept_waiting_by_short_ones():
    shared = scheduler()
    many = [text(2) for _ in range(6)]
    added(shared, *many)
    for _ in range(400):
        while len(shared.callers) < 2 * ROWS:
            added(shared, text(1))
        shared.step()
        if all(request.done for request in many):
            break
    assert all(request.done for request in many)


@pytest.mark.parametrize("width", [2, ROWS])
def test_a_wide_request_stops_admission_until_it_fits(width: int):
    shared = scheduler()
    first = [text(tokens) for tokens in range(3, 3 + ROWS)]
    for request in first:
        added(shared, request)
    shared.step()
    wide = text(2, BeamSearch(width))
    caller = added(shared, wide)
    later = [text(1) for _ in range(50)]
    for request in later:
        added(shared, request)
    while not wide.done:
        shared.step()
        if not caller.rows and not wide.done:
            assert not any(request.done for request in later)
    drain(shared)
    assert all(request.done for request in (*first, *later))


def test_a_lower_priority_number_goes_first():
    shared = scheduler()
    added(shared, *(text(5) for _ in range(20)))
    waiting = [text(1) for _ in range(20)]
    for request in waiting:
        added(shared, request)
    question = RequestList([text(1)])
    question.priority = -1
    shared.step()
    shared.add(question)
    before = sum(request.done for request in waiting)
    steps = 0
    while not question.over:
        shared.step()
        steps += 1
    assert steps <= 2  # prefill and decoding alternate
    assert sum(request.done for request in waiting) - before < ROWS


class Broken(RequestList):
    """Fails at its second request, or when it takes the first."""

    def __init__(self, requests: Sequence[Request], *, takes: bool) -> None:
        super().__init__(requests)
        self._takes = takes

    def next_request(self) -> Request | None:
        if not self._takes and self.began:
            raise ValueError("mine")
        return super().next_request()

    def take(self, request: Request) -> None:
        if self._takes:
            raise ValueError("mine")
        super().take(request)


@pytest.mark.parametrize("takes", [False, True])
def test_an_error_of_one_caller_ends_it_and_no_other(takes: bool):
    shared = scheduler()
    broken = Broken([text(3), text(3)], takes=takes)
    shared.add(broken)
    other = text(6)
    added(shared, other)
    drain(shared)
    assert str(broken.error) == "mine"
    assert other.done
    assert shared.busy == []


def test_a_request_that_can_never_fit_is_its_callers_error():
    shared = scheduler()
    caller = added(shared, text(1, BeamSearch(ROWS + 1)))
    other = text(2)
    added(shared, other)
    drain(shared)
    assert "does not fit" in str(caller.error)
    assert other.done


def test_a_caller_that_leaves_while_its_wide_request_waits_lets_others_in():
    shared = scheduler()
    added(shared, text(50))
    shared.step()
    caller = added(shared, text(2, BeamSearch(ROWS)))
    short = text(1)
    added(shared, short)
    for _ in range(3):
        shared.step()
    assert not short.done
    shared.remove(caller)
    assert steps_until_done(shared, short) <= 2
