"""Opens callers' inputs before they begin, beside the engine's thread.

Reading an hour of sound takes long. Only as many are open at once as may soon begin, the first come
first. Threads are daemons, so that a process need not wait for an abandoned opening. Knows no kind
of input.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from kvcast.engine.callers import JobCaller

_THREADS = 2
"""Each takes a processor, and steps go on meanwhile."""

Report: TypeAlias = Callable[[Exception | None], None]


class Openings:
    """Callers that wait to be opened, and the number of those that are open. For one thread."""

    def __init__(self, most: int) -> None:
        """Open at most `most` at once."""
        self._most = most
        self._waiting: deque[tuple[JobCaller, Report]] = deque()
        self._open: set[JobCaller] = set()
        self._turns = threading.Semaphore(_THREADS)

    def add(self, caller: JobCaller, report: Report) -> None:
        """Open a caller in its turn; another thread calls `report`, with an error or None."""
        self._waiting.append((caller, report))
        self._go_on()

    def over(self, caller: object) -> None:
        """Note that a caller is over, so that the next one is opened."""
        self._open = {each for each in self._open if each is not caller}
        self._waiting = deque(pair for pair in self._waiting if pair[0] is not caller)
        self._go_on()

    def _go_on(self) -> None:
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
