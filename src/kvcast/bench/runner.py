"""Backends in processes of their own, one turn at a time.

The side of a measurement that touches processes: who can take part, who is loaded, who is quiet.
Knows neither what a turn is about nor what is shown of it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

from kvcast.bench.backend import Backend
from kvcast.bench.idle import IdleGate
from kvcast.bench.models import installed_versions
from kvcast.bench.rates import Rates
from kvcast.bench.remote import Remote
from kvcast.bench.schedule import Answer, Results, Trial, take_turns
from kvcast.bench.worker import Importing, Worker
from kvcast.bench.workload import Workload
from kvcast.errors import KvcastError


@dataclass(frozen=True)
class Loaded:
    """A backend that is ready for turns."""

    backend: Backend  # as it was before it was loaded
    versions: Mapping[str, str]  # of its packages
    imports: float  # seconds, in an empty interpreter
    load: float  # seconds
    run: Callable[[Trial], Answer]  # does a trial once
    pids: Sequence[int] = ()  # processes that must be quiet before a turn

    @property
    def name(self) -> str:
        """The backend's."""
        return self.backend.name


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Who measures how often."""

    workload: Workload  # what is measured
    threads: int  # for each program
    runs: int  # of each trial, after one to warm up
    # where backends live: each in a process of its own, or all in this one
    host: type[Remote] = Remote

    @contextmanager
    def loaded(self, backends: Sequence[Backend]) -> Iterator[tuple[list[Loaded], dict[str, str]]]:
        """Give the backends that are loaded, and why each of the others is not."""
        absent: dict[str, str] = {}
        with ExitStack() as stack:
            found = []
            for backend in backends:
                reason = _unfit(backend)
                if reason is None:
                    try:
                        found.append(self._load(backend, stack))
                        continue
                    except KvcastError as error:
                        reason = f"failed: {error}"
                absent[backend.name] = reason
            yield found, absent

    def turns(self, loaded: Sequence[Loaded]) -> Results:
        """Let those that take part in each trial take turns while all are quiet."""
        gate = IdleGate([pid for one in loaded for pid in one.pids])
        results: Results = []
        for trial in self.workload.trials():
            players = {one.name: one.run for one in loaded if one.backend.takes(trial)}
            results.append((trial, take_turns(players, gate, trial, runs=self.runs, report=say)))
        return results

    def breakdown(self, backend: Backend, trials: Sequence[Trial]) -> list[dict[str, Any]]:
        """Say where a backend's time goes in each trial: medians of runs after a warm-up."""
        with self._hosted(Worker(self.workload, backend)) as remote:
            remote.call("load")
            gate = IdleGate([remote.pid])
            return [self._parts(remote, gate, trial) for trial in trials]

    def _parts(self, remote: Remote, gate: IdleGate, trial: Trial) -> dict[str, Any]:
        def play(trial: Trial) -> Answer:
            answer: Answer = remote.call("break_down", trial=dict(trial))
            return answer

        name = "breakdown"
        result = take_turns({name: play}, gate, trial, runs=self.runs, report=say)[name]
        if not result.stands:
            raise KvcastError(f"no breakdown of {dict(trial)}: {result.failure}")
        parts = [answer["parts"] for answer in result.answers]
        return {
            "whole": median(result.series("whole")),
            "parts": {part: median(one[part] for one in parts) for part in parts[0]},
            "calls": result.last["calls"],
            **result.surroundings(),
        }

    def rates(self, step_bytes: int) -> dict[str, float] | None:
        """Measure the machine, see `kvcast.bench.rates`; None without `onnx`, which that needs."""
        if find_spec("onnx") is None:
            return None
        say("rates of this machine")
        tokens, width = self.workload.largest_product
        with self._hosted(Rates(self.threads)) as remote:
            IdleGate([remote.pid]).settle()
            found: dict[str, float] = remote.call(
                "measure", working_set=step_bytes, tokens=tokens, width=width
            )
            return found

    def _load(self, backend: Backend, stack: ExitStack) -> Loaded:
        worker = Worker(self.workload, backend)
        say(f"{backend.name}: preparing")
        with self._hosted(worker) as preparing:
            preparing.call("prepare")
        say(f"{backend.name}: loading")
        with self._hosted(Importing()) as importing:
            imports: float = importing.call("seconds", modules=list(backend.modules))
        remote = stack.enter_context(self._hosted(worker))
        IdleGate([remote.pid]).settle()
        return Loaded(
            backend=backend,
            versions=installed_versions(backend.packages) or {},
            imports=imports,
            load=remote.call("load"),
            run=partial(_run, remote),
            pids=[remote.pid],
        )

    def _hosted(self, served: object) -> Remote:
        # Nobody looks for a hub, and nobody's OpenMP or BLAS takes more threads than it was given.
        threads = str(self.threads)
        environment = {
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "HF_HUB_OFFLINE": "1",
        }
        return self.host(served, environment)


def _run(remote: Remote, trial: Trial) -> Answer:
    answer: Answer = remote.call("run", trial=dict(trial))
    return answer


def _unfit(backend: Backend) -> str | None:
    if installed_versions(backend.packages) is None:
        return f"not installed: pip install {' '.join(backend.packages[:1])}"
    return backend.unfit()


def say(message: str) -> None:
    """Tell a person at a terminal what is going on."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"\r\x1b[K{message}", end="", file=sys.stderr, flush=True)
