"""Callers: each offers its requests one after another, and takes what became of them.

A caller is a prompt with its texts, a recording, a question about one window, or a list of requests
in the calling thread. What waits for rows waits here. Knows neither rows nor runtimes.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

from typing_extensions import override

from kvcast.engine.jobs import Job
from kvcast.engine.requests import Request

Result = TypeVar("Result")

Policy: TypeAlias = Generator[Request | None, None, Result]
"""Decides which requests follow from the results of those before.

It yields a request and goes on when that is done; if the request failed, its error is raised at the
yield. It yields None where it has told something and would go on with work of its own, such as
reading a file, so that others hear of it first. What it returns is its result.
"""


class Caller(ABC):
    """Whoever has requests.

    Attributes:
        priority: those with a lower one go first.
        rows: that its requests have now; the scheduler counts them.
        began: whether a request of it was taken on; the scheduler sets it.

    """

    priority: int = 0
    rows = 0
    began = False

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether it offers no more and has taken everything."""

    @abstractmethod
    def next_request(self) -> Request | None:
        """Return the next request; None while there is none. An error is the caller's own."""

    @abstractmethod
    def take(self, request: Request) -> None:
        """Take a request that got a token, failed, or is done. An error is the caller's own."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Be over, because of an error of its own."""


@dataclass
class Totals:
    """What an engine has done so far.

    Attributes:
        prompt_tokens: of all prompts.
        cached_tokens: of those, found in a row.
        generated_tokens: of all texts.
        audio_seconds: of recordings that are over.

    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    audio_seconds: float = 0.0


class JobCaller(Caller):
    """A caller in an engine, which puts what it finds into a job.

    Attributes:
        opens: whether something must be opened before its first request.
        job: what the consumer holds; the engine sets it, as the following.
        deadline: when it ends, by the clock of the engine.
        totals: of the engine.

    """

    opens: ClassVar[bool] = False
    job: Job[Any, Any]
    deadline = float("inf")
    totals: Totals

    @property
    @abstractmethod
    def ending(self) -> str | None:
        """How it ended, as `Status.finished` counts it; None while it goes on."""

    @abstractmethod
    def settle(self) -> None:
        """Give the job its result, or its error, once it is over."""

    @property
    @override
    def over(self) -> bool:
        return self.ending is not None

    def open(self) -> None:
        """Open what it needs, on any thread; may take long, and raises what goes wrong."""

    def close(self) -> None:
        """Release what it holds, whether it has begun or not."""


class RequestList(Caller):
    """Requests of the calling thread.

    Attributes:
        advanced: those that got tokens, or failed, since somebody emptied this.

    """

    def __init__(self, requests: Iterable[Request]) -> None:
        """Begin; a request is taken from the iterable when there is a row for it."""
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
        """Let a policy take part; it goes on when a request is asked for."""
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
        """Let a policy go on, up to what it yields next."""
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
        """Decide about a policy that has yielded None: it goes on when a request is asked for."""
        self._next.append((policy, None))

    @abstractmethod
    def ended(self, policy: Policy[Any], result: Any) -> None:
        """Take the result of a policy."""


class PolicyList(PolicyCaller):
    """Policies of the calling thread.

    Attributes:
        results: of those that are over.
        error: what ended all of them.

    """

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
