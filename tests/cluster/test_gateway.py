"""Responses when replicas die, are busy, or clients leave; replicas' health; packs of prompts."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.tiny_gguf import tiny_llama
from kvcast.cluster import gateway
from kvcast.cluster.gateway import TRIES, LostError, ProxiedRequest, answered
from kvcast.cluster.mapping import packed
from kvcast.cluster.serving import Guarded, Replica
from kvcast.engine import Engine
from kvcast.errors import KvcastError
from kvcast.loading.opening import open_model
from kvcast.loading.params import LoadParams
from kvcast.server.errors import ApiError, busy
from kvcast.server.model_registry import Models, Served, kind_of
from kvcast.server.params import ServeParams

SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/v1/completions",
    "raw_path": b"/v1/completions",
    "query_string": b"",
    "headers": [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")],
}


def head(kind: bytes) -> dict[str, Any]:
    headers = [(b"content-type", kind), (b"x-request-id", b"the replica's")]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def body(content: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


EVENTS, JSON = head(b"text/event-stream; charset=utf-8"), head(b"application/json")


class Replicas:
    """Each call is answered by the next script: lists of messages, then maybe an error."""

    def __init__(self, *scripts: list[Any]) -> None:
        self.scripts = list(scripts)
        self.asked: list[ProxiedRequest] = []
        self.closed = 0

    async def __call__(self, asked: ProxiedRequest) -> AsyncGenerator[list[Any]]:
        self.asked.append(asked)
        try:
            for step in self.scripts[len(self.asked) - 1]:
                if isinstance(step, Exception):
                    raise step
                if step is None:
                    await asyncio.Event().wait()
                yield [step]
        finally:
            self.closed += 1


def served(
    replicas: Callable[[ProxiedRequest], AsyncGenerator[list[Any]]],
    *parts: bytes,
    leaves: bool = False,
    **limits: Any,
) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    waiting = [body(part) | {"type": "http.request"} for part in parts]
    waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        await asyncio.sleep(0.05) if leaves else await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    app = Guarded(replicas, ServeParams(max_body=1, **limits))
    asyncio.run(app(dict(SCOPE), receive, send))
    return sent


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "PAUSE", 0)


def test_an_answer_passes_as_it_comes():
    replicas = Replicas([EVENTS, body(b"data: 1\n\n"), body(b"", more=False)])
    first, *others = served(replicas, b"{", b"}")
    assert dict(first["headers"])[b"x-request-id"].startswith(b"req_")
    assert [name for name, _ in first["headers"]].count(b"x-request-id") == 1
    assert others == [body(b"data: 1\n\n"), body(b"", more=False)]
    assert replicas.asked[0].body == b"{}"
    assert replicas.asked[0].scope == SCOPE


@pytest.mark.parametrize("before", [[], [EVENTS], [JSON]])
def test_requests_without_a_response_are_retried(before: list[Any]):
    replicas = Replicas([*before, LostError()], [JSON, body(b"{}", more=False)])
    messages = served(replicas)
    assert [message.get("body") for message in messages] == [None, b"{}"]
    assert len(replicas.asked) == 2


def test_an_answer_without_an_end_counts_as_lost():
    replicas = Replicas([], [JSON, body(b"{}", more=False)])
    assert served(replicas)[-1]["body"] == b"{}"


def test_a_stream_that_breaks_ends_with_an_error():
    replicas = Replicas([EVENTS, body(b"data: 1\n\n"), LostError()])
    *_, first, last = served(replicas)
    assert first["body"] == b"data: 1\n\n"
    assert json.loads(last["body"].removeprefix(b"data: "))["error"]["code"] == "replica_lost"
    assert not last["more_body"]
    assert len(replicas.asked) == 1


def test_any_other_answer_that_breaks_is_cut_off():
    with pytest.raises(LostError):
        served(Replicas([JSON, body(b"{"), LostError()]))


def test_lost_replicas_are_reported_to_the_client():
    replicas = Replicas(*[[LostError()]] * TRIES)
    first, last = served(replicas)
    assert first["status"] == 503
    assert dict(first["headers"])[b"retry-after"]
    assert json.loads(last["body"])["error"]["code"] == "replica_lost"


def test_where_all_replicas_are_busy_the_client_should_come_again():
    first, last = served(Replicas([busy("too many requests wait")]))
    assert first["status"] == 429
    assert dict(first["headers"])[b"retry-after"]
    assert json.loads(last["body"])["error"]["type"] == "rate_limit_error"


def test_a_client_that_leaves_ends_the_work():
    replicas = Replicas([EVENTS, body(b"data: 1\n\n"), None])
    assert len(served(replicas, leaves=True)) == 2
    assert replicas.closed == 1


def test_too_large_bodies_are_not_forwarded():
    replicas = Replicas()
    first, _ = served(replicas, b"a" * (1 << 20), b"a")
    assert first["status"] == 413
    assert replicas.asked == []


def test_a_replica_yields_its_applications_messages():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        given = await receive()
        await send(EVENTS)
        await send(body(given["body"], more=False))

    async def collect() -> list[Any]:
        asked = ProxiedRequest(scope=SCOPE, body=b"{}")
        return [message async for some in answered(app, asked) for message in some]

    assert asyncio.run(collect()) == [EVENTS, body(b"{}", more=False)]


def test_an_answer_that_never_waits_leaves_turns_to_others():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(EVENTS)
        for _ in range(5000):
            await send(body(b"data: 1\n\n"))
        await send(body(b"", more=False))

    async def other(turns: list[int]) -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def take_all() -> tuple[int, int]:
        turns: list[int] = []
        task = asyncio.create_task(other(turns))
        asked = ProxiedRequest(scope=SCOPE, body=b"{}")
        count = sum([len(some) async for some in answered(app, asked)])
        task.cancel()
        return count, len(turns)

    count, turns = asyncio.run(take_all())
    assert count == 5002
    assert turns > 50


def test_an_abandoned_response_cancels_the_replica():
    heard: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(EVENTS)
        try:
            await asyncio.Event().wait()
        finally:
            heard.append("cancelled")

    async def take_one() -> None:
        messages = answered(app, ProxiedRequest(scope=SCOPE, body=b"{}"))
        await anext(messages)
        await messages.aclose()

    asyncio.run(take_one())
    assert heard == ["cancelled"]


def get(app: Any, path: str) -> tuple[Any, list[dict[str, Any]]]:
    sent: list[dict[str, Any]] = []
    coming = [{"type": "http.request", "body": b"", "more_body": False}]

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        if coming:
            return coming.pop()
        await asyncio.Event().wait()
        raise AssertionError

    headers = [(b"host", b"localhost")]
    scope = SCOPE | {"method": "GET", "path": path, "headers": headers}
    return app(scope, receive, send), sent


def test_a_server_s_life_is_not_a_request():
    sent: list[str] = []
    coming = ["lifespan.startup", "lifespan.shutdown"]

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    async def receive() -> dict[str, Any]:
        return {"type": coming.pop(0)}

    app = Guarded(Replicas(), ServeParams())
    asyncio.run(app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_while_requests_end_no_others_are_taken():
    async def all_of_it() -> tuple[list[Any], ...]:
        may_end = asyncio.Event()

        async def replica(asked: ProxiedRequest) -> AsyncGenerator[list[Any]]:
            yield [JSON]
            if asked.scope["path"] == "/slow":
                await may_end.wait()
            yield [body(b"{}", more=False)]

        app = Guarded(replica, ServeParams())
        call, slow = get(app, "/slow")
        under = asyncio.ensure_future(call)
        await asyncio.sleep(0.01)
        draining = asyncio.ensure_future(app.drain(60))
        await asyncio.sleep(0)
        answers = []
        for path in ("/v1/models", "/ready", "/health"):
            call, sent = get(app, path)
            await call
            answers.append(sent)
        assert not draining.done()
        may_end.set()
        await asyncio.gather(draining, under)
        return slow, *answers

    slow, *late, health = asyncio.run(all_of_it())
    assert [message.get("body") for message in slow] == [None, b"{}"]
    for head_of_it, told in late:
        assert head_of_it["status"] == 503
        assert json.loads(told["body"])["error"]["code"] == "unavailable"
    assert health[0]["status"] == 200


def test_a_body_under_way_is_waited_for():
    async def all_of_it() -> list[Any]:
        app = Guarded(Replicas([JSON, body(b"{}", more=False)]), ServeParams())
        arrives, sent = asyncio.Event(), list[Any]()

        async def receive() -> dict[str, Any]:
            if arrives.is_set():
                await asyncio.Event().wait()
            await asyncio.sleep(0.05)
            arrives.set()
            return body(b"{}", more=False) | {"type": "http.request"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        under = asyncio.ensure_future(app(dict(SCOPE), receive, send))
        await asyncio.sleep(0.01)
        assert not arrives.is_set()
        await app.drain(60)
        await under
        return sent

    assert [message.get("body") for message in asyncio.run(all_of_it())] == [None, b"{}"]


def test_an_answer_that_does_not_begin_in_time_is_late():
    replicas = Replicas([None])
    first, told = served(replicas, timeout=0.05)
    assert (first["status"], replicas.closed) == (504, 1)
    assert "deadline" in json.loads(told["body"])["error"]["message"]


def test_an_answer_that_has_begun_is_not_late():
    async def replica(asked: ProxiedRequest) -> AsyncGenerator[list[Any]]:
        yield [EVENTS, body(b"data: 1\n\n")]
        await asyncio.sleep(0.8)
        yield [body(b"data: 2\n\n", more=False)]

    assert len(served(replica, timeout=0.5)) == 3


def test_responses_beyond_the_drain_are_cut_off():
    async def all_of_it() -> list[Any]:
        app = Guarded(Replicas([EVENTS, body(b"data: 1\n\n"), None], [None]), ServeParams())
        (begun, sent), (waits, refused) = get(app, "/stream"), get(app, "/slow")
        under = [asyncio.ensure_future(call) for call in (begun, waits)]
        await asyncio.sleep(0.01)
        await app.drain(0.01)
        error, _ = await asyncio.gather(*under, return_exceptions=True)
        assert isinstance(error, ApiError)  # so the connection is closed
        assert [message.get("body") for message in sent] == [None, b"data: 1\n\n"]
        return refused

    first, told = asyncio.run(all_of_it())
    assert first["status"] == 503
    assert json.loads(told["body"])["error"]["code"] == "unavailable"


def test_a_replica_is_well_as_long_as_its_engines_take_requests(tmp_path: Path):
    path = tiny_llama(tmp_path / "tiny.gguf")
    opened = open_model(path, LoadParams(runtime="native", quantize="none", threads=1))
    engine = Engine(opened.model, rows=1)
    replica = Replica.__new__(Replica)
    replica._models = Models([Served(name="tiny", engine=engine, kind=kind_of(opened.model))])
    asyncio.run(replica.check_health())
    assert engine.status().finished == {}
    engine.close()
    with pytest.raises(KvcastError, match="closed"):
        asyncio.run(replica.check_health())


keys = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=40).map(
    lambda groups: sorted(groups, key=lambda key: key[0])
)


@given(keys, st.integers(1, 9))
def test_each_prompt_is_in_one_pack_with_all_that_say_the_same(keys, together: int):
    packs = packed(keys, together)
    assert sorted(i for pack in packs for i in pack) == list(range(len(keys)))
    for pack in packs:
        assert pack == sorted(pack)
        assert len({keys[i][0] for i in pack}) == 1
    for key in set(keys):
        assert sum(any(keys[i] == key for i in pack) for pack in packs) == 1


@given(keys, st.integers(1, 9))
def test_packs_are_no_larger_than_they_need_be(keys, together: int):
    for pack in packed(keys, together):
        for key in {keys[i] for i in pack}:
            others = [i for i in pack if keys[i] != key]
            last = max(pack, key=lambda i: keys.index(keys[i]))
            assert len(others) < together or key != keys[last]
