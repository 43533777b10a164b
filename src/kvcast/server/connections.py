"""Connections: how many there may be, how large a request's head may be, and when it must be there.

uvicorn bounds none of these where httptools parses. Knows no application.
"""

import asyncio
import json
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kvcast.server.errors import ApiError, busy
from kvcast.server.params import ServeParams

MOST_HEADERS = 64 << 10
"""Bytes of a request's headers, at most."""

_MOST_OF_SOCKET = 120
"""Headers of a request for a WebSocket, at most."""

MOST_URL = 8 << 10
"""Bytes of its path and query, at most."""

HEAD_SECONDS = 10.0
"""Time for the head of a request to arrive, from a connection's begin or the head's first byte."""


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
    """Return the class of connections that keep to these limits."""
    return type("BoundedConnection", (BoundedProtocol,), {"limits": limits})


def size_of(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the bytes that headers have as they are sent."""
    return sum(len(name) + len(value) + len(b": \r\n") for name, value in headers)


def url_too_long() -> ApiError:
    """Return the refusal of a long path or query."""
    return ApiError(414, f"the URL is longer than {MOST_URL >> 10} KiB", code="url_too_long")


def headers_too_large() -> ApiError:
    """Return the refusal of large headers."""
    return ApiError(
        431, f"the headers are larger than {MOST_HEADERS >> 10} KiB", code="headers_too_large"
    )


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
