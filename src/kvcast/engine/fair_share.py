"""Fair share of rows among clients and their callers: the next row, preemption, and turns."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest

from kvcast.engine.callers import Caller
from kvcast.engine.running import Running


class FairShare:
    """The rows of clients and callers at one moment."""

    def __init__(self, callers: Iterable[Caller]) -> None:
        self._callers = list(callers)
        self._rows = Counter[Hashable]()
        for caller in self._callers:
            self._rows[_client(caller)] += caller.rows

    def waiting(self) -> list[Caller]:
        return sorted(self._callers, key=self._precedence)

    def to_preempt(self, waiting: Caller, rows: int) -> Caller | None:
        """Return a caller that keeps at least as many rows as `waiting` then has; None if none."""
        mine = _client(waiting)
        others = [caller for caller in self._callers if _client(caller) != mine]
        least = self._rows[mine] + rows
        more = [caller for caller in others if caller.rows and self._rows[_client(caller)] > least]
        if not more:
            own = (caller for caller in self._callers if _client(caller) == mine)
            more = [caller for caller in own if caller.rows > waiting.rows + rows]
        more = [caller for caller in more if caller.priority >= waiting.priority]
        return max(more, key=self._held, default=None)

    def _held(self, caller: Caller) -> tuple[int, int]:
        return self._rows[_client(caller)], caller.rows

    def _precedence(self, caller: Caller) -> tuple[int, int, int]:
        return caller.priority, *self._held(caller)


def in_rounds(running: Sequence[Running], most: int) -> list[Running]:
    """Return the requests that take part in a step of about `most` rows.

    Each client (or caller of one client) has as many as the one with fewest; the rest is divided
    round-robin. Earlier requests are preferred.
    """
    clients: dict[Hashable, dict[Caller, list[Running]]] = {}
    for each in running:
        clients.setdefault(_client(each.caller), {}).setdefault(each.caller, []).append(each)
    callers = [list(_rounds(of_client.values())) for of_client in clients.values()]
    sharing = callers if len(clients) > 1 else list(next(iter(clients.values())).values())
    equally = len(sharing) * min(map(len, sharing))
    taken: list[Running] = []
    rows = 0
    for each in _rounds(callers):
        if len(taken) >= equally and rows + len(each.live) > most:
            break
        taken.append(each)
        rows += len(each.live)
    return taken


def _rounds(several: Iterable[Sequence[Running]]) -> Iterator[Running]:
    rounds = zip_longest(*several)
    return (each for each in chain.from_iterable(rounds) if each is not None)


def _client(caller: Caller) -> Hashable:
    return caller if caller.client is None else caller.client


class Pace:
    """The shortest of recent step times, by rows: a step may be delayed for other reasons."""

    _GROWTH = 1.02
    """By what a step's time may exceed the shortest before, to count as the shortest of late."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def took(self, rows: int, seconds: float) -> None:
        shortest = self._seconds.get(rows, seconds)
        self._seconds[rows] = min(seconds, self._GROWTH * shortest)

    def most(self, fewest: int = 3) -> int:
        """Return how many rows take about a quarter longer than two, or `fewest`."""
        low, high = min(self._seconds, default=0), max(self._seconds, default=0)
        if low > fewest or high <= fewest:
            return fewest
        each = (self._seconds[high] - self._seconds[low]) / (high - low)
        if each <= 0:  # any value works
            return high
        fixed = max(0.0, self._seconds[low] - low * each)
        return min(high, fewest + int(min(high, fixed / (4 * each))))
