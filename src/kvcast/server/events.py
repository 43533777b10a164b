"""Server-sent events of a job: the first is awaited, so immediate failures have a status.

Source of the format: WHATWG HTML, 9.2. Knows no endpoint.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from kvcast.engine import Job
from kvcast.server.bodies import encoded
from kvcast.server.calls import Calls
from kvcast.server.errors import ApiError, api_error

DONE = "data: [DONE]\n\n"


def event(document: Any, name: str | None = None) -> str:
    """Return one event, of this name if it has one."""
    data = encoded(document)
    return f"data: {data}\n\n" if name is None else f"event: {name}\ndata: {data}\n\n"


def _may_be_long(item: Any) -> bool:
    """Tell whether events may repeat the log-probabilities of a text: those at its end."""
    ends = getattr(item, "finish_reason", None) is not None
    return ends and item.logprobs is not None


class Events(StreamingResponse):
    """Events as they come; `ended` is called however it ends, also when the client leaves."""

    def __init__(self, events: AsyncIterator[str], ended: Callable[[], None]) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._ended = ended

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def streamed(
    calls: Calls,
    request: Request,
    job: Job[Any, Any],
    of_item: Callable[[Any], Sequence[str]],
    end: Callable[[Any, int], Sequence[str]],
    of_error: Callable[[ApiError], str] = lambda failure: event(failure.document),
) -> Events:
    """Return the stream of a job's events, once the first has arrived.

    Args:
        calls: hands requests to engines.
        request: whose body was read.
        job: just begun.
        of_item: the events of an item.
        end: the events of the result, and of how many of its prompt's tokens were found.
        of_error: the event of a failure.

    Raises the job's errors before its first item, and GoneError.

    """
    first = await calls.unless_gone(request, job.arrived(), job.cancel)

    async def events() -> AsyncIterator[str]:
        items, is_long = first, False
        try:
            while items:
                for item in items:
                    is_long = _may_be_long(item)
                    for text in await calls.beside(partial(of_item, item), is_long):
                        yield text
                    # Nothing above waits while items are there: others have their turn here.
                    await asyncio.sleep(0)
                items = await job.arrived()
            result = await job
            for text in await calls.beside(lambda: end(result, job.cached_tokens), is_long):
                yield text
        except Exception as error:
            failure = api_error(error)
            request.state.error = failure.code or failure.kind
            yield of_error(failure)

    return Events(events(), job.cancel)
