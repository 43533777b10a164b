"""Rows are given out round by round: who asks for much does not keep others waiting."""

from collections.abc import Sequence

import numpy as np
import pytest

from engine.test_prefix_cache import RANDOM, alone, long_prompt, reusing
from kit.scripted_runtimes import ScriptedRuntime, added, drain, windows
from kvcast.engine.callers import RequestList
from kvcast.engine.fair_share import Pace, in_rounds
from kvcast.engine.requests import Prompt, Request
from kvcast.engine.running import Running
from kvcast.engine.scheduler import Scheduler
from kvcast.speech.strategies import BeamSearch, Greedy, SearchRequest, Strategy
from kvcast.text.requests import SampledText
from text.test_text_scheduler import outcome, run
from text.test_text_scheduler import request as sampled

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


def asked(
    shared: Scheduler, *texts: SampledText, client: str | None = None, priority: int = 0
) -> RequestList:
    caller = added(shared, *texts)
    caller.client, caller.priority = client, priority
    return caller


def sampled_alone(which: int, **options: float) -> tuple:
    return run(RANDOM, [endless(which, **options)])[0][0]


def endless(which: int, tokens: int = 40, **options: float) -> SampledText:
    return sampled(long_prompt(12, which), max_new_tokens=tokens, ends=(), **options)


@pytest.mark.parametrize("wrote", [1, 7])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 5}])
def test_a_text_gives_its_row_to_one_that_waits_and_goes_on_as_if_it_had_not(wrote, options):
    shared, _ = reusing(rows=ROWS, turn=512)
    many = [endless(seed, **options) for seed in range(2 * ROWS)]
    hog = asked(shared, *many, client="a")
    for _ in range(1 + wrote):
        shared.step()
    assert hog.rows == ROWS
    short = endless(99, tokens=2)
    asked(shared, short, client="a")
    assert steps_until_done(shared, short) <= 2 * ROWS
    assert not any(text.done for text in many)
    drain(shared)
    for seed, text in enumerate(many):
        assert outcome(text) == sampled_alone(seed, **options)
    assert outcome(short) == alone(endless(99, tokens=2))
    assert shared.busy == []
    assert all(text.reused <= 12 for text in many)  # of its prompt alone


def test_rows_are_shared_by_clients_first_and_then_by_their_callers():
    shared, _ = reusing(rows=ROWS)
    greedy = [asked(shared, endless(seed), client="a") for seed in range(3 * ROWS)]
    shared.step()
    assert sum(caller.rows for caller in greedy) == ROWS
    other = asked(shared, *(endless(seed) for seed in range(50, 60)), client="b")
    for _ in range(6):
        shared.step()
    assert (other.rows, sum(caller.rows for caller in greedy)) == (ROWS // 2, ROWS // 2)
    # A client of one row each waits for nobody's end; nobody of one row gives it up.
    third = asked(shared, endless(70), client="c")
    fourth = asked(shared, endless(71), client="d")
    for _ in range(6):
        shared.step()
    assert [third.rows, fourth.rows, other.rows] == [1, 1, 1]
    asked(shared, endless(72), client="e")
    held = [caller.rows for caller in (*greedy, other, third, fourth)]
    for _ in range(6):
        shared.step()
    assert [caller.rows for caller in (*greedy, other, third, fourth)] == held
    drain(shared)


def test_a_caller_that_leaves_takes_its_paused_texts_along():
    shared, _ = reusing(rows=ROWS)
    hog = asked(shared, *(endless(seed) for seed in range(ROWS)))
    shared.step()
    other = endless(50, tokens=3)
    asked(shared, other)
    shared.step()
    assert hog.rows == ROWS - 1
    shared.remove(hog)
    drain(shared)
    assert outcome(other) == alone(endless(50, tokens=3))
    assert shared.busy == []


def running(caller: RequestList, count: int) -> list[Running]:
    texts = [Running(text(1), caller) for _ in range(count)]
    for place, each in enumerate(texts):
        each.place([place], None)
    return texts


def test_a_step_has_a_row_of_each_and_what_is_left_goes_round():
    hog, short, third = (RequestList([]) for _ in range(3))
    many, few = running(hog, 15), running(short, 1)
    assert in_rounds([*many, *few], 4) == [many[0], few[0], *many[1:3]]
    assert in_rounds([*many, *few], 100) == [many[0], few[0], *many[1:]]
    each = [single for caller in (short, third, RequestList([])) for single in running(caller, 1)]
    assert in_rounds([*each, *many], 2) == [*each, many[0]]
    # Where all have as many, nobody waits for another.
    equals = [*running(RequestList([]), 3), *running(RequestList([]), 3)]
    assert len(in_rounds(equals, 2)) == 6
    assert len(in_rounds([*equals, *running(RequestList([]), 5)], 2)) == 9
    # Of two clients each has as many, however many callers one has.
    short.client = third.client = "a"
    hog.client = "b"
    assert in_rounds([*each[:2], *many], 3) == [each[0], many[0], each[1], many[1]]
    assert in_rounds([*each[:1], *many], 3) == [each[0], *many[:2]]


@pytest.mark.parametrize(("fixed", "each", "most"), [(0.0, 1.0, 3), (8.0, 1.0, 5), (10.0, 0.0, 16)])
def test_a_step_takes_little_longer_than_one_of_two_rows(fixed, each, most):
    pace = Pace()
    assert pace.most() == 3
    for _ in range(50):
        pace.took(16, fixed + 16 * each)
    assert pace.most() == 3  # nothing is known of other numbers
    for rows, held_up in ((3, 9.0), (3, 0.0), (16, 50.0)):
        pace.took(rows, fixed + rows * each + held_up)
    assert pace.most() == pytest.approx(most, abs=1)
    if each:
        assert fixed + pace.most() * each <= 2 * (fixed + 2 * each)
