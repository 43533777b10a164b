"""Runs cases in a process of their own, so that a crash or a hang is an outcome like any other."""

import contextlib
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Event, Timer
from typing import Any

import numpy as np

from kvcast.errors import KvcastError, LibraryMissingError
from kvcast.machine.child import Remote, RemoteError
from kvcast.runtimes.native.build import library_path
from kvcast_bench.worker import peak_bytes

OPENED, REFUSED = "opened", "refused"
TRACEBACK, CRASHED, HUNG, MEMORY = "traceback", "crashed", "hung", "memory"
OUTCOMES = (OPENED, REFUSED, TRACEBACK, CRASHED, HUNG, MEMORY)


@dataclass(frozen=True)
class Case:
    """The outcome of a case, and the error's message or the place where it was raised."""

    number: int
    outcome: str
    message: str = ""

    @property
    def well(self) -> bool:
        """Whether a user would have nothing to complain about."""
        return self.outcome in (OPENED, REFUSED)


@dataclass
class Trial:
    """Tries cases of a format in `module.FORMATS`, in the process that runs them."""

    module: str
    name: str
    samples: Path
    seed: int
    scratch: Path

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        # What a package starts is in this group, too, and ends with it.
        os.setpgrp()
        self.format = import_module(self.module).FORMATS[self.name]

    def case(self, number: int) -> Case:
        """Damage a copy of a sample, open it, and tell what came out."""
        # Neither the formats that are asked for nor the number of cases changes a case.
        random = np.random.default_rng((self.seed, *self.name.encode(), number))
        folder = self.scratch / "case"
        shutil.rmtree(folder, ignore_errors=True)
        self.format.write_damaged(random, self.samples, folder)
        before = peak_bytes()
        outcome, message = OPENED, ""
        try:
            self.format.use(folder)
        except KvcastError as error:
            outcome, message = REFUSED, str(error)
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            last = ([frame for frame in frames if "kvcast" in frame.filename] or frames)[-1]
            place = f"{Path(last.filename).name}:{last.lineno}"
            outcome, message = TRACEBACK, f"{place} {type(error).__name__}: {str(error)[:150]}"
        if (taken := peak_bytes() - before) > self.format.room:
            return Case(number, MEMORY, f"{taken / 1e9:.1f} GB, then {outcome} {message}")
        return Case(number, outcome, message)


def run(
    name: str,
    samples: Path,
    seed: int,
    numbers: range,
    seconds: float,
    module: str = "mutation.whole",
) -> Iterator[Case]:
    """Yield the outcome of each case of a format in `module.FORMATS`, in order."""
    while numbers:
        with tempfile.TemporaryDirectory(prefix="kvcast-mutation-") as scratch:
            environment = {
                "PYTHONPATH": os.pathsep.join(sys.path),
                "PYTHONWARNINGS": "ignore",
                "TMPDIR": scratch,
                "KVCAST_CACHE": f"{scratch}/cache",
            }
            _share_library(Path(scratch) / "cache")
            trial = Trial(module, name, samples, seed, Path(scratch))
            with Remote(trial, environment) as remote:
                for number in numbers:
                    case = _case(remote, number, seconds)
                    yield case
                    numbers = numbers[1:]
                    if case.outcome in (CRASHED, HUNG, MEMORY):
                        break


def _share_library(cache: Path) -> None:
    """Let cases use the library that is compiled already."""
    with contextlib.suppress(LibraryMissingError):
        cache.mkdir()
        (cache / "native").symlink_to(library_path().parent)


def _case(remote: Remote, number: int, seconds: float) -> Case:
    late = Event()

    def end() -> None:
        late.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(remote.pid, 9)

    timer = Timer(seconds, end)
    timer.start()
    try:
        return remote.call("case", number=number)
    except RemoteError as error:
        if late.is_set():
            return Case(number, HUNG, f"no answer in {seconds:.0f} s")
        return Case(number, CRASHED, str(error))
    finally:
        timer.cancel()
