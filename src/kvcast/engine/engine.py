"""The engine: one thread that owns a model and its scheduler, and serves many callers.

Clients post messages, which the thread handles between steps, so no other thread touches rows or
caches.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Never, Self, TypeVar

from typing_extensions import override

from kvcast.engine.callers import JobCaller, Openings, Totals
from kvcast.engine.jobs import ClosedError, DeadlineError, Job, queue_full, wake
from kvcast.engine.memory import ROWS
from kvcast.engine.model import Model
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import KvcastError, UsageError
from kvcast.machine.resources import available_bytes
from kvcast.options import check_number, shown

T = TypeVar("T")

_SHARE = 3
"""By default a cache takes this part of the memory that is left."""

_NEVER = float("inf")
_PATIENCE = 30.0
"""Seconds that a closed engine may take for its last step, before it is left alone."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Status:
    """The state of an engine, and counts of its work so far."""

    rows: int  # of the cache
    capacity: int  # positions of a row
    cache_bytes: int  # of the full cache
    running: int  # jobs with a request that was admitted
    waiting: int  # other jobs
    queue: int  # most jobs that may wait
    busy: list[int]  # rows in use
    held: list[int]  # positions of each row, cached prefixes included
    prompt_tokens: int
    cached_tokens: int  # prompt tokens that the prefix cache held
    generated_tokens: int
    audio_seconds: float  # of finished recordings
    finished: Mapping[str, int]  # by "stop", "length", "cancelled", "deadline" or "error"


@dataclass(eq=False)
class _Call:
    function: Callable[[], Any]
    prompt_tokens: int
    job: Job[Any, Any] = field(init=False)
    deadline: float = _NEVER


class Engine:
    """A loaded model that many callers share.

    Texts and recordings are decoded in one batch as far as rows suffice; the rest wait in FIFO
    order. A prompt continues the longest prefix in the prefix cache. In fp32 no result depends on
    the batch.
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
            model: as `kvcast.load` returned it.
            rows: maximum texts, beams or windows decoded at once.
            cache_memory: bytes that the cache may take; a third of free memory by default. There
                are fewer rows, or shorter ones, if that is too little.
            queue: maximum jobs that wait.
            chunk: approximate number of positions of prompts and inputs computed between decode
                steps; an encoder input is computed in one call.

        Raises:
            UsageError: a value is out of bounds, or the memory is too small for one row.

        """
        if not hasattr(model, "scheduler"):
            raise UsageError(f"model must be what kvcast.load returned, not {shown(model)}")
        for name, value, least in (("rows", rows, 1), ("queue", queue, 0), ("chunk", chunk, 1)):
            check_number(name, value, int, least)
        if cache_memory is not None:
            check_number("cache_memory", cache_memory, int, 0)
        self.model = model
        budget = share_of_memory() if cache_memory is None else cache_memory
        self._make: Callable[[], Scheduler] = lambda: model.scheduler(rows, budget, chunk)
        self._scheduler = self._make()
        self._totals = Totals()
        self._queue = queue
        self._changed = threading.Condition()
        self._mail: deque[Callable[[], None]] = deque()
        self._calls: deque[_Call] = deque()
        self._openings = Openings(self._scheduler.rows)
        self._unfinished: dict[Job[Any, Any], JobCaller | _Call] = {}
        self._finished: Counter[str] = Counter()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="kvcast-engine", daemon=True)
        self._thread.start()

    def submit(
        self,
        given: Any,
        *,
        deadline: float | None = None,
        client: Hashable | None = None,
        **options: Any,
    ) -> Job[Any, Any]:
        """Submit a request; returns at once, from any thread.

        Args:
            given: one input of the model's `generate` or `transcribe`; or a policy about one
                window, as `kvcast.whisper.windows.WindowRequests` makes them, which does not wait
                for the recordings before it.
            deadline: seconds from now after which the job fails.
            client: who asks; all jobs of a client share one fair share.
            options: keywords of `generate` or `transcribe`.

        Returns:
            The job: a stream of text pieces or segments, and as its result the texts of `generate`,
            a `Transcript`, or the policy's result.

        Raises:
            UsageError: for a request that cannot be served.
            QueueFullError: too many jobs wait.
            ClosedError: the engine takes no more.

        """
        self._check_open()
        caller = self.model.caller(given, options, self._scheduler)
        caller.totals, caller.client = self._totals, client
        begin = self._open if caller.opens else self._begin
        return self._enter(caller, deadline, partial(begin, caller), at_once=caller.priority < 0)

    def run(
        self,
        function: Callable[[], T],
        *,
        deadline: float | None = None,
        prompt_tokens: int = 0,
    ) -> Job[Never, T]:
        """Call a function between two steps, on the thread that owns the model.

        At most one function runs before each step, which waits for it; none is called after
        `deadline` seconds from now. `prompt_tokens` are counted once it has run. Raises
        QueueFullError where too many jobs wait, and ClosedError.
        """
        if not callable(function):
            raise UsageError(f"run takes a function, not {shown(function)}")
        call = _Call(function, prompt_tokens)
        return self._enter(call, deadline, partial(self._calls.append, call))

    def status(self) -> Status:
        scheduler, totals = self._scheduler, self._totals
        running = sum(caller.began for caller in scheduler.callers)
        return Status(
            rows=scheduler.rows,
            capacity=scheduler.capacity,
            cache_bytes=scheduler.cache_bytes,
            running=running,
            waiting=max(0, len(self._unfinished) - running),
            queue=self._queue,
            busy=scheduler.busy,
            held=scheduler.lengths,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            generated_tokens=totals.generated_tokens,
            audio_seconds=totals.audio_seconds,
            finished=dict(self._finished),
        )

    def close(self, drain: float = 0.0) -> None:
        """Reject new jobs, wait up to `drain` seconds for running ones, and cancel the rest.

        Returns once all jobs have ended, or after `_PATIENCE` if a step does not end.
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

    @override
    def __repr__(self) -> str:
        status = self.status()
        jobs = f"{status.running} jobs running, {status.waiting} waiting"
        work = jobs if self.alive else "closed"
        return f"<Engine of {self.model!r}: {status.rows} rows, {work}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed and takes no more requests")

    def _enter(
        self,
        entry: JobCaller | _Call,
        deadline: float | None,
        begin: Callable[[], None],
        *,
        at_once: bool = False,
    ) -> Job[Any, Any]:
        if deadline is not None:
            check_number("deadline", deadline, float, float("-inf"))
        job = entry.job = Job[Any, Any](self._cancel)
        entry.deadline = _NEVER if deadline is None else time.monotonic() + deadline

        def enter() -> None:
            if job in self._unfinished:  # and its deadline has not passed already
                begin()

        with self._changed:
            self._check_open()
            is_full = len(self._unfinished) >= self._queue + self._scheduler.rows
            if is_full and not at_once:
                raise queue_full(self._queue)
            self._unfinished[job] = entry
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
        try:
            self._run_loop()
        except BaseException as error:  # a mistake of the engine's own must leave nobody waiting
            with self._changed:
                self._closed = True
                left, self._unfinished = self._unfinished, {}
                self._changed.notify_all()
            for job in left:
                job.fail(error)
            wake(left)
            if not isinstance(error, KvcastError):  # as of a model that was closed before
                raise

    def _run_loop(self) -> None:
        while self._wait():
            for _ in range(len(self._mail)):  # others may leave more meanwhile
                self._mail.popleft()()
            self._expire()
            if self._calls:
                self._call(self._calls.popleft())
            if not self._scheduler.idle:
                self._step()

    def _wait(self) -> bool:
        if self._calls or not self._scheduler.idle:
            return True
        with self._changed:
            while not self._mail:
                if self._closed and not self._unfinished:
                    return False
                if not self._changed.wait(self._patience()):
                    break  # a deadline has passed
        return True

    def _patience(self) -> float | None:
        first = min((entry.deadline for entry in self._unfinished.values()), default=_NEVER)
        return None if first == _NEVER else max(0.0, first - time.monotonic())

    def _call(self, call: _Call) -> None:
        try:
            result = call.function()
        except Exception as error:  # whatever it is, it is the client's
            self._end(call.job, "error", error)
        else:
            self._totals.prompt_tokens += call.prompt_tokens
            self._forget(call.job, "stop")
            call.job.finish(result)
            wake([call.job])

    def _open(self, caller: JobCaller) -> None:
        self._openings.add(caller, lambda error: self._leave(lambda: self._opened(caller, error)))

    def _opened(self, caller: JobCaller, error: Exception | None) -> None:
        if caller.job not in self._unfinished:  # somebody gave up
            caller.close()
        elif error is not None:
            self._end(caller.job, "error", error)
        else:
            self._begin(caller)

    def _begin(self, caller: JobCaller) -> None:
        self._scheduler.add(caller)

    def _step(self) -> None:
        try:
            news = self._scheduler.step()
        except Exception as error:
            self._start_anew(error)
            return
        callers = [caller for caller in news if isinstance(caller, JobCaller)]
        for caller in callers:
            if (how := caller.ending) is not None:
                # First, so that whoever has the result finds the engine done with it.
                self._forget(caller.job, how)
                caller.settle()
        wake([caller.job for caller in callers])

    def _start_anew(self, error: Exception) -> None:
        """Fail all running jobs: the state of rows and caches is unknown after an error."""
        _LOG.exception("a step failed; all jobs that have begun end with an error")
        failure = error if isinstance(error, KvcastError) else KvcastError("the model failed")
        before, self._scheduler = self._scheduler, self._make()
        for caller in before.callers:
            if not caller.began:
                self._scheduler.add(caller)
            elif isinstance(caller, JobCaller):
                self._end(caller.job, "error", failure)

    def _expire(self) -> None:
        now = time.monotonic()
        for job, entry in list(self._unfinished.items()):
            if entry.deadline <= now:
                late = DeadlineError("the request was not done by its deadline")
                self._end(job, "deadline", late)

    def _end(self, job: Job[Any, Any], how: str, error: BaseException) -> None:
        entry = self._unfinished.get(job)
        if entry is None:
            return
        if isinstance(entry, JobCaller):
            self._scheduler.remove(entry)
            entry.close()
        elif entry in self._calls:
            self._calls.remove(entry)
        # First, as in `_step`, so that whoever is notified finds the engine done with it.
        self._forget(job, how)
        job.fail(error)
        wake([job])

    def _forget(self, job: Job[Any, Any], how: str) -> None:
        self._finished[how] += 1
        with self._changed:
            entry = self._unfinished.pop(job)
            self._changed.notify_all()
        self._openings.over(entry)


def share_of_memory(beside: Iterable[Engine] = ()) -> int:
    """Return a cache's default bytes; memory that other engines' caches reserve is not free."""
    promised = sum(engine.status().cache_bytes for engine in set(beside))
    return max(0, available_bytes() - promised) // _SHARE
