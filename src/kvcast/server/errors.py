"""Errors of a request, as OpenAI's error objects and status codes.

Answers reveal nothing of the machine: no path, no traceback.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Any

from typing_extensions import override

from kvcast.engine import ClosedError, DeadlineError, QueueFullError
from kvcast.errors import InputMissingError, InputOutputError, UsageError
from kvcast.text.grammar_compiler import FullError

RETRY_SECONDS = 1  # when a client that was refused for load should try again
_LOG = logging.getLogger(__name__)


class ApiError(Exception):
    """A request that is refused, with OpenAI's code, and the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param

    @property
    def document(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> Mapping[str, str]:
        if self.status in {429, 503}:
            return {"retry-after": str(RETRY_SECONDS)}
        return {"www-authenticate": "Bearer"} if self.status == 401 else {}

    @override
    def __str__(self) -> str:
        return self.message


MESSAGES = "/v1/messages"  # paths of Anthropic's interface, whose errors have another form

_MESSAGES_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def messages_document(error: ApiError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    about = {"type": _MESSAGES_KINDS.get(error.status, kind), "message": error.message}
    return {"type": "error", "error": about}


def document_for(path: str, error: ApiError) -> dict[str, Any]:
    return messages_document(error) if path.startswith(MESSAGES) else error.document


class GoneError(Exception):
    """The client has left before its answer."""


def busy(message: str) -> ApiError:
    return ApiError(429, message, kind="rate_limit_error", code="rate_limit_exceeded")


def _refused(error: Exception) -> ApiError:
    return ApiError(400, str(error))


def _unavailable(error: Exception) -> ApiError:
    return ApiError(503, str(error), kind="server_error", code="unavailable")


def _late(error: Exception) -> ApiError:
    return ApiError(504, str(error), kind="server_error", code="timeout")


_KINDS: Mapping[type[BaseException], Any] = {
    UsageError: _refused,
    InputMissingError: _refused,
    InputOutputError: _refused,
    FullError: lambda error: busy(str(error)),
    QueueFullError: lambda error: busy(str(error)),
    DeadlineError: _late,
    ClosedError: _unavailable,
    CancelledError: lambda _: _unavailable(ClosedError("the server stops: the request was ended")),
}


def _kinds(error: BaseException) -> Iterator[Any]:
    return (_KINDS[kind] for kind in type(error).__mro__ if kind in _KINDS)


def api_error(error: BaseException) -> ApiError:
    """Return an error as clients get it; errors of the server are logged."""
    if isinstance(error, ApiError):
        return error
    made = next(_kinds(error), None)
    if made is not None:
        answer: ApiError = made(error)
        return answer
    _LOG.error("a request failed", exc_info=error)
    return ApiError(
        500, "the server failed; its log says why", kind="server_error", code="internal_error"
    )


MOST_HEADERS = 64 << 10  # bytes of a request's headers, at most


MOST_URL = 8 << 10  # bytes of its path and query, at most


def size_of(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the size of headers on the wire, in bytes."""
    return sum(len(name) + len(value) + len(b": \r\n") for name, value in headers)


def url_too_long() -> ApiError:
    return ApiError(414, f"the URL is longer than {MOST_URL >> 10} KiB", code="url_too_long")


def headers_too_large() -> ApiError:
    return ApiError(
        431, f"the headers are larger than {MOST_HEADERS >> 10} KiB", code="headers_too_large"
    )
