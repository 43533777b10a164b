"""Callers, such as a prompt or a recording: each submits requests in turn and takes results."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

from typing_extensions import override

from kvcast.engine.jobs import Job
from kvcast.engine.requests import Request

Result = TypeVar("Result")

Policy: TypeAlias = Generator[Request | None, None, Result]
"""Decides which requests follow from the results of earlier ones.

It yields a request and goes on when that is done; if the request failed, its error is raised at the
yield. It yields None after news for its consumer, before work of its own such as reading a file, so
that the news arrives first. It returns its result.
"""


class Caller(ABC):
    priority: int = 0
    client: Hashable | None = None  # whose share of rows it uses; None for a separate share
    rows = 0
    began = False

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether it offers no more requests and has taken all results."""

    @abstractmethod
    def next_request(self) -> Request | None:
        """Return the next request; None while there is none. An error is the caller's own."""

    @abstractmethod
    def take(self, request: Request) -> None:
        """Take a request that got a token, failed, or is done. An error is the caller's own."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """End with this error."""


@dataclass
class Totals:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    audio_seconds: float = 0.0


class JobCaller(Caller):
    """A caller in an engine, which sets job and totals."""

    opens: ClassVar[bool] = False
    job: Job[Any, Any]  # the consumer's end
    deadline = float("inf")
    totals: Totals

    @property
    @abstractmethod
    def ending(self) -> str | None:
        """How it ended, as `Status.finished` counts it; None while it runs."""

    @abstractmethod
    def settle(self) -> None:
        """Give the job its result, or its error, once it is over."""

    @property
    @override
    def over(self) -> bool:
        return self.ending is not None

    def open(self) -> None:
        """Open its inputs, on any thread; may take long, and raises the error of opening."""

    def close(self) -> None:
        """Release its resources, whether it has begun or not."""


class RequestList(Caller):
    def __init__(self, requests: Iterable[Request]) -> None:
        self._coming = iter(requests)
        self._running = 0
        self._all_taken = False
        self.advanced: list[Request] = []
        self.error: Exception | None = None

    @property
    @override
    def over(self) -> bool:
        return self.error is not None or (self._all_taken and not self._running)

    @override
    def next_request(self) -> Request | None:
        request = next(self._coming, None)
        self._all_taken = request is None
        self._running += request is not None
        return request

    @override
    def take(self, request: Request) -> None:
        if request.error is not None:
            raise request.error
        self._running -= request.done
        self.advanced.append(request)

    @override
    def fail(self, error: Exception) -> None:
        self.error = error


class PolicyCaller(Caller):
    """A caller whose requests come from policies, one request of each at a time."""

    def __init__(self) -> None:
        self._next: deque[tuple[Policy[Any], Request | None]] = deque()
        self._running: dict[Request, Policy[Any]] = {}

    def start(self, policy: Policy[Any]) -> None:
        self._next.append((policy, None))

    @override
    def next_request(self) -> Request | None:
        while self._next:
            policy, request = self._next.popleft()
            if request is not None:
                self._running[request] = policy
                return request
            self.resume(policy)
        return None

    @override
    def take(self, request: Request) -> None:
        if request.done:
            self.resume(self._running.pop(request), request.error)

    def resume(self, policy: Policy[Any], error: Exception | None = None) -> None:
        try:
            request = next(policy) if error is None else policy.throw(error)
        except StopIteration as end:
            self.ended(policy, end.value)
            return
        if request is None:
            self.paused(policy)
        else:
            self._next.append((policy, request))

    def paused(self, policy: Policy[Any]) -> None:
        """Keep a policy that has yielded None until the scheduler asks for a request."""
        self._next.append((policy, None))

    @abstractmethod
    def ended(self, policy: Policy[Any], result: Any) -> None:
        """Take the result of a policy."""


class PolicyList(PolicyCaller):
    def __init__(self, policies: Iterable[Policy[Any]]) -> None:
        super().__init__()
        self.results: dict[Policy[Any], Any] = {}
        self.error: Exception | None = None
        for policy in policies:
            self.start(policy)

    @property
    @override
    def over(self) -> bool:
        return self.error is not None or not (self._next or self._running)

    @override
    def ended(self, policy: Policy[Any], result: Any) -> None:
        self.results[policy] = result

    @override
    def fail(self, error: Exception) -> None:
        self.error = error


_THREADS = 2
"""Each takes a processor, and steps go on meanwhile."""

Report: TypeAlias = Callable[[Exception | None], None]


class Openings:
    """Callers that wait to be opened, and the number of open ones. For one thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[tuple[JobCaller, Report]] = deque()
        self._open: set[JobCaller] = set()
        self._turns = threading.Semaphore(_THREADS)

    def add(self, caller: JobCaller, report: Report) -> None:
        """Open a caller in its turn; another thread calls `report`, with an error or None."""
        self._waiting.append((caller, report))
        self._open_next()

    def over(self, caller: object) -> None:
        self._open = {each for each in self._open if each is not caller}
        self._waiting = deque(pair for pair in self._waiting if pair[0] is not caller)
        self._open_next()

    def _open_next(self) -> None:
        while self._waiting and len(self._open) < self._most:
            caller, report = self._waiting.popleft()
            self._open.add(caller)
            work = threading.Thread(
                target=self._work, args=(caller, report), name="kvcast-opening", daemon=True
            )
            work.start()

    def _work(self, caller: JobCaller, report: Report) -> None:
        with self._turns:
            try:
                caller.open()
            except Exception as error:  # it is the caller's
                report(error)
            else:
                report(None)
