"""Tables of figures in Markdown, and the page that has them between comments."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from kvcast.errors import KvcastError

TIMES = "×"  # noqa: RUF001 - a ratio's head


@dataclass(frozen=True)
class Figures:
    """A table.

    Attributes:
        head: names of its columns.
        rows: cells of each row, one per column.
        note: about the whole table: shapes, dtype, threads, runs.

    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{table}\n\n{self.note}\n" if self.note else f"{table}\n"


def markdown(tables: Sequence[Figures]) -> str:
    return "\n".join(table.markdown() for table in tables)


def write_figures(page: str, claims: Mapping[str, Sequence[Figures]]) -> str:
    """Return a page with the tables of each claim between its comments.

    These are `<!-- figures: NAME -->` and `<!-- end of figures -->`. Raises KvcastError for a page
    that lacks a claim's.
    """
    for name, tables in claims.items():
        place = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end of figures -->)", re.DOTALL)
        if not place.search(page):
            raise KvcastError(f"the page has no place for {name}: <!-- figures: {name} -->")
        text = markdown(tables)
        page = place.sub(lambda found, text=text: f"{found[1]}{text}{found[2]}", page)  # type: ignore[misc]
    return page


def spread(seconds: Sequence[float]) -> str:
    """Return milliseconds: median (minimum to maximum)."""
    shown = [median(seconds), min(seconds), max(seconds)]
    middle, least, most = (f"{1000 * each:,.{_places(1000 * shown[0])}f}" for each in shown)
    return f"{middle} ({least} to {most})"


def _places(number: float) -> int:
    return 0 if number >= 100 else 1 if number >= 10 else 2


def times(seconds: Sequence[float], baseline: Sequence[float]) -> str:
    return f"{median(seconds) / median(baseline):.2f}"


def prefixed(number: float) -> str:
    """Return operations with three digits and a power of ten."""
    mantissa, _, exponent = f"{number:.2e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


@dataclass(frozen=True)
class Clock:
    """How often and on how many threads everything is timed.

    Attributes:
        runs: rounds that count, after one to warm up.
        threads: of PyTorch.

    """

    runs: int
    threads: int

    def seconds(self, players: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Return the seconds of each function in each round that counts."""
        taken: dict[str, list[float]] = {name: [] for name in players}
        for number in range(self.runs + 1):
            for name, play in players.items():
                begin = time.perf_counter()
                play()
                if number:
                    taken[name].append(time.perf_counter() - begin)
        return taken

    @property
    def words(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{threads}, medians of {self.runs} runs in turns (least to most)"
