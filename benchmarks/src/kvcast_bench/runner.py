"""Backends in separate processes, one turn at a time.

Checks whether backends can take part, loads them, and waits until they are idle.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from shutil import which
from typing import Any

from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.inspect.roofline import Rates
from kvcast.machine.child import Remote, RemoteError
from kvcast.runtimes.native.library import chosen_isa
from kvcast_bench.backend import Backend
from kvcast_bench.machine import IdleGate
from kvcast_bench.models import installed_versions
from kvcast_bench.turns import Results, Trial, say, take_turns
from kvcast_bench.worker import Importing, Worker
from kvcast_bench.workload import Workload


class Local(Remote):
    """An object in this process, called as if it were in another."""

    def __init__(self, served: object, *_: object) -> None:
        self._served, self.pid = served, os.getpid()

    @override
    def call(self, method: str, **arguments: Any) -> Any:
        try:
            return getattr(self._served, method)(**arguments)
        except Exception as error:
            line = " ".join(f"{type(error).__name__}: {error}".split())
            raise RemoteError(line) from error

    @override
    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Loaded:
    backend: Backend  # as it was before it was loaded
    facts: Mapping[str, Any]  # its packages' versions, seconds to import and to load
    remote: Remote  # holds a Worker
    processes: Sequence[int] = ()  # besides the worker's


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs a workload: loads backends in processes and runs them in turn."""

    workload: Workload  # the trials
    threads: int  # for each program
    runs: int  # of each trial, after one to warm up
    # whether each backend has a process, or all share this one
    host: type[Remote] = Remote

    @contextmanager
    def loaded(self, backends: Sequence[Backend]) -> Iterator[tuple[list[Loaded], dict[str, str]]]:
        """Yield the loaded backends, and the reason why each of the rest is not loaded."""
        loaded: list[Loaded] = []
        absent: dict[str, str] = {}
        with ExitStack() as stack:
            for backend in backends:
                try:
                    reason = self._unfit(backend)
                    if reason is None:
                        loaded.append(self._load(backend, stack))
                except KvcastError as error:
                    reason = f"failed: {error}"
                if reason is not None:
                    absent[backend.name] = reason
            yield loaded, absent

    def turns(
        self, loaded: Sequence[Loaded], trials: Sequence[Trial], method: str = "run"
    ) -> Results:
        """Run the backends of each trial in turn, while all others are idle.

        `method` is the Worker's method for a turn.
        """
        gate = IdleGate(
            [pid for player in loaded for pid in (player.remote.pid, *player.processes)]
        )
        results: Results = []
        for trial in trials:
            players = {
                player.backend.name: partial(player.remote.call, method, trial=dict(trial))
                for player in loaded
                if player.backend.takes(trial)
            }
            label = ", ".join(f"{name} {value}" for name, value in trial.items())
            results.append((trial, take_turns(players, gate, runs=self.runs, label=label)))
        return results

    def rates(self, step_bytes: int) -> dict[str, float] | None:
        """Measure the machine by `kvcast.inspect.roofline`; None without the native runtime."""
        try:
            chosen_isa()
        except KvcastError:
            return None
        say("rates of this machine")
        with self._hosted(Rates(self.threads)) as remote:
            IdleGate([remote.pid]).settle()
            rates: dict[str, float] = remote.call("measure", working_set=step_bytes)
            return rates

    def _load(self, backend: Backend, stack: ExitStack) -> Loaded:
        worker = Worker(self.workload, backend)
        say(f"{backend.name}: preparing")
        with self._hosted(worker, backend) as preparing:
            preparing.call("prepare")
        say(f"{backend.name}: loading")
        with self._hosted(Importing(), backend) as importing:
            imports: float = importing.call("seconds", modules=list(backend.modules))
        remote = stack.enter_context(self._hosted(worker, backend))
        IdleGate([remote.pid]).settle()
        facts = {
            "versions": self._versions(backend) or {},
            "import_seconds": imports,
            "load_seconds": remote.call("load"),
        }
        return Loaded(backend, facts, remote, remote.call("processes"))

    def _unfit(self, backend: Backend) -> str | None:
        if backend.environment and not which(backend.python or ""):
            return (
                f"needs an environment of its own, and {backend.environment} names no Python: "
                "see docs/bench.md"
            )
        if self._versions(backend) is None:
            pip = f"{backend.python} -m pip" if backend.python else "pip"
            return f"not installed: {pip} install {' '.join(backend.packages[:1])}"
        return backend.unfit()

    def _versions(self, backend: Backend) -> dict[str, str] | None:
        if backend.python is None:
            return installed_versions(backend.packages)
        with self._hosted(Importing(), backend) as remote:
            versions: dict[str, str] | None = remote.call("versions", packages=backend.packages)
            return versions

    def _hosted(self, served: object, backend: Backend | None = None) -> Remote:
        # Nothing asks the hub, and no OpenMP or BLAS takes more threads than its backend was given.
        pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        variables = {**dict.fromkeys(pools, str(self.threads)), "HF_HUB_OFFLINE": "1"}
        if backend is None:
            return self.host(served, variables)
        return self.host(served, {**variables, **backend.variables()}, backend.python)
