"""Routes whose bodies are JSON: FastAPI's, but for how a body is read. Knows no endpoint."""

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


class _JsonRequest(Request):
    @override
    async def json(self) -> Any:
        body = await self.body()
        try:
            return parsed(body) if len(body) <= _SMALL else await run_sync(parsed, body)
        except ValueError as error:
            raise ApiError(400, f"the body {error}") from None


class JsonRoute(APIRoute):
    """A route that reads its body with `kvcast.server.documents`."""

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json
