"""Jobs: the consumers' ends of requests, with a stream of items, a result, and a way to cancel.

The engine's thread puts items in; one consumer, a thread or asyncio task, takes them out.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from threading import Condition
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import override

from kvcast.errors import KvcastError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from asyncio import Future as AsyncFuture

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFullError(KvcastError):
    """The engine's queue is full."""


def queue_full(waiting: int) -> QueueFullError:
    return QueueFullError(
        f"{waiting} requests wait already: try again later, or use a longer queue"
    )


class DeadlineError(KvcastError):
    """A request was not done by its deadline."""


class ClosedError(KvcastError):
    """The engine takes no more requests."""


class Job(Generic[Item, Result]):
    """A submitted request, as its consumer holds it.

    One consumer takes the items; any number may wait for the result.

    Attributes:
        cached_tokens: tokens of the prompt found in the prefix cache; 0 until prefill.
        language: of a recording; None until it is known.
        duration: of a recording, in seconds; None until it is opened.
        first_token: of a recording, seconds from its submission; None until then.

    """

    def __init__(self, cancel: "Callable[[Job[Any, Any]], None]") -> None:
        """Begin; `cancel` asks the engine to end the request."""
        self.cached_tokens = 0
        self.language: str | None = None
        self.duration: float | None = None
        self.first_token: float | None = None
        self._cancel = cancel
        self._items: deque[Item] = deque()
        self._changed = Condition()
        self._future: Future[Result] = Future()
        self._waiter: tuple[AbstractEventLoop, AsyncFuture[None]] | None = None

    def cancel(self) -> None:
        """Cancel; rows are free from the next step on. Has no effect on a finished job."""
        if not self._future.done():
            self._cancel(self)

    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result, at most `timeout` seconds.

        Raises:
            TimeoutError: the result is not there by then.
            CancelledError: the job was cancelled.
            KvcastError: the error of the request.

        """
        return self._future.result(timeout)

    def when_done(self, function: Callable[[], None]) -> None:
        """Call a function when it is over, on the engine's thread; at once if it already is."""
        self._future.add_done_callback(lambda _: function())

    @override
    def __repr__(self) -> str:
        if not self.done():
            return "<Job: not done>"
        try:
            return f"<Job: {self.result()!r}>"
        except BaseException as error:
            return f"<Job: {error!r}>"

    def __iter__(self) -> Iterator[Item]:
        """Yield items as they come; raises as `result`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._future.done())
            if not self._items:
                break
            yield self._items.popleft()
        self._future.result()

    async def arrived(self) -> list[Item]:
        """Wait for the first item; return all that arrived, none when over; raises as `result`."""
        while True:
            # Checked before items are taken, since the last item is put in before the end.
            over = self._future.done()
            items = list[Item]()
            while self._items:
                items.append(self._items.popleft())
            if items:
                return items
            if over:
                self._future.result()
                return items
            # May wake for items that were taken meanwhile: `wake` follows `put`.
            await self._news()

    async def __aiter__(self) -> AsyncIterator[Item]:
        while items := await self.arrived():
            for item in items:
                yield item

    def __await__(self) -> Generator[Any, None, Result]:
        """Wait for the result; raises as `result`. An abandoned wait does not cancel the job."""
        return self._awaited().__await__()

    def put(self, item: Item) -> None:
        self._items.append(item)

    def finish(self, result: Result) -> None:
        if not self._future.done():
            self._future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    async def _awaited(self) -> Result:
        from asyncio import get_running_loop

        # asyncio's own wrapper would turn the job's cancellation into the waiting task's.
        loop = get_running_loop()
        over = loop.create_future()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop was closed, and with it everybody who waited
                loop.call_soon_threadsafe(_resolve, [over])

        self.when_done(notify)
        await over
        return self._future.result()

    async def _news(self) -> None:
        from asyncio import get_running_loop

        loop = get_running_loop()
        waiting = loop.create_future()
        with self._changed:
            if self._items or self._future.done():
                return
            self._waiter = loop, waiting
        await waiting

    def _notify(self) -> "tuple[AbstractEventLoop, AsyncFuture[None]] | None":
        with self._changed:
            self._changed.notify_all()
            waiter, self._waiter = self._waiter, None
        return waiter


def wake(jobs: Iterable[Job[Any, Any]]) -> None:
    """Wake the consumers of these jobs: one call for each event loop."""
    waiting: dict[AbstractEventLoop, list[AsyncFuture[None]]] = {}
    for job in jobs:
        if (waiter := job._notify()) is not None:
            waiting.setdefault(waiter[0], []).append(waiter[1])
    for loop, futures in waiting.items():
        with suppress(RuntimeError):  # the loop was closed, and with it everybody who waited
            loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: "list[AsyncFuture[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
