"""What an engine needs of a kind of model: how its requests begin, go on and end.

Everything but `prepare` happens on the engine's thread. Knows nothing of queues and deadlines.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from kvcast.engine.jobs import Job
from kvcast.engine.memory import Sizes


class Task(ABC):
    """A job that a worker has begun."""

    job: Job[Any, Any]

    @abstractmethod
    def end(self) -> str | None:
        """Return how the job ended, as `Status.finished` counts it; None while it goes on."""

    @abstractmethod
    def settle(self) -> None:
        """Give the job that ended its result, or its error."""


class Prepared:
    """A job's request, whose options are checked and which has not begun.

    Attributes:
        at_once: whether it is so small that it begins before those that wait.
        opens: whether something must be opened before it begins.

    """

    at_once: ClassVar[bool] = False
    opens: ClassVar[bool] = False

    def open(self) -> None:
        """Open what it needs, on any thread; may take long, and raises what goes wrong."""

    def close(self) -> None:
        """Release what was opened for a job that does not begin."""


class Worker(ABC):
    """Runs jobs of one model.

    Attributes:
        sizes: of its cache.
        prompt_tokens: that were asked to be read, so far.
        cached_tokens: of those, found in a row.
        generated_tokens: so far.
        audio_seconds: of recordings that are over.

    """

    sizes: Sizes
    prompt_tokens = 0
    cached_tokens = 0
    generated_tokens = 0
    audio_seconds = 0.0

    @abstractmethod
    def prepare(self, given: Any, options: Mapping[str, Any]) -> Prepared:
        """Check a request, on any thread; raises UsageError for what cannot be served."""

    @abstractmethod
    def has_room(self, opening: int) -> bool:
        """Tell whether another job should begin, when so many will that are being opened."""

    @abstractmethod
    def begin(self, prepared: Prepared, job: Job[Any, Any]) -> Task:
        """Let a job take part; raises KvcastError for what cannot be served."""

    @abstractmethod
    def cancel(self, task: Task) -> None:
        """End a job; its rows are free."""

    @abstractmethod
    def step(self) -> Sequence[Task]:
        """Go a step further; return the tasks of which there is news, which their jobs have."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether nothing is under way."""

    @property
    @abstractmethod
    def held(self) -> list[int]:
        """How many positions each row of the cache holds."""

    @property
    @abstractmethod
    def busy(self) -> list[int]:
        """Rows that are in use."""
