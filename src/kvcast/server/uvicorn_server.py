"""The process of a server: it listens, bounds connections, drains on SIGTERM, closes its engines.

uvicorn bounds neither connections nor a request's head where httptools parses. Source of the drain:
uvicorn's graceful shutdown.
"""

import asyncio
import contextlib
import gc
import json
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import Any, NoReturn

import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kvcast.errors import InputOutputError
from kvcast.machine.resources import allow_open_files
from kvcast.server import metrics
from kvcast.server.app import create
from kvcast.server.errors import (
    MOST_HEADERS,
    MOST_URL,
    ApiError,
    busy,
    headers_too_large,
    size_of,
    url_too_long,
)
from kvcast.server.model_registry import Models
from kvcast.server.params import ServeParams

_LOOK = 5.0  # seconds between two looks at models that may be idle, at most
_TURN = 0.001  # seconds of the interpreter that a thread has while others wait for it
_FILES = 1024  # open files besides connections: of uploads, pipes, models

_KEPT = 75
"""Seconds that a connection without requests is kept.

Longer than clients and proxies keep theirs, since whoever closes first decides who loses a request
that is on its way: uvicorn's 5 are httpx's, and so OpenAI's client's, too.
"""

_GRACE = 5  # seconds after the drain for error responses to ended requests


class _DrainingServer(uvicorn.Server):
    """Ends by signals: the first waits for requests, the second does not."""

    def __init__(
        self, config: uvicorn.Config, started: Callable[[], None], drain: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._started = started
        self._drain = drain

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._started()

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Engines end late requests, so that their clients get an error; uvicorn would cut them off.
        threading.Thread(target=self._drain, daemon=True).start()
        await super().shutdown(sockets=sockets)

    @contextlib.contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            end_at_once(sig)
        self.should_exit = True


def end_at_once(number: int) -> NoReturn:
    """End the process as a shell shows one that a signal ended; nothing is left to be saved."""
    os._exit(128 + number)


def bound(params: ServeParams) -> socket.socket:
    """Return a socket that may listen, so that a taken port is found before models are opened.

    Raises InputOutputError if the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in params.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((params.host, params.port))
    except (OSError, UnicodeError) as error:
        listening.close()
        reason = error.strerror if isinstance(error, OSError) else "no valid name"
        raise _unavailable(params.host, params.port, reason) from None
    return listening


def _listen(bound_: socket.socket, params: ServeParams, backlog: int) -> None:
    try:
        bound_.listen(backlog)
    except OSError as error:
        raise _unavailable(params.host, params.port, error.strerror) from None


def _unavailable(host: str, port: int, reason: str | None) -> InputOutputError:
    return InputOutputError(
        f"cannot listen at {host}:{port}: {reason}; choose another --host or --port"
    )


def configuration(app: ASGIApp, params: ServeParams) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol(params),
        access_log=False,
        log_config=None,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=_KEPT,
        timeout_graceful_shutdown=math.ceil(params.drain + _GRACE),
        ws="websockets-sansio",
        ws_max_size=params.max_body << 20,
    )


def _unload_idle(models: Models, seconds: float, ended: threading.Event) -> None:
    while not ended.wait(min(seconds / 4, _LOOK)):
        models.unload_idle(seconds)


def run(
    models: Models, params: ServeParams, listening: socket.socket, started: Callable[[], None]
) -> None:
    """Serve until a signal asks to end; `started` is called once requests are taken.

    Raises InputOutputError if another process listens at the port meanwhile.
    """

    def draining() -> bool:
        return server.should_exit

    ended = threading.Event()

    def drain() -> None:
        statuses = [engine.status() for engine in models.engines]
        if left := sum(status.running + status.waiting for status in statuses):
            requests = "request" if left == 1 else "requests"
            metrics.note(f"draining {left} {requests}, {params.drain:g} s at most")
        ended.wait(params.drain)
        for engine in models.engines:
            threading.Thread(target=engine.close, daemon=True).start()

    allow_open_files(params.max_connections + _FILES)
    if (idle := params.idle_unload) is not None:
        watch = partial(_unload_idle, models, idle, ended)
        threading.Thread(target=watch, name="kvcast-idle", daemon=True).start()
    config = configuration(create(models, params, draining), params)
    server = _DrainingServer(config, started, drain)
    try:
        _listen(listening, params, config.backlog)
        # Computing threads yield the GIL sooner to the thread that serves connections.
        sys.setswitchinterval(_TURN)
        for served in models:
            served.prepare()
        # All that is here lives as long as the server: collections, which stop everything, pass it.
        gc.collect()
        gc.freeze()
        server.run(sockets=[listening])
    finally:
        ended.set()
        listening.close()
        for engine in models.engines:
            engine.close()
    metrics.note("stopped")


_MOST_OF_SOCKET = 120  # headers of a request for a WebSocket, at most


HEAD_SECONDS = 10.0  # for a request's head, from the connection's begin or its first byte


class BoundedProtocol(HttpToolsProtocol):
    """A connection within bounds; `protocol` makes its class."""

    limits: ServeParams

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reads_head = False
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        others = [getattr(connection, "client", None) for connection in self.connections]
        mine, most_of_one = self._address(self.client), self.limits.max_connections_per_address
        if len(others) > self.limits.max_connections:
            self._refuse(busy("too many connections: try again later"))
        elif sum(self._address(other) == mine for other in others) > most_of_one:
            self._refuse(busy("too many connections from this address: try again later"))
        else:
            self._wait_for_head()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return  # refused, or a WebSocket from now on
        if self._reads_head:
            self._size += len(data)
            if len(self.url) > MOST_URL:
                self._refuse(url_too_long())
            elif self._size > MOST_HEADERS + MOST_URL:
                self._refuse(headers_too_large())
        if self._reads_head or self.cycle is None or self.cycle.response_complete:
            self._wait_for_head()

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reads_head, self._size = True, 0

    @override
    def on_headers_complete(self) -> None:
        self._reads_head = False
        self._stop_waiting()
        super().on_headers_complete()

    @override
    def handle_websocket_upgrade(self) -> None:
        # websockets gives no answer to more headers.
        if size_of(self.headers) > MOST_HEADERS or len(self.headers) > _MOST_OF_SOCKET:
            self._refuse(headers_too_large())
        else:
            super().handle_websocket_upgrade()

    def _wait_for_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if not self._reads_head:  # a browser may connect before it has anything to ask
            self.transport.close()
            return
        self._refuse(
            ApiError(
                408, f"the request did not begin within {HEAD_SECONDS:g} seconds", code="timeout"
            )
        )

    def _refuse(self, error: ApiError) -> None:
        """Answer, unless another answer is under way, and close."""
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_answer(error))
        self.transport.close()

    @staticmethod
    def _address(client: tuple[str, int] | None) -> str | None:
        return client[0] if client else None


def protocol(limits: ServeParams) -> type[BoundedProtocol]:
    return type("BoundedConnection", (BoundedProtocol,), {"limits": limits})


def _answer(error: ApiError) -> bytes:
    body = json.dumps(error.document).encode()
    lines = [
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *(f"{name}: {value}" for name, value in error.headers.items()),
        "connection: close",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
