"""What tables a workload's rows make; data alone, which `kvcast.bench.render` draws."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Found = Mapping[str, Any]
"""The JSON object, or a part of it."""


@dataclass(frozen=True, kw_only=True)
class Number:
    """How a number is shown: times `factor`, with so many decimals and a unit."""

    factor: float = 1
    decimals: int = 2
    unit: str = ""

    def show(self, value: float | None) -> str:
        """Return it, or a dash for None."""
        return "-" if value is None else f"{value * self.factor:.{self.decimals}f}{self.unit}"


MILLISECONDS, SECONDS = Number(factor=1000), Number(decimals=3)
PERCENT = Number(factor=100, decimals=1, unit="%")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Measured rows of one kind, one line each.

    Every table has backend, precision, peak memory, load and import; a metric has its median, least
    and most, and a ratio to each backend that the row is compared with.
    """

    measure: str  # of the rows' trials
    metrics: Mapping[str, str]  # title of each metric
    number: Number = MILLISECONDS  # how metrics are shown
    line: str | None = None  # what stands above
    # title of a column and the field of trials that it shows
    places: Mapping[str, str] = field(default_factory=dict)
    # title of a column, the fact and how it is shown
    facts: Mapping[str, tuple[str, Number]] = field(default_factory=dict)
    floors: bool = False  # whether each metric's floor is shown
    # whether rows of one backend stand together, and not those of one trial
    by_backend: bool = False
    select: Callable[[Found], bool] = lambda _: True  # which trials are shown


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a document is shown."""

    tables: Callable[[Found], Sequence[Table]]  # of measured rows
    # by measure, what the floor's table calls measured rows that have a floor
    limits: Mapping[str, str] = field(default_factory=dict)
