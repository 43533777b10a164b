"""Routes: FastAPI's, but for how a body is read. What exceeds a megabyte of it is in a file.

Knows no endpoint.
"""

import tempfile
from collections.abc import Callable, Coroutine
from typing import Any

from anyio.to_thread import run_sync
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from kvcast.server.documents import parsed
from kvcast.server.errors import ApiError

_SMALL = 1 << 16
"""Bytes that are read at once; more are read beside the event loop."""


SPOOLED = 1 << 20
"""Bytes of a body that are in memory; of a larger one all are in a file until it is read."""

MOST_FILES = 4
MOST_FIELDS = 256
MOST_FIELD = 1 << 16
"""Files and fields of a form, and bytes of a field that is no file."""


class _JsonRequest(Request):
    _whole: bytes | None = None
    _spooled: "tempfile.SpooledTemporaryFile[bytes] | None" = None
    _size = 0

    @override
    async def body(self) -> bytes:
        """Read the body; return only its beginning, as what is returned is kept until the end."""
        if self._whole is None:
            self._whole = b""
            self._spooled = tempfile.SpooledTemporaryFile(SPOOLED)  # noqa: SIM115 - read later
            async for part in self.stream():
                self._whole = self._whole or part[:1]
                self._size += len(part)
                if self._size > SPOOLED:
                    await run_sync(self._spooled.write, part)
                else:
                    self._spooled.write(part)
        return self._whole

    @override
    async def json(self) -> Any:
        await self.body()
        try:
            return self._read() if self._size <= _SMALL else await run_sync(self._read)
        except ValueError as error:
            raise ApiError(400, f"the body {error}") from None

    def forget(self) -> None:
        """Let go of the body."""
        if self._spooled is not None:
            self._spooled.close()

    def _read(self) -> Any:
        assert self._spooled is not None
        self._spooled.seek(0)
        content = self._spooled.read()
        self.forget()
        return parsed(content)


class _FormRequest(Request):
    @override
    def form(self, **_: Any) -> Any:
        return super().form(max_files=MOST_FILES, max_fields=MOST_FIELDS, max_part_size=MOST_FIELD)


class JsonRoute(APIRoute):
    """A route that reads its body with `kvcast.server.documents`."""

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            read = _JsonRequest(request.scope, request.receive)
            try:
                return await handle(read)
            finally:
                read.forget()

        return handle_json


class FormRoute(APIRoute):
    """A route that takes a form with a file."""

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_form(request: Request) -> Response:
            return await handle(_FormRequest(request.scope, request.receive))

        return handle_form
