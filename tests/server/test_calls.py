"""Requests on their way to an engine: clients that leave, deadlines, queues that are full."""

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvcast.engine import DeadlineError, QueueFullError
from kvcast.server.calls import Calls, check_room
from kvcast.server.errors import ApiError, GoneError


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
    """Takes everything, or nothing where it is full."""

    def __init__(self, waiting: int = 0) -> None:
        self.waiting = waiting
        self.submitted: list[Any] = []

    def status(self) -> Any:
        return SimpleNamespace(queue=2, rows=1, running=0, waiting=self.waiting)

    def submit(self, given: Any, **options: Any) -> Any:
        self.submitted.append((given, options))
        return SimpleNamespace(cancel=lambda: None)


def held(calls: Calls, clients: list[Client]) -> tuple[Callable[[], None], list[Any]]:
    """Keep both threads that read recordings busy; return what lets them go, and their tasks."""
    going = threading.Event()
    tasks = [
        asyncio.ensure_future(calls.read(request, lambda _: going.wait(60), lambda _: None))
        for request in clients
    ]
    return going.set, tasks


def test_what_waits_for_a_client_that_left_is_not_read():
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


def test_reading_ends_when_the_client_leaves_and_what_was_read_is_given_back():
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
