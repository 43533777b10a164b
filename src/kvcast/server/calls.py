"""From a request to an engine's job, and back: work in threads, clients that leave, deadlines.

Every endpoint that decodes goes through here. Knows no endpoint and no protocol.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request

from kvcast.engine import Engine, Job
from kvcast.server.errors import GoneError

T = TypeVar("T")

_PROMPTS = 32
"""Requests that are prepared at once: most wait, for a template's or a grammar's process."""
_RECORDINGS = 2
"""Recordings that are read at once; each takes a processor."""


class Calls:
    """Hands requests to engines."""

    def __init__(self, timeout: float) -> None:
        """Take the seconds that a request may take."""
        self._timeout = timeout
        self._prompts = anyio.CapacityLimiter(_PROMPTS)
        self._recordings = anyio.CapacityLimiter(_RECORDINGS)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Do short work, or what waits for a process, beside the event loop."""
        return await run_sync(function, limiter=self._prompts)

    async def read(self, function: Callable[[], T]) -> T:
        """Read a recording beside the event loop."""
        return await run_sync(function, limiter=self._recordings)

    async def begin(
        self, engine: Engine, given: Callable[[], Any], options: dict[str, Any]
    ) -> Job[Any, Any]:
        """Submit what `given` returns; raises as `Engine.submit`."""
        return await self.in_thread(
            lambda: engine.submit(given(), deadline=self._timeout, **options)
        )

    async def result(self, request: Request, job: Job[Any, T]) -> T:
        """Wait for a job's result; raises GoneError, having cancelled it, if the client leaves."""

        async def wait() -> T:
            return await job

        return await self.unless_gone(request, wait(), job.cancel)

    async def all_begun(
        self, begins: Sequence[Callable[[], Awaitable[Job[Any, T]]]]
    ) -> list[Job[Any, T]]:
        """Begin several jobs of one request, or none if one is refused."""
        jobs: list[Job[Any, T]] = []
        try:
            for begin in begins:
                jobs.append(await begin())
        except BaseException:
            cancel(jobs)
            raise
        return jobs

    async def results(self, request: Request, jobs: Sequence[Job[Any, T]]) -> list[T]:
        """Wait for the results of several jobs; as `result`, and one's error ends the others."""

        async def wait() -> list[T]:
            return [await job for job in jobs]

        try:
            return await self.unless_gone(request, wait())
        finally:
            cancel(jobs)

    async def unless_gone(
        self, request: Request, work: Awaitable[T], give_up: Callable[[], None] = lambda: None
    ) -> T:
        """Wait for work; raises GoneError if the client, whose body was read, leaves before."""
        working = asyncio.ensure_future(work)
        watching = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise GoneError
        finally:
            if not working.done():
                give_up()
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def cancel(jobs: Iterable[Job[Any, Any]]) -> None:
    """Give up jobs; nothing happens to those that are over."""
    for job in jobs:
        job.cancel()
