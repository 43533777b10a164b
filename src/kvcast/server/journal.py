"""The log: one line a request, with prompts and answers only with --log-content.

Knows no endpoint.
"""

import json
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import HTTPConnection
from typing_extensions import override

_LOG = logging.getLogger("kvcast.server")


class RequestLog:
    """Writes a line for each request."""

    def __init__(self, *, with_content: bool) -> None:
        self._with_content = with_content

    def content(self, request: HTTPConnection, **content: Any) -> None:
        """Remember a prompt or an answer, if content is logged."""
        if self._with_content:
            known = request.scope["state"].get("content", {})
            request.scope["state"]["content"] = known | content

    def notices(self, request: HTTPConnection, notices: Sequence[str]) -> None:
        """Remember notices about a recording; they tell nothing of its content."""
        request.scope["state"]["notices"] = list(notices)

    def write(self, scope: Any, *, status: int, began: float, kind: str | None) -> None:
        """Log a request that is over.

        Args:
            scope: of ASGI.
            status: of the answer; 499 for a client that left before it.
            began: by `time.perf_counter`.
            kind: OpenAI's type or code of the error.

        """
        client = scope.get("client") or ("-", 0)
        fields = {
            "client": client[0],
            "method": scope.get("method", "WS"),
            "path": scope["path"],
            "status": status,
            "seconds": round(time.perf_counter() - began, 4),
            "request": scope["state"].get("request_id"),
            "error": kind,
            "notices": scope["state"].get("notices") or None,
            "ignored": scope["state"].get("ignored"),
            "content": scope["state"].get("content"),
        }
        known = {name: value for name, value in fields.items() if value is not None}
        _LOG.info("request", extra={"fields": known})


class LogFormatter(logging.Formatter):
    """Formats records as lines of text, or as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    @override
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = getattr(record, "fields", None)
        message = record.getMessage()
        if self._as_json:
            document = {"time": when, "level": record.levelname.lower(), "message": message}
            if record.exc_info:
                document["traceback"] = self.formatException(record.exc_info)
            return json.dumps(document | (fields or {}), ensure_ascii=False)
        if fields is not None:
            message = " ".join(f"{name}={_plain(value)}" for name, value in fields.items())
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return f"{when} {record.levelname.lower()} {message}{trace}"


def _plain(value: object) -> str:
    """Return a value without characters that would break a line or a field."""
    text = str(value)
    simple = text.isprintable() and " " not in text and '"' not in text
    return text if simple else json.dumps(value)


def note(message: str) -> None:
    """Log a message that is no request."""
    _LOG.info(message)


def install(*, as_json: bool) -> None:
    """Send the log to standard error, with messages of libraries and warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(as_json=as_json))
    root = logging.getLogger()
    before = [old for old in root.handlers if isinstance(old.formatter, LogFormatter)]
    for old in before:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.captureWarnings(True)
    for name in ("kvcast", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
        logger.setLevel(logging.INFO)
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.setLevel(logging.WARNING)
    # To uvicorn a WebSocket that is answered with a status and a body is a mistake of ours.
    uvicorn.addFilter(lambda record: "without completing handshake" not in record.getMessage())
