"""Runs cases in a process of their own, so that a crash or a hang is an outcome like any other."""

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from mutation.whole import FORMATS, Format

OPENED, REFUSED = "opened", "refused"
TRACEBACK, CRASHED, HUNG, MEMORY = "traceback", "crashed", "hung", "memory"
OUTCOMES = (OPENED, REFUSED, TRACEBACK, CRASHED, HUNG, MEMORY)


@dataclass(frozen=True)
class Case:
    """What became of a case; `what` is the error's message, or where it was raised."""

    number: int
    outcome: str
    what: str = ""

    @property
    def well(self) -> bool:
        """Whether a user would have nothing to complain about."""
        return self.outcome in (OPENED, REFUSED)


def run(
    name: str,
    samples: Path,
    seed: int,
    numbers: range,
    seconds: float,
    module: str = "mutation.whole",
) -> Iterator[Case]:
    """Yield the outcome of each case of a format in `module.FORMATS`, in order."""
    first = numbers.start
    while first < numbers.stop:
        words = [module, name, str(samples), str(seed), str(first), str(numbers.stop)]
        with tempfile.TemporaryDirectory(prefix="kvcast-mutation-") as scratch:
            worker = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", _WORKER, *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                env=os.environ
                | {
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    "TMPDIR": scratch,
                    "KVCAST_CACHE": f"{scratch}/cache",
                },
                start_new_session=True,
            )
            for case in _outcomes(worker, first, numbers.stop, seconds):
                yield case
                first = case.number + 1


_WORKER = "import sys; from mutation.runner import work; work(*sys.argv[1:])"


def _outcomes(
    worker: subprocess.Popen[bytes], first: int, stop: int, seconds: float
) -> Iterator[Case]:
    """Yield what a worker tells, until it is done or a case has ended it."""
    assert worker.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        worker.stdout.readline()  # imports are done; at the end of the stream the first case tells
        for number in range(first, stop):
            if not selector.select(seconds):
                os.killpg(worker.pid, 9)
                worker.communicate()
                yield Case(number, HUNG, f"no answer in {seconds:.0f} s")
                return
            line = worker.stdout.readline()
            if not line:
                worker.communicate()
                code = worker.returncode
                yield Case(number, CRASHED, f"signal {-code}" if code < 0 else f"code {code}")
                return
            case = Case(**json.loads(line))
            yield case
            if case.outcome == MEMORY:
                break
    worker.communicate()


def work(module: str, name: str, samples: str, seed: str, first: str, stop: str) -> None:
    """Try cases one after the other, and tell on what was standard output."""
    kind = import_module(module).FORMATS[name]
    told = os.fdopen(os.dup(1), "w", buffering=1)
    print("ready", file=told)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(int(first), int(stop)):
            # Neither the formats that are asked for nor the number of cases changes a case.
            random = np.random.default_rng((int(seed), *name.encode(), number))
            case = _try(kind, number, random, Path(samples), Path(scratch) / "case")
            print(json.dumps(asdict(case)), file=told)
            if case.outcome == MEMORY:
                break


def _try(
    kind: Format, number: int, random: np.random.Generator, samples: Path, folder: Path
) -> Case:
    from kvcast.errors import KvcastError
    from kvcast_bench.worker import peak_bytes

    shutil.rmtree(folder, ignore_errors=True)
    kind.write_damaged(random, samples, folder)
    before = peak_bytes()
    outcome, what = OPENED, ""
    try:
        kind.use(folder)
    except KvcastError as error:
        outcome, what = REFUSED, str(error)
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "kvcast" in frame.filename] or frames
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        outcome, what = TRACEBACK, f"{place} {type(error).__name__}: {str(error)[:150]}"
    if (taken := peak_bytes() - before) > kind.room:
        return Case(number, MEMORY, f"{taken / 1e9:.1f} GB, then {outcome} {what}")
    return Case(number, outcome, what)


@contextlib.contextmanager
def samples_of(names: list[str], kept: Path | None = None) -> Iterator[dict[str, Path]]:
    """Write whole samples of formats, once for those that share them.

    In a folder `kept` they stay, and those that are there already are taken as they are.
    """
    with tempfile.TemporaryDirectory(prefix="kvcast-mutation-") as scratch:
        folder = kept or Path(scratch)
        for name in names:
            samples = folder / FORMATS[name].samples
            if not samples.exists():
                _make(FORMATS[name].make, samples)
        yield {name: folder / FORMATS[name].samples for name in names}


def _make(make: Callable[[Path], None], samples: Path) -> None:
    from kit.models import share

    half = samples.with_name(f"{samples.name}.half")
    half.mkdir(parents=True)
    share(half.parent)
    make(half)
    half.rename(samples)
