"""The proxy that passes requests from clients to replicas, and responses back, in plain ASGI.

If a replica dies before the first byte of its response is passed on, another replica takes the
request. Later, a stream of events ends with an error event, and any other response is cut off.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvcast.server.dispatch import gone, late
from kvcast.server.errors import ApiError, GoneError
from kvcast.server.middleware import stopping
from kvcast.server.text_responses import event

TRIES = 4  # attempts at one answer, each by another replica
PAUSE = 0.5  # seconds between attempts; a dead replica is not known at once
_AHEAD = 64  # messages that an application may send before they are taken

_HANDED_ON = (
    *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string"),
    *("root_path", "headers", "client", "server"),
)
_OWN_HEADERS = frozenset({b"x-request-id"})  # replace those of replicas


@dataclass(frozen=True, kw_only=True)
class ProxiedRequest:
    scope: Mapping[str, Any]
    body: bytes


class LostError(Exception):
    """A replica died, or could not be reached."""


Ask: TypeAlias = Callable[[ProxiedRequest], AsyncGenerator[list[Message]]]
"""Asks a replica; yields the messages of its answer. Raises LostError, and ApiError if refused."""


class Gateway:
    def __init__(self, ask: Ask, timeout: float) -> None:
        """Begin; a response must begin within `timeout` seconds."""
        self._ask = ask
        self._timeout = timeout
        self._under: set[asyncio.Future[None]] = set()
        self.draining = False

    async def drain(self, seconds: float) -> None:
        """Wait for running requests to end, then cancel the rest."""
        self.draining = True
        under = [*self._under]
        if not under:
            return
        _, late = await asyncio.wait(under, timeout=seconds)
        for passing in late:
            passing.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":  # a socket stays with one replica; there is no way back to it
            await send({"type": "websocket.close", "code": 1011})
            return
        serving = asyncio.ensure_future(self._serve(scope, receive, send))
        self._under.add(serving)
        serving.add_done_callback(self._under.discard)
        try:
            await asyncio.wait({serving})
            if serving.cancelled():
                raise stopping()
            serving.result()
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = ProxiedRequest(
            scope={name: scope[name] for name in _HANDED_ON if name in scope},
            body=await _whole(receive),
        )
        begun = asyncio.Event()
        passing = asyncio.ensure_future(self._pass(request, send, begun))
        leaving = asyncio.ensure_future(gone(receive))
        either = partial(asyncio.wait, {passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        try:
            await either(timeout=self._timeout)
            if begun.is_set():  # the replica, which took it up later, has a deadline for the rest
                await either()
            if passing.done():
                passing.result()
                return
            raise GoneError if leaving.done() else late()
        finally:
            for task in (passing, leaving):
                task.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)

    async def _pass(self, request: ProxiedRequest, send: Send, begun: asyncio.Event) -> None:
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(PAUSE * attempt)
            answer = _ProxiedAnswer(send, begun)
            try:
                async with aclosing(self._ask(request)) as messages:
                    async for some in messages:
                        for message in some:
                            await answer.take(message)
                answer.check_whole()
                return  # noqa: TRY300 - nothing was lost
            except LostError:
                if begun.is_set():
                    await answer.break_off()
                    return
        raise _lost()


class _ProxiedAnswer:
    def __init__(self, send: Send, begun: asyncio.Event) -> None:
        """Take the status and headers that are set before the first message is passed on."""
        self._send = send
        self._begun = begun
        self._head: Message | None = None
        self._streams = self._ended = False

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message["headers"] if pair[0].lower() not in _OWN_HEADERS]
            kind = dict(headers).get(b"content-type", b"")
            self._streams = kind.startswith(b"text/event-stream")
            self._head = {**message, "headers": headers}
            return
        if self._head is not None:
            self._begun.set()
            await self._send(self._head)
            self._head = None
        self._ended = not message.get("more_body", False)
        await self._send(message)

    def check_whole(self) -> None:
        if not self._ended:
            raise LostError

    async def break_off(self) -> None:
        """End the response with an error; raises LostError if its format has none."""
        if self._ended:
            return
        if not self._streams:
            raise LostError
        last = event(_lost().document).encode()
        await self._send({"type": "http.response.body", "body": last, "more_body": False})


def _lost() -> ApiError:
    return ApiError(
        503,
        "the replica that served the request is lost: send it again",
        kind="server_error",
        code="replica_lost",
    )


async def _whole(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def answered(app: ASGIApp, request: ProxiedRequest) -> AsyncGenerator[list[Message]]:
    """Yield the messages of an application's response, in batches of all available ones.

    If closed early, it signals to the application that the client has disconnected.
    """
    messages: asyncio.Queue[Message] = asyncio.Queue(_AHEAD)
    left = asyncio.Event()
    bodies = [request.body]

    async def receive() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    working = asyncio.ensure_future(app({**request.scope, "state": {}}, receive, messages.put))
    try:
        while not (working.done() and messages.empty()):
            some = [messages.get_nowait() for _ in range(messages.qsize())]
            if some:
                yield some
                await asyncio.sleep(0)  # where there is always more, other requests have a turn
                continue
            waiting = asyncio.ensure_future(messages.get())
            await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                yield [waiting.result()]
            else:
                waiting.cancel()
        working.result()
    finally:
        left.set()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
