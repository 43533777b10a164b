"""The protocol of workloads: trials, metrics and tables of one kind of model.

A workload lists trials, runs one on a loaded backend and times it, counts its multiplications and
memory reads, and describes its tables.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from kvcast.errors import KvcastError
from kvcast.inspect.roofline import Stored
from kvcast.inspect.work import ModelWork, Work
from kvcast_bench.backend import Backend, Tokens
from kvcast_bench.models import BenchModel
from kvcast_bench.turns import BackendResult, Results, Trial, TurnAnswer

ResultT = TypeVar("ResultT")
OptionDefaults = Mapping[str, tuple[Any, str]]
"""Options that are positive integers, or lists of them: default and help."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of some trials, one line each, in milliseconds.

    Every table has backend, precision, peak memory, load and import; a metric has its median, least
    and most, and a ratio to each backend that the row is compared with.
    """

    trials: Sequence[Trial]
    metrics: Mapping[str, str]  # title of each metric
    factor: float = 1000  # metrics are shown times that
    number: str = ".2f"  # format of the values
    line: str | None = None  # above the table
    # title of a column and the field of trials that it shows
    places: Mapping[str, str] = field(default_factory=dict)
    # title of a column, the fact and its format
    facts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    floors: bool = False  # whether each metric's floor is shown
    limit: str = ""  # name of these rows in the floors' table, if they are in it
    # whether rows are grouped by backend instead of by trial
    by_backend: bool = False


class Workload(Protocol):
    """One kind of model. Can be pickled: it is on both sides of a pipe."""

    name: ClassVar[str]  # in the JSON object
    kind: ClassVar[str] = ""  # name of its models, in the plural
    model: ClassVar[type[BenchModel]] = BenchModel  # of the model that backends are given
    options: ClassVar[OptionDefaults] = {}  # options of this workload's command alone
    words: ClassVar[Mapping[str, Any]] = {}  # its non-numeric options, with their defaults
    # descriptions of the timings by measure; seconds are in the answers under these names
    metrics: ClassVar[Mapping[str, Sequence[str]]]
    broken_down: ClassVar[str] = ""  # measure of the trials whose time is broken down
    parts: ClassVar[Sequence[str]] = ()  # of a breakdown, in order
    stored: ClassVar[Stored] = Stored()  # dtypes in bundles of the family
    # whether peak memory begins anew with each turn; else it is the process's
    peak_per_turn: ClassVar[bool] = True
    dimensions: Any = None  # of the model, if there is one

    @classmethod
    def own(cls) -> dict[str, Any]:
        """Return this workload's options, with their defaults."""
        return {**{name: default for name, (default, _) in cls.options.items()}, **cls.words}

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings that all backends share, for the JSON object."""

    @property
    def step_work(self) -> Work:
        """One step, whose bytes `read_again` reads."""

    def tables(self) -> Sequence[Table]:
        """List the metrics, in order, and how they are shown."""

    def run(self, backend: Any, trial: Trial) -> TurnAnswer:
        """Do a trial on a loaded backend; return the seconds of each metric and its results.

        Raises KvcastError for a backend that did less than the trial.
        """

    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        """Return the facts, besides seconds, about a backend's result in a trial."""

    def trials(self) -> list[Trial]:
        """List the trials, in order, each once."""
        shown = [trial for table in self.tables() for trial in table.trials]
        return [trial for index, trial in enumerate(shown) if trial not in shown[:index]]

    def once(self, backend: Any, trial: Trial) -> object:
        """Do a trial's work once, for a breakdown."""
        return self.run(backend, trial)

    def counted(self, trial: Trial) -> ModelWork:  # noqa: ARG002 - of all trials, unless overridden
        return ModelWork(dimensions=self.dimensions)

    def work(self, trial: Trial, backend: Backend) -> Mapping[str, Work]:  # noqa: ARG002 - as above
        """Count a backend's least work for the metrics of a trial that have a floor."""
        return {}


def timed(act: Callable[[], ResultT]) -> tuple[float, ResultT]:
    """Return the seconds that a call takes, and its result."""
    start = time.perf_counter()
    result = act()
    return time.perf_counter() - start, result


def random_tokens(rows: int, length: int, vocab_size: int) -> list[Tokens]:
    """Return rows of random tokens, the same for all backends.

    A token's cost does not depend on its value, and a row does not depend on the number of rows.
    """
    return [
        np.random.default_rng(row).integers(vocab_size, size=length).tolist() for row in range(rows)
    ]


def check_tokens(texts: Sequence[Tokens], rows: int, tokens: int) -> None:
    """Raise KvcastError unless every row has the expected number of tokens."""
    lengths = [len(text) for text in texts]
    if lengths != [tokens] * rows:
        raise KvcastError(f"gave {lengths} tokens where {rows} x {tokens} were asked")


def of_trial(results: Results, trial: Trial) -> Mapping[str, BackendResult]:
    """Return the results of one trial by backend's name; empty if there was none."""
    return next((by_name for other, by_name in results if other == trial), {})
