"""Middleware before every route: keys, sizes, slow uploads, the drain, the log and the counts.

Plain ASGI, so that bodies and streams pass as they come.
"""

import asyncio
import gc
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import anyio
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from kvcast.machine.resources import give_back
from kvcast.server.dispatch import State
from kvcast.server.errors import (
    MOST_HEADERS,
    MOST_URL,
    ApiError,
    GoneError,
    api_error,
    busy,
    document_for,
    headers_too_large,
    size_of,
    url_too_long,
)
from kvcast.server.params import ServeParams

_OPEN = ("/", "/page", "/health", "/ready")  # without a key

STATUS = frozenset({"/health", "/ready", "/metrics"})

UPLOADS = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations"})

_KEY = "openai-insecure-api-key."

_ANSWERS = {"websocket.accept": 101, "websocket.close": 403, "websocket.http.response.start": 500}
"""Status of the answer to a WebSocket, unless the message has one."""

_WORTH_FREEING = 1 << 20  # bytes that are worth giving back
_PAUSE = 0.5  # seconds before they are given back
SILENCE = 30.0  # seconds between two parts of a body, which may take as long as a request


@dataclass
class _RunningRequest:
    began: float = field(default_factory=time.perf_counter)
    status: int | None = None


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        state: State,
        draining: Callable[[], bool],
        *,
        answers_to_the_end: frozenset[str] = STATUS,
    ) -> None:
        self._app = app
        self._state = state
        self._draining = draining
        self._answers_to_the_end = answers_to_the_end
        self._access = Access(state.limits)
        self._bodies = Bodies(state.limits.max_uploads_bytes)
        self._watching: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of HTTP or of WebSocket; a server's life is passed straight on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._state.metrics.watch_loop())
        identity = f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = identity
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
            return
        scope["state"]["client"] = self._access.client(scope)
        running = _RunningRequest()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                running.status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", identity.encode()),
                    *_ignored(scope),
                    # The rest of a body that is refused is not read.
                    *([] if body.whole else [(b"connection", b"close")]),
                ]
            body.answered += len(message.get("body", b""))
            await send(message)

        body = _Body(receive, self._most(scope), self._state.limits.timeout, scope, self._bodies)
        try:
            _check_head(scope)
            body.check_length()
            self._check(scope)
            await self._app(scope, body.receive, sending)
        except GoneError:
            running.status = 499
        except Exception as error:
            if "error" in scope["state"]:
                return  # it was answered and logged
            if running.status is not None:
                raise  # too late for another answer
            await self._refuse(error, scope, receive, sending)
        finally:
            body.release()
            self._length(scope, running)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        running = _RunningRequest()

        async def sending(message: Message) -> None:
            if running.status is None and message["type"] in _ANSWERS:
                running.status = message.get("status", _ANSWERS[message["type"]])
            await send(message)

        try:
            self._check_socket(scope)
        except ApiError as error:
            scope["state"]["error"] = error.code or error.kind
            answer = JSONResponse(error.document, error.status, dict(error.headers))
            await WebSocket(scope, receive, sending).send_denial_response(answer)
        else:
            await self._app(scope, receive, sending)
        finally:
            self._length(scope, running)

    def _check_socket(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        _check_head(scope)
        self._access.check_host(headers)
        self._access.check_origin(headers)
        if self._draining():
            raise stopping()
        # A browser's WebSocket cannot set headers; OpenAI's takes the key like this.
        offered = [
            subprotocol.removeprefix(_KEY)
            for subprotocol in scope["subprotocols"]
            if subprotocol.startswith(_KEY)
        ]
        self._access.check_key(next(iter(offered), _bearer(headers)))

    def _check(self, scope: Scope) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        self._access.check_host(headers)
        if self._draining() and path not in self._answers_to_the_end:
            raise stopping()
        is_open = path in _OPEN or path.startswith("/page/")
        if not is_open and scope["method"] != "OPTIONS":
            self._access.check_key(_bearer(headers))

    def _most(self, scope: Scope) -> int:
        limits = self._state.limits
        return (limits.max_upload if scope["path"] in UPLOADS else limits.max_body) << 20

    async def _refuse(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        failure = api_error(error)
        scope["state"]["error"] = failure.code or failure.kind
        document = document_for(scope["path"], failure)
        await JSONResponse(document, failure.status, dict(failure.headers))(scope, receive, send)

    def _length(self, scope: Scope, running: _RunningRequest) -> None:
        status, kind = running.status or 499, scope["state"].get("error")
        route = getattr(scope.get("route"), "path", None)
        method = scope.get("method", "WS")
        self._state.metrics.count(method, route or "other", status, kind)
        if scope["path"] not in STATUS | {"/v1/engine"}:
            self._state.journal.write(scope, status=status, began=running.began, kind=kind)


class Access:
    def __init__(self, params: ServeParams) -> None:
        self._keys = [_digest(key) for key in params.keys]
        self._names = frozenset(params.host_names) if _is_local(params.host) else None
        self._origins = frozenset(params.origins)

    def check_key(self, given: str) -> None:
        """Raise ApiError for a wrong key, in constant time."""
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, key) for key in self._keys]
        if matches and not any(matches):
            raise ApiError(
                401,
                "the API key is missing or wrong: send it as a bearer token",
                code="invalid_api_key",
            )

    def client(self, scope: Scope) -> Hashable:
        """Return the request's key where keys are needed, or else its address."""
        if self._keys:
            return _digest(_bearer(Headers(scope=scope)))
        return (scope.get("client") or ("", 0))[0]

    def check_host(self, headers: Headers) -> None:
        """Raise ApiError for a foreign host name at a local address.

        A foreign page's host name may resolve to this address (DNS rebinding): it would be
        same-origin.
        """
        if self._names is None or (host := headers.get("host")) is None:
            return
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name.lower() not in self._names and not _is_address(name.strip("[]")):
            raise ApiError(
                421, "this server does not answer to that host name; it takes --allow-host"
            )

    def check_origin(self, headers: Headers) -> None:
        """Raise ApiError for a page from elsewhere: browsers check no origin of a WebSocket."""
        origin = headers.get("origin")
        if origin is None or self._origins & {origin, "*"}:
            return
        if origin.partition("://")[2] != headers.get("host"):
            raise ApiError(403, "pages of that origin may not connect; it takes --cors-origin")


def stopping() -> ApiError:
    return ApiError(503, "the server stops", kind="server_error", code="unavailable")


def _bearer(headers: Headers) -> str:
    """Return a request's bearer token, or the key as Anthropic's clients send it; else nothing."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _is_local(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _ignored(scope: Scope) -> list[tuple[bytes, bytes]]:
    names = scope["state"].get("ignored")
    return [(b"x-ignored-fields", names.encode())] if names else []


class Bodies:
    """The bytes of all bodies, from when they arrive until their requests are over."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._freed = 0
        self._giving: asyncio.TimerHandle | None = None

    def freed(self, size: int) -> None:
        """Record that a request is over, with the size of its body and response in bytes.

        malloc keeps freed memory. It is trimmed after many bytes, and not often.
        """
        self._freed += size
        if self._freed >= _WORTH_FREEING and self._giving is None:
            loop = asyncio.get_running_loop()
            self._giving = loop.call_later(_PAUSE, loop.run_in_executor, None, self._give_back)

    def _give_back(self) -> None:
        self._freed, self._giving = 0, None
        gc.collect()  # an error may be in a reference cycle with large objects
        give_back()

    def take(self, size: int) -> None:
        """Count more bytes, or fewer; raises ApiError for too many."""
        self._size += size
        if size > 0 and self._size > self._most:
            raise busy("too many bodies are being sent: try again later")


def _check_head(scope: Scope) -> None:
    """Raise ApiError for a head that is too large; one that is no end yet is refused before."""
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MOST_URL:
        raise url_too_long()
    if size_of(scope["headers"]) > MOST_HEADERS:
        raise headers_too_large()


class _Body:
    """A body that must not be too large, must keep coming, and must end."""

    def __init__(
        self, receive: Receive, most: int, seconds: float, scope: Scope, bodies: "Bodies"
    ) -> None:
        headers = Headers(scope=scope)
        self._bodies = bodies
        self._receive = receive
        self._most = most
        self._seconds = seconds
        self._began = time.monotonic()
        self._state = scope["state"]
        self._size = self.answered = 0
        self._declared = (
            int(declared) if (declared := headers.get("content-length", "0")).isdecimal() else 0
        )
        self.whole = not self._declared and "transfer-encoding" not in headers

    def check_length(self) -> None:
        if self._declared > self._most:
            raise self._too_large()

    async def receive(self) -> Message:
        if self.whole:
            return await self._receive()
        left = self._began + self._seconds - time.monotonic()
        try:
            with anyio.fail_after(max(0, min(SILENCE, left))):
                message = await self._receive()
        except TimeoutError:
            slow = f"the body did not come within {self._seconds:g} seconds"
            silent = f"nothing of the body came for {SILENCE:g} seconds"
            raise ApiError(408, slow if left < SILENCE else silent, code="timeout") from None
        if message["type"] == "http.disconnect":
            raise GoneError
        part = len(message.get("body", b""))
        self._size += part
        self._bodies.take(part)
        if self._size > self._most:
            raise self._too_large()
        self.whole = not message.get("more_body", False)
        if self.whole:
            self._state["arrived"] = time.monotonic()
        return message

    def release(self) -> None:
        self._bodies.take(-self._size)
        self._bodies.freed(self._size + self.answered)
        self._size = 0

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"the body is larger than {self._most >> 20} MiB", code="body_too_large"
        )
