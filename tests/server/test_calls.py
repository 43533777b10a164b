"""Requests on their way to an engine: clients that leave, deadlines, queues, the event loop."""

import asyncio
import json
import random
import string
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kit.text_models import saying
from kvcast.engine import DeadlineError, QueueFullError
from kvcast.server.dispatch import Calls, check_room
from kvcast.server.errors import ApiError, GoneError
from kvcast.server.request_bodies import MOST_VALUES, encoded, parsed, pieces
from server.serving import Server, serving


class Client:
    """A request whose body was read, until `leave` is called."""

    def __init__(self, waited: float = 0.0) -> None:
        self.scope = {"state": {"arrived": time.monotonic() - waited}}
        self._left = asyncio.Event()

    def leave(self) -> None:
        self._left.set()

    async def receive(self) -> dict[str, str]:
        await self._left.wait()
        return {"type": "http.disconnect"}


class Engine:
    def __init__(self, waiting: int = 0) -> None:
        self.waiting = waiting
        self.submitted: list[Any] = []

    def status(self) -> Any:
        return SimpleNamespace(queue=2, rows=1, running=0, waiting=self.waiting)

    def submit(self, given: Any, **options: Any) -> Any:
        self.submitted.append((given, options))
        return SimpleNamespace(cancel=lambda: None)


def held(calls: Calls, clients: list[Client]) -> tuple[Callable[[], None], list[Any]]:
    """Keep both threads that read recordings busy; returns what releases them, and tasks."""
    going = threading.Event()
    tasks = [
        asyncio.ensure_future(calls.read(request, lambda _: going.wait(60), lambda _: None))
        for request in clients
    ]
    return going.set, tasks


def test_a_queued_recording_of_a_client_that_left_is_not_read():
    read: list[str] = []

    async def test() -> None:
        calls = Calls(60)
        let_go, others = held(calls, [Client(), Client()])
        client, living = Client(), Client()
        gone = asyncio.ensure_future(calls.read(client, lambda _: read.append("gone"), print))
        later = asyncio.ensure_future(calls.read(living, lambda _: read.append("living"), print))
        await asyncio.sleep(0.01)
        client.leave()
        with pytest.raises(GoneError):
            await gone
        let_go()
        await asyncio.gather(later, *others)

    asyncio.run(test())
    assert read == ["living"]


def test_reading_ends_when_the_client_leaves_and_its_result_is_discarded():
    begun, ended, discarded = threading.Event(), threading.Event(), list[str]()

    def until_gone(check: Callable[[], None]) -> str:
        begun.set()
        try:
            while True:
                check()
                time.sleep(0.001)
        finally:
            ended.set()

    def to_the_end(_: Callable[[], None]) -> str:
        begun.set()
        ended.wait(60)
        return "all of it"

    async def left(function: Callable[[Any], str], after: Callable[[], None]) -> None:
        begun.clear()
        client = Client()
        reading = asyncio.ensure_future(Calls(60).read(client, function, discarded.append))
        await asyncio.to_thread(begun.wait, 60)
        client.leave()
        with pytest.raises(GoneError):
            await reading
        after()

    asyncio.run(left(until_gone, lambda: None))
    assert ended.wait(60)
    ended.clear()
    asyncio.run(left(to_the_end, ended.set))
    for _ in range(1000):
        if discarded:
            break
        time.sleep(0.01)
    assert discarded == ["all of it"]


def test_a_prompt_of_a_client_that_left_is_not_submitted():
    engine = Engine()
    begun, left, over = threading.Event(), threading.Event(), threading.Event()

    def made() -> str:
        begun.set()
        left.wait(60)
        over.set()
        return "a prompt"

    async def test() -> None:
        client = Client()
        beginning = asyncio.ensure_future(Calls(60).begin(client, engine, made, {}))
        assert await asyncio.to_thread(begun.wait, 60)
        client.leave()
        with pytest.raises(GoneError):
            await beginning
        left.set()
        assert await asyncio.to_thread(over.wait, 60)
        await asyncio.sleep(0.05)

    asyncio.run(test())
    assert engine.submitted == []


def test_preparing_counts():
    engine, over = Engine(), threading.Event()

    async def begun(waited: float, timeout: float, made: Callable[[], Any]) -> None:
        await Calls(timeout).begin(Client(waited), engine, made, {})

    asyncio.run(begun(40, 60, lambda: "a"))
    [(_, options)] = engine.submitted
    assert 0 < options["deadline"] <= 20
    with pytest.raises(DeadlineError):
        asyncio.run(begun(61, 60, lambda: "too late"))
    try:
        with pytest.raises(DeadlineError):
            asyncio.run(begun(0, 0.05, lambda: over.wait(60)))
    finally:
        over.set()


def test_room_is_asked_for_before_work_is_done():
    with pytest.raises(QueueFullError, match="3 requests wait already"):
        asyncio.run(Calls(60).begin(_client(), Engine(waiting=3), pytest.fail, {}))
    check_room(Engine(waiting=2))
    with pytest.raises(QueueFullError):
        check_room(Engine(waiting=2), 2)
    with pytest.raises(ApiError, match="takes 3 at once") as refused:
        check_room(Engine(), 4)
    assert refused.value.status == 400


def _client() -> Any:
    return SimpleNamespace(scope={"state": {}})


HELLO = [{"role": "user", "content": "hello"}]
MANY = {"n": 32, "temperature": 0, "logprobs": True, "top_logprobs": 20}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving({"world": saying("hello there, " * 5)}, max_n=32) as running:
        yield running


def anything(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(7 if depth else 4)
    if kind < 4:
        return [None, rng.random(), rng.randrange(-9, 10**9), 'a"é\u2028😀'][kind]
    size = rng.choice([0, 1, 3, 40])
    if kind == 4:
        return {f"{i}é": anything(rng, depth - 1) for i in range(size)}
    return [anything(rng, depth - 1) for _ in range(size)]


@pytest.mark.parametrize("seed", range(6))
def test_pieces_are_the_whole_document_and_no_call_encodes_much(seed: int):
    document = {"a": anything(random.Random(seed), 5), "b": [[1.5] * 900] * 9, "c": [{}] * 700}
    whole = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    parts = list(pieces(document))
    assert "".join(parts) == whole == encoded(document)
    assert max(map(len, parts)) < 20_000 < len(whole)


def test_nan_is_never_encoded():
    for depth in (1, 900):
        with pytest.raises(ValueError, match="not JSON compliant"):
            encoded([[1.0] * depth, float("nan")])


LONG = {
    "lists": [[[i] * 100 for i in range(100)] for _ in range(20)],
    "one list": list(range(150_000)),
    "objects": {"a": [{"b": [1.5, {"c": None}]}] * 20_000, "d": string.printable * 100},
    "text": {"prompt": 'a\\"\n' * 300_000},
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_document_is_read_as_json_reads_it(name: str):
    text = json.dumps(LONG[name], indent=1)
    assert parsed(text) == LONG[name]
    for wrong in (text[:-1], text + "]", text.replace(": ", " ", 1), "[" + text + ",]"):
        if wrong != text:
            with pytest.raises(ValueError, match="is not JSON"):
                parsed(wrong)


@contextmanager
def turns(server: Server) -> Iterator[list[float]]:
    """Collect the CPU time of the loop's thread between two turns.

    It is that of the longest callback, and of those that were ready with it. How long the thread
    waits for a processor, or for others, is no part of it.
    """
    loop = server.loop
    taken: list[float] = []

    async def look() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.001)
            taken.append(time.thread_time() - began)

    watching = asyncio.run_coroutine_threadsafe(look(), loop)
    yield taken
    watching.cancel()


ASKED = {
    "an answer": ("chat/completions", {"messages": HELLO} | MANY),
    "a stream": ("chat/completions", {"messages": HELLO, "stream": True} | MANY),
    "a completion": ("completions", {"prompt": "hello", "n": 32, "temperature": 0, "logprobs": 20}),
    "a text": ("completions", {"prompt": "hello " * 300_000}),
    "a schema": (
        "completions",
        {
            "prompt": "hello",
            "max_tokens": 1,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "schema": {
                        "type": "object",
                        "properties": {f"p{i}": {"type": "integer"} for i in range(1200)},
                    }
                },
            },
        },
    ),
    "a body": ("completions", {"prompt": [[5] * 3000] * 120}),
    "tools": (
        "chat/completions",
        {
            "messages": HELLO,
            "tool_choice": "required",
            "tools": [
                {"type": "function", "function": {"name": f"f{i}", "parameters": {"enum": [0] * 9}}}
                for i in range(2000)
            ],
        },
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_no_turn_of_the_loop_is_long(server: Server, name: str):
    path, body = ASKED[name]
    with turns(server) as taken, server.http() as http:
        answer = http.post(f"/v1/{path}", json={"model": "world", "max_tokens": 80} | body)
    assert answer.status_code in {200, 400}, answer.text
    content = max(answer.content, json.dumps(body).encode(), key=len).removeprefix(b"data: ")
    began = time.thread_time()
    for part in content.split(b"\n\ndata: "):  # as much work, in one go
        if part.startswith(b"{"):
            json.dumps(json.loads(part))
    assert max(taken) < max(0.05, (time.thread_time() - began) / 3)
    assert len(taken) > 10


def test_a_document_with_too_many_values_is_refused_unread():
    with pytest.raises(ValueError, match="more than"):
        parsed("[" + "," * (MOST_VALUES + 1) + "]")
