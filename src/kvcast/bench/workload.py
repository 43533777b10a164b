"""What is measured of one kind of model: the protocol that every workload meets.

A workload lists trials, does one on a loaded backend and times it, and counts what the trial
multiplies and reads. Knows no process and no table.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from kvcast.bench.backend import Backend, Tokens
from kvcast.bench.floor import Stored
from kvcast.bench.schedule import Answer, Result, Results, Trial
from kvcast.errors import KvcastError
from kvcast.work.base import Counted, Work

ResultT = TypeVar("ResultT")


class Workload(Protocol):
    """One kind of model. Can be pickled: it is on both sides of a pipe."""

    name: ClassVar[str]  # of the kind, in the JSON object
    # by measure, what is timed; seconds are in the answers under these names
    metrics: ClassVar[Mapping[str, Sequence[str]]]
    broken_down: ClassVar[Sequence[str]] = ()  # measures of trials whose time is broken down
    parts: ClassVar[Sequence[str]] = ()  # of a breakdown, in order
    stored: ClassVar[Stored] = Stored()  # how bundles of the family store numbers
    # whether peak memory begins anew with each turn; else it is the process's
    peak_per_turn: bool = True

    @property
    def settings(self) -> Mapping[str, Any]:
        """What was the same for everybody, for the JSON object."""

    @property
    def largest_product(self) -> tuple[int, int]:
        """Tokens and width of the largest product, [tokens, width] by [width, 4 * width]."""

    def trials(self) -> Sequence[Trial]:
        """List what is to be done, in order."""

    def run(self, backend: Any, trial: Trial) -> Answer:
        """Do a trial on a loaded backend; return the seconds of each metric and what came of it.

        Raises KvcastError for a backend that did less than it was asked.
        """

    def once(self, backend: Any, trial: Trial) -> object:
        """Do a trial's work once, for a breakdown."""

    def counted(self, trial: Trial) -> Counted:
        """Return what counts the work of a trial's model."""

    def work(self, trial: Trial, backend: Backend) -> Mapping[str, Work]:
        """Count a backend's least work for those metrics of a trial that have a floor."""

    def step(self) -> Work:
        """Count one step, of which `read_again` reads as many bytes."""

    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        """Return what is said of a backend's result in a trial beside seconds."""


def timed(act: Callable[[], ResultT]) -> tuple[float, ResultT]:
    """Return the seconds that something takes, and what comes of it."""
    start = time.perf_counter()
    found = act()
    return time.perf_counter() - start, found


def random_tokens(rows: int, length: int, vocab_size: int) -> list[Tokens]:
    """Return rows of random tokens, the same for everybody.

    What a token costs does not depend on which it is, and a row does not depend on how many there
    are.
    """
    return [
        np.random.default_rng(row).integers(vocab_size, size=length).tolist() for row in range(rows)
    ]


def check_tokens(texts: Sequence[Tokens], rows: int, tokens: int) -> None:
    """Raise KvcastError unless every row has got so many tokens."""
    lengths = [len(text) for text in texts]
    if lengths != [tokens] * rows:
        raise KvcastError(f"gave {lengths} tokens where {rows} x {tokens} were asked")


def of_trial(results: Results, trial: Trial) -> Mapping[str, Result]:
    """Return the results of one trial by backend's name; empty if there was none."""
    return next((by_name for other, by_name in results if other == trial), {})
