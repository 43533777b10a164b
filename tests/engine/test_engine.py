"""What an engine promises besides its answers: order, limits, deadlines, and a clean end."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from kit.dimensions import LLAMA
from kit.letters import VOCAB
from kit.scripted_runtimes import Written, random_model
from kit.text_models import model, model_of, prompt, saying, until
from kvcast import Engine
from kvcast.engine import ClosedError, DeadlineError, QueueFullError
from kvcast.errors import KvcastError, UsageError
from text.test_generate import speaking, text_model

SCHEMA = {"type": "array", "items": {"enum": [1, "é", None]}, "minItems": 2, "maxItems": 4}

RANDOM = random_model(VOCAB, 0)


class Gate:
    """A model whose steps wait for a permission each."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)

    def __call__(self, written: Written) -> Any:
        assert self._permits.acquire(timeout=600)
        return RANDOM(written)

    def open(self, steps: int = 1000) -> None:
        self._permits.release(steps)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open(100_000)


def test_a_text_comes_in_pieces_to_a_thread():
    with Engine(speaking("hello", "world")) as engine:
        job = engine.submit("hello")
        assert "".join(delta.text for delta in job) == "world"
        assert job.result().text == "world"
        assert job.done()


def test_texts_come_in_pieces_to_tasks():
    async def said(engine: Engine) -> str:
        job = engine.submit("hello")
        text = "".join([delta.text async for delta in job])
        assert (await job).text == text
        return text

    async def all_of_them(engine: Engine) -> list[str]:
        return await asyncio.gather(*(said(engine) for _ in range(20)))

    with Engine(speaking("hello", "world"), rows=3) as engine:
        assert asyncio.run(all_of_them(engine)) == ["world"] * 20


def test_an_event_loop_that_is_gone_harms_nobody(gate: Gate):
    async def leave(engine: Engine) -> None:
        waiting = asyncio.ensure_future(anext(aiter(engine.submit("a", max_new_tokens=5))))
        await asyncio.sleep(0.05)
        waiting.cancel()

    with Engine(text_model(gate), rows=2) as engine:
        asyncio.run(leave(engine))
        gate.open()
        assert engine.submit("b", max_new_tokens=3).result(timeout=600)


def test_jobs_begin_in_the_order_in_which_they_came(gate: Gate):
    with Engine(text_model(gate), rows=1) as engine:
        jobs = [engine.submit("ab"[i % 2], max_new_tokens=1) for i in range(6)]
        for i, job in enumerate(jobs):
            gate.open(1)
            job.result(timeout=600)
            assert [job.done() for job in jobs] == [True] * (i + 1) + [False] * (5 - i)


def test_a_queue_that_is_full_refuses_and_recovers(gate: Gate):
    with Engine(text_model(gate), rows=1, queue=2) as engine:
        jobs = [engine.submit("a", max_new_tokens=1) for _ in range(3)]
        with pytest.raises(QueueFullError, match=r"2 requests wait already: try again"):
            engine.submit("a")
        until(lambda: engine.status().running == 1)
        assert engine.status().waiting == 2
        gate.open()
        for job in jobs:
            job.result(timeout=600)
        engine.submit("a", max_new_tokens=1).result(timeout=600)


def test_a_cancelled_job_frees_its_row_and_ends(gate: Gate):
    with Engine(text_model(gate), rows=1) as engine:
        first = engine.submit("a", max_new_tokens=30)
        second = engine.submit("b", max_new_tokens=1)
        third = engine.submit("c", max_new_tokens=1)
        gate.open(2)
        next(iter(first))
        third.cancel()  # waits, and is never begun
        first.cancel()
        gate.open(2)
        assert second.result(timeout=600)
        for job in (first, third):
            with pytest.raises(CancelledError):
                job.result(timeout=600)
        until(lambda: engine.status().busy == [])
        assert engine.status().finished == {"cancelled": 2, "length": 1}
        first.cancel()  # nothing happens


def test_a_deadline_ends_what_runs_and_what_waits(gate: Gate):
    with Engine(text_model(gate), rows=1) as engine:
        running = engine.submit("a", max_new_tokens=30, deadline=0.05)
        waiting = engine.submit("b", max_new_tokens=30, deadline=0.05)
        time.sleep(0.1)
        gate.open()
        for job in (running, waiting):
            with pytest.raises(DeadlineError, match="deadline"):
                job.result(timeout=600)
        assert engine.status().finished == {"deadline": 2}


def test_closing_lets_jobs_end_for_a_while_and_cancels_the_rest(gate: Gate):
    engine = Engine(text_model(gate), rows=1)
    job = engine.submit("a", max_new_tokens=3)
    gate.open()
    engine.close(drain=30)
    assert len(job.result().tokens) <= 3
    with pytest.raises(ClosedError):
        engine.submit("a")
    with pytest.raises(ClosedError):
        engine.run(lambda: 1)

    stuck = Gate()
    engine = Engine(text_model(stuck), rows=1)
    job = engine.submit("a", max_new_tokens=30)
    threading.Timer(0.2, stuck.open, [1]).start()
    engine.close(drain=0.01)
    with pytest.raises(CancelledError):
        job.result(timeout=600)


def test_a_mistake_is_the_callers_own():
    with Engine(text_model(), rows=2) as engine:
        with pytest.raises(UsageError, match="the prompt is empty"):
            engine.submit([])
        with pytest.raises(UsageError, match="the prompt has 60 tokens and the model takes 39"):
            engine.submit([2] * 60)
        with pytest.raises(UsageError, match="beam must be at most 2, the rows of the engine"):
            engine.submit("a", beam=3)
        with pytest.raises(UsageError, match="temperature"):
            engine.submit("a", temperature=-1)
        assert engine.submit("a", max_new_tokens=2).result(timeout=600)


def test_nan_logits_end_one_text_and_no_other():
    def damaged(written: Written) -> Any:
        logits_sv = RANDOM(written)
        return logits_sv * np.nan if written[1] == 2 else logits_sv

    with Engine(text_model(damaged), rows=2) as engine:
        jobs = [engine.submit("ab"[i % 2], max_new_tokens=6) for i in range(6)]
        expected = text_model().generate("b", max_new_tokens=6).tokens
        for i, job in enumerate(jobs):
            if i % 2:
                assert job.result(timeout=600).tokens == expected
            else:
                with pytest.raises(KvcastError, match="NaN"):
                    job.result(timeout=600)
        assert engine.status().finished["error"] == 3


def test_an_engine_goes_on_after_a_step_that_failed():
    broken = threading.Event()

    def sometimes(written: Written) -> Any:
        if broken.is_set():
            broken.clear()
            raise MemoryError
        return RANDOM(written)

    with Engine(text_model(sometimes), rows=2) as engine:
        broken.set()
        with pytest.raises(KvcastError, match="the model failed"):
            engine.submit("a").result(timeout=600)
        expected = text_model().generate("a", max_new_tokens=6).tokens
        assert engine.submit("a", max_new_tokens=6).result(timeout=600).tokens == expected


def test_functions_run_between_steps_on_the_engines_thread():
    def fail() -> None:
        raise ValueError("mine")

    with Engine(text_model()) as engine:
        assert engine.run(lambda: threading.current_thread().name).result(600) == "kvcast-engine"
        with pytest.raises(ValueError, match="mine"):
            engine.run(fail).result(600)


def test_functions_and_texts_take_turns():
    begun = threading.Event()
    ran: list[int] = []
    with Engine(text_model(), queue=200) as engine:
        first = engine.run(lambda: begun.wait(600))
        for i in range(100):
            engine.run(partial(ran.append, i))
        job = engine.submit("a", max_new_tokens=5)
        seen: list[int] = []
        job.when_done(lambda: seen.append(len(ran)))
        begun.set()
        assert first.result(600)
        job.result(600)
    assert seen[0] < 20


def test_functions_wait_in_the_queue_and_have_deadlines():
    begun = threading.Event()
    with Engine(text_model(), rows=1, queue=1) as engine:
        engine.run(lambda: begun.wait(600))
        late = engine.run(lambda: 1, deadline=0.01)
        with pytest.raises(QueueFullError):
            engine.run(lambda: 2)
        time.sleep(0.02)
        begun.set()
        with pytest.raises(DeadlineError):
            late.result(600)
        assert engine.run(lambda: 3).result(600) == 3
        assert engine.status().finished == {"stop": 2, "deadline": 1}


def test_a_task_that_waits_for_a_cancelled_job_is_not_cancelled(gate: Gate):
    async def wait(engine: Engine) -> str:
        job = engine.submit("a", max_new_tokens=30)
        job.cancel()
        gate.open()
        with pytest.raises(CancelledError):
            await job
        return "went on"

    with Engine(text_model(gate), rows=1) as engine:
        assert asyncio.run(wait(engine)) == "went on"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_fails_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch):
    started, begun = threading.Event(), threading.Event()
    engine = Engine(text_model())
    first = engine.run(lambda: (started.set(), begun.wait(600)))
    assert started.wait(600)
    jobs = [engine.submit("a"), engine.run(lambda: 1)]
    assert engine.alive

    def fail() -> None:
        raise RuntimeError("of its own")

    monkeypatch.setattr(engine, "_expire", fail)
    begun.set()
    assert first.result(600)
    for job in jobs:
        with pytest.raises(RuntimeError, match="of its own"):
            job.result(600)
    assert not engine.alive
    with pytest.raises(ClosedError):
        engine.submit("a")
    engine.close(drain=30)


@pytest.mark.parametrize(
    "wrong", [{"rows": 0}, {"queue": -1}, {"chunk": 0}, {"cache_memory": 100}], ids=str
)
def test_sizes_that_cannot_be(wrong: dict[str, int]):
    with pytest.raises(UsageError, match=r"must be|give it more memory"):
        Engine(model(LLAMA, "native"), **wrong)


def test_texts_of_an_engine_keep_their_grammars():
    model = model_of("byte-level")
    asked = [{"json_schema": SCHEMA}, {"regex": "[0-9]{3,9}"}, {"max_new_tokens": 5}] * 4
    asked = [{**options, "temperature": 1.0, "seed": seed} for seed, options in enumerate(asked)]
    with Engine(model, rows=4) as engine:
        with pytest.raises(UsageError, match="unclosed group"):
            engine.submit("a", regex="(a")
        jobs = [engine.submit("hello", **options) for options in asked]
        texts = [job.result(timeout=600).text for job in jobs]
    assert texts == [model.generate("hello", **options).text for options in asked]
    assert all(2 <= len(json.loads(text)) <= 4 for text in texts[::3])
    assert all(re.fullmatch("[0-9]{3,9}", text) for text in texts[1::3])


def test_texts_of_one_prompt_that_end_in_the_same_step_are_streamed_to_their_ends():
    with Engine(saying("world")) as engine:
        job = engine.submit("u.hello!a.", n=3, temperature=0.01, max_new_tokens=20)
        deltas = list(job)
        for index in range(3):
            own = [delta for delta in deltas if delta.index == index]
            assert "".join(delta.text for delta in own) == "world"
            assert [delta.finish_reason for delta in own if delta.finish_reason] == ["stop"]
        assert [text.text for text in job.result()] == ["world"] * 3
        assert engine.status().finished == {"stop": 1}


def test_memory_decides_about_rows_and_their_length():
    loaded = model(replace(LLAMA, max_positions=4096), "native")
    row = loaded.runtime.row_bytes(4096)
    with Engine(loaded, rows=8, cache_memory=3 * row) as engine:
        status = engine.status()
        # Six rows of half the length are worth more than three.
        assert (status.rows, status.capacity) == (6, 2048)
        assert status.cache_bytes <= 3 * row
        with pytest.raises(UsageError, match="takes 2047 at most"):
            engine.submit([5] * 2048)
    with Engine(loaded, rows=8, cache_memory=row // 4) as engine:
        assert (engine.status().rows, engine.status().capacity) == (1, 1024)
        assert engine.submit(prompt(1000, 1), max_new_tokens=3).result(timeout=600)
