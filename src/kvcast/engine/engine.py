"""The engine: one thread that owns a model and goes on with what many callers asked for.

Callers leave messages; the thread takes them between two steps. So nothing but this thread ever
touches rows and caches. Knows neither families of models nor how texts are decoded.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Never, Protocol, Self, TypeVar

from kvcast.engine.jobs import ClosedError, DeadlineError, Job, queue_full, wake
from kvcast.engine.memory import ROWS
from kvcast.engine.openings import Openings
from kvcast.engine.worker import Prepared, Task, Worker
from kvcast.errors import KvcastError, UsageError
from kvcast.machine.memory import available_bytes

T = TypeVar("T")

_SHARE = 3
"""By default a cache takes this part of the memory that is left."""

_NEVER = float("inf")
_PATIENCE = 30.0
"""Seconds that a closed engine may take for its last step, before it is left alone."""

_LOG = logging.getLogger(__name__)


class Model(Protocol):
    """What `kvcast.load` returns."""

    def worker(self, rows: int, budget: int, chunk: int) -> Worker:
        """Return what runs the model's jobs, over a cache of its own.

        Args:
            rows: most texts, beams or windows at once.
            budget: bytes that the cache may take.
            chunk: about how many positions of prompts are computed between two steps.

        """


@dataclass(frozen=True, kw_only=True)
class Status:
    """What an engine does now, and what it has done.

    Attributes:
        rows: of the cache.
        capacity: positions of a row.
        cache_bytes: that the cache takes when it is full.
        running: jobs that have begun.
        waiting: jobs that have not.
        queue: most jobs that may wait.
        busy: rows that are in use.
        held: positions that each row holds, those that are left for later prompts among them.
        prompt_tokens: of all prompts so far.
        cached_tokens: of those, found in a row.
        generated_tokens: so far.
        audio_seconds: of recordings that are over.
        finished: jobs by how they ended: "stop", "length", "cancelled", "deadline", "error".

    """

    rows: int
    capacity: int
    cache_bytes: int
    running: int
    waiting: int
    queue: int
    busy: list[int]
    held: list[int]
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    audio_seconds: float
    finished: Mapping[str, int]


@dataclass(eq=False)
class _Asked:
    """A job that has not begun, or has."""

    job: Job[Any, Any]
    deadline: float
    prepared: Prepared
    task: Task | None = field(default=None)


@dataclass(frozen=True)
class _Call(Prepared):
    """A function that is called between two steps."""

    function: Callable[[], Any]


class Engine:
    """A loaded model that many callers share.

    Texts and recordings are decoded together, as many as there are rows for; the others wait, the
    first come first. A prompt goes on from the longest beginning that a row of the cache holds. In
    fp32 every answer is the one that the model gives alone.
    """

    def __init__(
        self,
        model: Model,
        *,
        rows: int = ROWS,
        cache_memory: int | None = None,
        queue: int = 256,
        chunk: int = 256,
    ) -> None:
        """Start the thread.

        Args:
            model: what `kvcast.load` returned.
            rows: most texts, beams or windows that are decoded at once.
            cache_memory: bytes that the cache may take; a third of what is left by default. There
                are fewer rows, or shorter ones, if that is too little.
            queue: most jobs that wait.
            chunk: about how many positions of prompts and inputs are computed before texts that are
                being written go on; an input of an encoder is computed in one go.

        Raises:
            UsageError: a value is out of its bounds, or the memory is not enough for one row.

        """
        for name, value, least in (("rows", rows, 1), ("queue", queue, 0), ("chunk", chunk, 1)):
            if value < least:
                raise UsageError(f"{name} must be {least} or more, not {value}")
        self.model = model
        budget = share_of_memory() if cache_memory is None else cache_memory
        self._make: Callable[[], Worker] = lambda: model.worker(rows, budget, chunk)
        self._worker = self._make()
        self._queue = queue
        self._changed = threading.Condition()
        self._mail: deque[Callable[[], None]] = deque()
        self._waiting: deque[_Asked] = deque()
        self._calls: deque[_Asked] = deque()
        self._openings = Openings()
        self._running: dict[Task, _Asked] = {}
        self._unfinished: dict[Job[Any, Any], _Asked] = {}
        self._finished: Counter[str] = Counter()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="kvcast-engine", daemon=True)
        self._thread.start()

    def submit(self, given: Any, *, deadline: float | None = None, **options: Any) -> Job[Any, Any]:
        """Ask for something; returns at once, from any thread.

        Args:
            given: what the model's `generate` or `transcribe` takes, one of it; or a
                `kvcast.whisper.decoding.Job`, a question about one window, which does not wait
                for the recordings before it.
            deadline: seconds from now after which the job fails.
            options: keywords of `generate` or `transcribe`.

        Returns:
            The job: pieces of texts or segments as they come, and what `generate` returns, or a
            `Transcript`, or a window's result.

        Raises:
            UsageError: for what cannot be served.
            QueueFullError: too many jobs wait.
            ClosedError: the engine takes no more.

        """
        self._check_open()
        prepared = self._worker.prepare(given, options)
        return self._enter(
            prepared, deadline, self._begin if prepared.at_once else self._waiting.append
        )

    def run(self, function: Callable[[], T], *, deadline: float | None = None) -> Job[Never, T]:
        """Call a function between two steps, on the thread that owns the model.

        Args:
            function: called once, and one of them before a step; all wait meanwhile.
            deadline: seconds from now after which it is not called any more.

        Raises:
            QueueFullError: too many jobs wait.
            ClosedError: the engine takes no more.

        """
        return self._enter(_Call(function), deadline, self._calls.append)

    def status(self) -> Status:
        """Return what the engine does now."""
        worker = self._worker
        running = len(self._running)
        return Status(
            rows=worker.sizes.rows,
            capacity=worker.sizes.capacity,
            cache_bytes=worker.sizes.bytes,
            running=running,
            waiting=max(0, len(self._unfinished) - running),
            queue=self._queue,
            busy=worker.busy,
            held=worker.held,
            prompt_tokens=worker.prompt_tokens,
            cached_tokens=worker.cached_tokens,
            generated_tokens=worker.generated_tokens,
            audio_seconds=worker.audio_seconds,
            finished=dict(self._finished),
        )

    def close(self, drain: float = 0.0) -> None:
        """Take no more; let jobs end within `drain` seconds, and cancel the rest.

        Returns once that is done, or after some time in which a step does not end.
        """
        with self._changed:
            self._closed = True
            end = time.monotonic() + drain
            while self._unfinished and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            self._mail.append(self._cancel_all)
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(_PATIENCE)

    @property
    def alive(self) -> bool:
        """Whether it takes requests: not once it is closed, or has failed."""
        return not self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed and takes no more requests")

    def _enter(
        self, prepared: Prepared, deadline: float | None, begin: Callable[[_Asked], None]
    ) -> Job[Any, Any]:
        """Leave a job for the thread, which does this with it."""
        job: Job[Any, Any] = Job(self._cancel)
        last = _NEVER if deadline is None else time.monotonic() + deadline
        asked = _Asked(job, last, prepared)

        def enter() -> None:
            if job in self._unfinished:  # and its deadline has not passed already
                begin(asked)

        with self._changed:
            self._check_open()
            is_full = len(self._unfinished) >= self._queue + self._worker.sizes.rows
            if is_full and not prepared.at_once:
                raise queue_full(self._queue)
            self._unfinished[job] = asked
            self._mail.append(enter)
            self._changed.notify()
        return job

    def _leave(self, message: Callable[[], None]) -> None:
        with self._changed:
            self._mail.append(message)
            self._changed.notify()

    def _cancel(self, job: Job[Any, Any]) -> None:
        self._leave(lambda: self._end(job, "cancelled", CancelledError()))

    def _cancel_all(self) -> None:
        for job in list(self._unfinished):
            self._end(job, "cancelled", CancelledError())

    def _serve(self) -> None:
        """Go on until the engine is closed and nothing is left."""
        try:
            self._go_on()
        except BaseException as error:  # a mistake of the engine's own must leave nobody waiting
            with self._changed:
                self._closed = True
                left, self._unfinished = self._unfinished, {}
                self._changed.notify_all()
            for job in left:
                job.fail(error)
            wake(left)
            raise

    def _go_on(self) -> None:
        while self._wait():
            for _ in range(len(self._mail)):  # others may leave more meanwhile
                self._mail.popleft()()
            self._expire()
            while self._next_may_begin:
                self._open(self._waiting.popleft())
            if self._calls:
                self._call(self._calls.popleft())
            if not self._worker.idle:
                self._step()

    def _wait(self) -> bool:
        """Wait for something to do; return whether there will be more."""
        if self._calls or self._next_may_begin or not self._worker.idle:
            return True
        with self._changed:
            while not self._mail:
                if self._closed and not self._unfinished:
                    return False
                if not self._changed.wait(self._patience()):
                    break  # a deadline has passed
        return True

    def _patience(self) -> float | None:
        """Return the seconds until the next deadline; None if there is none."""
        first = min((one.deadline for one in self._unfinished.values()), default=_NEVER)
        return None if first == _NEVER else max(0.0, first - time.monotonic())

    @property
    def _next_may_begin(self) -> bool:
        return bool(self._waiting) and self._worker.has_room(self._openings.count)

    def _call(self, asked: _Asked) -> None:
        assert isinstance(asked.prepared, _Call)
        try:
            result = asked.prepared.function()
        except Exception as error:  # whatever it is, it is the caller's
            self._end(asked.job, "error", error)
        else:
            self._forget(asked.job, "stop")
            asked.job.finish(result)
            wake([asked.job])

    def _open(self, asked: _Asked) -> None:
        """Begin a job, once what it needs is open; that may take long, and others go on."""
        if asked.prepared.opens:
            self._openings.begin(
                asked.prepared.open, lambda error: self._leave(lambda: self._opened(asked, error))
            )
        else:
            self._begin(asked)

    def _opened(self, asked: _Asked, error: Exception | None) -> None:
        self._openings.count -= 1
        if asked.job not in self._unfinished:  # somebody gave up
            asked.prepared.close()
        elif error is not None:
            self._end(asked.job, "error", error)
        else:
            self._begin(asked)

    def _begin(self, asked: _Asked) -> None:
        try:
            asked.task = self._worker.begin(asked.prepared, asked.job)
        except Exception as error:  # it is this job's
            self._end(asked.job, "error", error)
        else:
            self._running[asked.task] = asked

    def _step(self) -> None:
        try:
            news = self._worker.step()
        except Exception as error:
            self._start_anew(error)
            return
        for task in news:
            if (how := task.end()) is not None:
                del self._running[task]
                # First, so that whoever has the result finds the engine done with it.
                self._forget(task.job, how)
                task.settle()
        wake([task.job for task in news])

    def _start_anew(self, error: Exception) -> None:
        """Fail all that is under way: the state of rows and caches is unknown after an error."""
        _LOG.exception("a step failed; all jobs under way end with an error")
        failure = error if isinstance(error, KvcastError) else KvcastError("the model failed")
        before = self._worker
        for task, asked in list(self._running.items()):
            del self._running[task]
            self._forget(asked.job, "error")
            asked.job.fail(failure)
            wake([asked.job])
        self._worker = self._make()
        for name in ("prompt_tokens", "cached_tokens", "generated_tokens", "audio_seconds"):
            setattr(self._worker, name, getattr(before, name))

    def _expire(self) -> None:
        """Fail the jobs whose deadline has passed."""
        now = time.monotonic()
        for job, asked in list(self._unfinished.items()):
            if asked.deadline <= now:
                late = DeadlineError("the request was not done by its deadline")
                self._end(job, "deadline", late)

    def _end(self, job: Job[Any, Any], how: str, error: BaseException) -> None:
        """End a job that waits or runs; nothing happens if it is over."""
        asked = self._unfinished.get(job)
        if asked is None:
            return
        if asked.task is not None:
            del self._running[asked.task]
            self._worker.cancel(asked.task)
        for waiting in (self._waiting, self._calls):
            if asked in waiting:
                waiting.remove(asked)
        # As in `_step`: first, so that whoever is told finds the engine done with it.
        self._forget(job, how)
        job.fail(error)
        wake([job])

    def _forget(self, job: Job[Any, Any], how: str) -> None:
        self._finished[how] += 1
        with self._changed:
            del self._unfinished[job]
            self._changed.notify_all()


def share_of_memory(beside: Iterable[Engine] = ()) -> int:
    """Return the bytes that a cache may take by default, beside those of other engines.

    Caches take their memory as they are filled: what the others may take yet is not left.
    """
    promised = sum(one.status().cache_bytes for one in set(beside))
    return max(0, available_bytes() - promised) // _SHARE
