"""The process of a server: it listens, drains on SIGTERM, and closes its engines.

Source of the drain: uvicorn's graceful shutdown. Knows no route.
"""

import contextlib
import gc
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import NoReturn

import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override

from kvcast.errors import InputOutputError
from kvcast.machine.resources import allow_open_files
from kvcast.server.app import create
from kvcast.server.connections import protocol
from kvcast.server.params import ServeParams
from kvcast.server.served import Models

_LOOK = 5.0
"""Seconds between two looks at models that may be idle, at most."""

_TURN = 0.001
"""Seconds of the interpreter that a thread has while others wait for it."""

_FILES = 1024
"""Files that may be open besides connections: a temporary one of each upload, pipes, models."""

_KEPT = 75
"""Seconds that a connection without requests is kept.

Longer than clients and proxies keep theirs, since whoever closes first decides who loses a request
that is on its way: uvicorn's 5 are httpx's, and so those of OpenAI's client, too.
"""

_TELLING = 5
"""Seconds after the drain for telling clients that their requests have ended."""


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
        # Engines end what is late, so that its clients are told; uvicorn would cut them off.
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
    """Listen; raises InputOutputError if another server listens on the port."""
    try:
        bound_.listen(backlog)
    except OSError as error:
        raise _unavailable(params.host, params.port, error.strerror) from None


def _unavailable(host: str, port: int, reason: str | None) -> InputOutputError:
    return InputOutputError(
        f"cannot listen at {host}:{port}: {reason}; choose another --host or --port"
    )


def configuration(app: ASGIApp, params: ServeParams) -> uvicorn.Config:
    """Return how an application is served."""
    return uvicorn.Config(
        app,
        http=protocol(params),
        access_log=False,
        log_config=None,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=_KEPT,
        timeout_graceful_shutdown=math.ceil(params.drain + _TELLING),
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
        # Threads that compute leave it sooner to the one that serves connections.
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
