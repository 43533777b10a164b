"""What jobs need before they begin, opened beside the engine's thread: reading an hour takes long.

Threads are daemons, so that a process need not wait for what nobody wants any more. Knows neither
what is opened nor what becomes of it.
"""

import threading
from collections.abc import Callable

_AT_ONCE = 2
"""Each takes a processor, and steps go on meanwhile."""


class Openings:
    """Openings under way.

    Attributes:
        count: those begun, until whoever began them counts them off.

    """

    def __init__(self) -> None:
        self.count = 0
        self._turns = threading.Semaphore(_AT_ONCE)

    def begin(self, opening: Callable[[], None], told: Callable[[Exception | None], None]) -> None:
        """Open on another thread, which then tells what went wrong, if anything did."""
        self.count += 1

        def work() -> None:
            with self._turns:
                try:
                    opening()
                except Exception as error:  # it is the job's
                    told(error)
                else:
                    told(None)

        threading.Thread(target=work, name="kvcast-opening", daemon=True).start()
