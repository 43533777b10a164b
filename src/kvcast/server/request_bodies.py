"""Bodies of requests and answers: forms, and JSON parsed within bounds and serialized in pieces.

Parsing and serializing hold the GIL, so documents that would take too long are refused unparsed,
and long ones are processed in parts. A body of more than a megabyte is kept in a file.
"""

import json
import json.decoder
import math
import re
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NoReturn, TypeAlias

from anyio.to_thread import run_sync
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from kvcast.server.errors import ApiError

_SMALL = 1 << 16  # bytes that are parsed at once; more are parsed off the event loop


SPOOLED = 1 << 20  # bytes of a body in memory; a larger one is in a file until it is read

MOST_FILES = 4
MOST_FIELDS = 256
MOST_FIELD = 1 << 16  # bytes of a field that is no file


class _JsonRequest(Request):
    _whole: bytes | None = None
    _spooled: "tempfile.SpooledTemporaryFile[bytes] | None" = None
    _size = 0

    @override
    async def body(self) -> bytes:
        """Read the body; return only its beginning, as FastAPI keeps the result to the end."""
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
    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_form(request: Request) -> Response:
            return await handle(_FormRequest(request.scope, request.receive))

        return handle_form


MOST_VALUES = 1 << 20  # commas of a document, at most: about the values in it
MOST_NESTED = 1 << 18  # lists and objects of a document, at most, as their brackets are counted
MOST_NAMES = 1 << 17  # names in its objects, at most, as colons are counted
DEEPEST = 200  # nesting of lists and objects that answers can still serialize

_MOST = {"values": MOST_VALUES, "lists and objects": MOST_NESTED, "names": MOST_NAMES}

_LONG = 1 << 19  # characters; a longer document is not read in one call
_LEVELS = 2  # of a longer document that are read apart

_Scan: TypeAlias = Callable[[str, int], Any]

_in_python: Any = json.decoder

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parsed(content: bytes | str) -> Any:
    """Return a document; raises ValueError with the reason.

    Lone surrogates, NaN and infinity are not JSON, and no response could repeat them.
    """
    text = _decoded(content) if isinstance(content, bytes) else content
    opened = text.count("[") + text.count("{")
    counts = {"values": text.count(","), "lists and objects": opened, "names": text.count(":")}
    for label, most in _MOST.items():
        if counts[label] > most:
            raise ValueError(f"has more than {most:,} {label}")
    try:
        document = _decoder(len(text) > _LONG).decode(text)
    except _NumberError:
        raise ValueError("has a number that is not finite") from None
    except RecursionError:
        raise ValueError(f"is nested deeper than {DEEPEST} levels") from None
    except ValueError:
        raise ValueError("is not JSON") from None
    if opened > DEEPEST and _is_deep(document):
        raise ValueError(f"is nested deeper than {DEEPEST} levels")
    if _SURROGATE.search(text) and not _is_text(document):
        raise ValueError("has half of a surrogate pair, which is no character")
    return document


def _decoder(outer_levels_apart: bool) -> json.JSONDecoder:
    """Return a decoder; one call reads either the whole document or a part of a part of it."""
    decoder: Any = json.JSONDecoder(parse_constant=_refuse_number, parse_float=_finite)
    if outer_levels_apart:
        for _ in range(_LEVELS):
            decoder.scan_once = _apart(decoder.scan_once)
    made: json.JSONDecoder = decoder
    return made


def _apart(scan_parts: _Scan) -> _Scan:
    """Return a function that reads a value's parts one by one, as the library does in Python."""

    def scan(text: str, at: int) -> Any:
        match text[at : at + 1]:
            case "{":
                return _in_python.JSONObject((text, at + 1), True, scan_parts, None, None, {})
            case "[":
                return _in_python.JSONArray((text, at + 1), scan_parts)
        return scan_parts(text, at)

    return scan


class _NumberError(Exception):
    """A number that is not finite."""


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not JSON in UTF-8") from None


def _refuse_number(_: str) -> NoReturn:
    raise _NumberError


def _finite(spelled: str) -> float:
    number = float(spelled)
    return number if math.isfinite(number) else _refuse_number(spelled)


def _is_deep(document: Any) -> bool:
    level = [document]
    for _ in range(DEEPEST + 1):
        inner = (
            container.values() if isinstance(container, dict) else container for container in level
        )
        level = [
            child for container in inner for child in container if isinstance(child, (list, dict))
        ]
        if not level:
            return False
    return True


def _is_text(document: Any) -> bool:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


_AT_ONCE = 500  # about how many values are encoded in one call
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encoded(document: Any) -> str:
    """Return a document as JSON; raises ValueError for a number that is not finite."""
    return "".join(pieces(document))


def pieces(document: Any) -> Iterator[str]:
    if count_of(document) <= _AT_ONCE:
        yield _encode(document)
    elif isinstance(document, dict):
        for place, (name, value) in enumerate(document.items()):
            yield f"{',' if place else '{'}{_encode(name)}:"
            yield from pieces(value)
        yield "}"
    else:
        yield "["
        for place, some in enumerate(_together(document)):
            if place:
                yield ","
            if len(some) == 1:
                yield from pieces(some[0])
            else:
                yield _encode(some)[1:-1]
        yield "]"


def _together(values: list[Any]) -> Iterator[list[Any]]:
    some: list[Any] = []
    taken = 0
    for value in values:
        count = count_of(value)
        if some and taken + count > _AT_ONCE:
            yield some
            some, taken = [], 0
        some.append(value)
        taken += count
    yield some


def count_of(document: Any, most: int = _AT_ONCE) -> int:
    """Return how many values a document has, or more than `most` once that is certain."""
    if not isinstance(document, (dict, list)):  # a tuple is short
        return 1
    count = 1
    for value in document.values() if isinstance(document, dict) else document:
        count += count_of(value, most - count)
        if count > most:
            break
    return count
