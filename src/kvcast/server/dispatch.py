"""From requests to jobs of an engine: threads, deadlines, clients that leave; shared state."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from kvcast.engine import DeadlineError, Engine, Job, queue_full
from kvcast.server.errors import ApiError, GoneError
from kvcast.server.metrics import Metrics, RequestLog, several
from kvcast.server.model_registry import Models, Served
from kvcast.server.params import ServeParams
from kvcast.server.request_bodies import encoded
from kvcast.text.grammar_compiler import TRIALS
from kvcast.text.params import PromptParams
from kvcast.text.texts import TextGeneration

T = TypeVar("T")

Check = Callable[[], None]  # raises GoneError once no client waits for the work
_PROMPTS = 32  # requests prepared at once: most wait for a template's or grammar's process
_GRAMMARS = frozenset({"grammar", "json_schema", "regex", "lark"})
_COMPUTING = 2  # long answers made at once off the event loop: more would delay it
_VALUES = 500  # values of an answer that are made where the event loop runs
_RECORDINGS = 2  # recordings that are read at once; each takes a processor


class Calls:
    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        # Pools: queued work can be cancelled, and a busy thread stays counted.
        self._prompts = ThreadPoolExecutor(_PROMPTS, "kvcast-prompts")
        self._computing = ThreadPoolExecutor(_COMPUTING, "kvcast-answers")
        self._recordings = ThreadPoolExecutor(_RECORDINGS, "kvcast-recordings")

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run short work, or a wait for a process, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._prompts, function)

    async def off_loop(self, function: Callable[[], T], is_long: bool = True) -> T:
        """Run a function that may compute for long off the event loop, or here if it does not.

        It must consist of short calls, as each may hold the interpreter's lock.
        """
        if not is_long:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._computing, function)

    async def answer(self, make: Callable[[], Any], values: int) -> Response:
        """Return a document as an answer, made off the event loop if it has many values."""
        content = await self.off_loop(lambda: encoded(make()).encode(), values > _VALUES)
        return Response(content, media_type="application/json")

    async def read(
        self, request: Request, function: Callable[[Check], T], discard: Callable[[T], None]
    ) -> T:
        """Read a recording off the event loop; `discard` takes one whose client has left.

        `function` calls its argument from time to time. Raises as `begin`.
        """
        return await self._attended(request, self._recordings, function, discard)

    async def prepare(self, request: Request, function: Callable[[Check], T]) -> T:
        """Prepare inputs off the event loop, as `read`; raises as `begin`."""
        return await self._attended(request, self._computing, function, lambda _: None)

    async def begin(
        self, request: Request, engine: Engine, given: Callable[[], Any], options: dict[str, Any]
    ) -> Job[Any, Any]:
        """Submit a prompt; raises the errors of `Engine.submit`, DeadlineError and GoneError."""
        check_room(engine)

        def work(check: Check) -> Job[Any, Any]:
            made = given()
            check()
            client = request.scope["state"].get("client")
            return engine.submit(made, deadline=self.left(request), client=client, **options)

        return await self._attended(request, self._prompts, work, Job.cancel)

    async def try_grammar(self, request: Request, options: dict[str, Any]) -> None:
        """Wait until the grammar of a text is compiled in the sandbox, or refused.

        It waits in a separate queue, and blocks no thread that others could use. Raises UsageError,
        FullError, DeadlineError and GoneError.
        """
        if not options.keys() & _GRAMMARS:
            return
        grammar = await self.in_thread(lambda: PromptParams(**options).constraint)
        if grammar is not None and grammar.kind != "json_object":
            outcome = asyncio.wrap_future(TRIALS.outcome(grammar))
            await self.unless_gone(request, asyncio.shield(outcome), seconds=self.left(request))

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
        async def wait() -> list[T]:
            return [await job for job in jobs]

        try:
            return await self.unless_gone(request, wait())
        finally:
            cancel(jobs)

    async def unless_gone(
        self,
        request: Request,
        work: Awaitable[T],
        give_up: Callable[[], None] = lambda: None,
        seconds: float | None = None,
    ) -> T:
        """Wait for work; raises GoneError if the client leaves, DeadlineError after `seconds`."""
        working = asyncio.ensure_future(work)
        watching = asyncio.ensure_future(gone(request.receive))
        try:
            done, _ = await asyncio.wait(
                {working, watching}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if working.done():
                return working.result()
            raise GoneError if done else late()
        finally:
            if not working.done():
                give_up()
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def _attended(
        self,
        request: Request,
        pool: ThreadPoolExecutor,
        work: Callable[[Check], T],
        discard: Callable[[T], None],
    ) -> T:
        """Do work in a thread while the client waits for it, and no longer than it may take."""
        over = threading.Event()

        def check() -> None:
            if over.is_set():
                raise GoneError

        seconds = self.left(request)
        future = pool.submit(work, check)

        def give_up() -> None:
            over.set()
            future.cancel()
            future.add_done_callback(partial(_discarded, discard))

        return await self.unless_gone(request, asyncio.wrap_future(future), give_up, seconds)

    def left(self, request: Request) -> float:
        """Return the seconds that a request may still take; raises DeadlineError for none."""
        now = time.monotonic()
        arrived: float = request.scope["state"].get("arrived", now)
        if (left := arrived + self._timeout - now) <= 0:
            raise late()
        return left


def check_room(engine: Engine, count: int = 1) -> None:
    """Raise ApiError for more jobs than an engine ever takes, or QueueFullError if it is full."""
    status = engine.status()
    most = status.queue + status.rows
    if count > most:
        raise ApiError(
            400,
            f"the request has {count} texts to be answered, and this server takes {most} at once: "
            "send fewer in each request",
        )
    if status.running + status.waiting + count > most:
        raise queue_full(status.waiting)


def cancel(jobs: Iterable[Job[Any, Any]]) -> None:
    for job in jobs:
        job.cancel()


def late() -> DeadlineError:
    return DeadlineError("the request was not done by its deadline")


async def gone(receive: Receive) -> None:
    """Return once a client has left whose body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _discarded(discard: Callable[[T], None], done: "Future[T]") -> None:
    if not done.cancelled() and done.exception() is None:
        discard(done.result())


_MOST_NAMES = 20  # of ignored fields that are reported
_LONGEST_NAME = 64  # in characters


@dataclass(frozen=True, kw_only=True)
class State:
    """Models, engines, limits, metrics and log of a server."""

    models: Models
    limits: ServeParams
    calls: Calls
    metrics: Metrics
    journal: RequestLog

    async def generate(
        self, request: Request, served: Served, prompt: Callable[[], Any], options: dict[str, Any]
    ) -> Job[Any, Any]:
        await self.calls.try_grammar(request, options)
        job = await self.calls.begin(request, served.engine, prompt, options)
        self.metrics.watch(served.name, job)
        return job

    async def generate_each(
        self,
        request: Request,
        served: Served,
        prompts: Sequence[Callable[[], Any]],
        options: dict[str, Any],
    ) -> list[Job[Any, Any]]:
        """Begin the texts of several prompts, or none if one is refused; as `generate`."""
        begins = [partial(self.generate, request, served, prompt, options) for prompt in prompts]
        return await self.calls.all_begun(begins)

    async def enter(self, request: Request, body: Any) -> None:
        """Record the model and fields without effect; load the model if it is not in memory."""
        request.scope["state"]["model"] = body.model[:_LONGEST_NAME]
        self._note_ignored(request, body)
        await self.load(body.model)

    async def load(self, name: str) -> None:
        if self.models.is_unloaded(name):
            await self.calls.in_thread(lambda: self.models.load(name))

    def _note_ignored(self, request: Request, body: BaseModel) -> None:
        """Record a body's fields that have no effect, for the answer's header and the log."""
        names = list(body.model_extra or ())
        shown = [quote(name[:_LONGEST_NAME], safe="[]") for name in names[:_MOST_NAMES]]
        if len(names) > _MOST_NAMES:
            shown.append("...")
        request.scope["state"]["ignored"] = ", ".join(shown)

    def check_texts(self, served: Served, count: int | None, name: str = "n") -> None:
        """Raise ApiError for more texts of a prompt than one request may have."""
        most = self.limits.max_n or served.engine.status().rows
        if count is not None and count > most:
            raise ApiError(
                400,
                f"{name} is {count}, and this server takes {most} at most: send several requests",
                param=name,
            )

    def generated_texts(self, request: Request, result: Any) -> list[TextGeneration]:
        texts = several(result)
        self.journal.texts(request, texts)
        self.journal.content(request, answer=[text.text for text in texts])
        return texts
