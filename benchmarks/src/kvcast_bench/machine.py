"""The machine at a benchmark's turn: the checkout that is timed, a torch device, and the idle gate.

The thread pools of OpenMP and ONNX Runtime spin for a while after their work is done, so a turn
that begins too early shares its cores with the turn before. A turn begins only when all threads
have stopped and the machine is idle; the load of other processes during a turn is recorded.

Every worker's process imports this: torch, which would count as its backend's memory, is imported
inside functions.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar


class Subject:
    """A model in a process that imports one checkout's kvcast, through its public API alone."""

    def __init__(self, model: str, threads: int, inputs: Mapping[str, Any]) -> None:
        self._model, self._threads, self._inputs = model, threads, inputs
        self._opened: Any = None

    def load(self) -> str:
        """Open the model; return the folder that kvcast was imported from."""
        import kvcast

        self._opened = kvcast.load(self._model, quantize="int8", threads=self._threads)
        return str(Path(kvcast.__file__).parent)

    def transcribe(self, beam: int) -> dict[str, Any]:
        start = time.perf_counter()
        segments = self._opened.transcribe(
            self._inputs["samples"],
            language="en",
            beam=beam,
            temperature=0.0,
            condition_on_previous_text=False,
        )
        output = "".join(segment.text for segment in segments)
        return {"transcribe": time.perf_counter() - start, "output": output}

    def generate(self, new: int) -> dict[str, Any]:
        text = self._opened.generate(
            self._inputs["prompt"], max_new_tokens=new, min_new_tokens=new, temperature=0.0
        )
        timings = text.timings
        return {
            "first token": timings.first_token,
            "step": timings.per_token,
            "output": list(text.tokens),
        }


COPIED = 4 * 2**30
"""Bytes that no cache of a device holds."""

_TRIES = 10


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Return the seconds from when the device begins the work to when it has done it.

    On CUDA by events in the stream, so waiting for the host to launch more counts and the way
    there and back does not.
    """
    if not device.startswith("cuda"):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    import torch

    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    before.record()
    work()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) / 1000


def memory_rates(device: str, size: int = COPIED) -> dict[str, float]:
    """Return bytes a second: `copy` (read and written bytes both count) and `read` alone.

    The best of several tries, since it is used as a floor.
    """
    import torch

    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    copying, reading = (
        min(seconds_of(work, device) for _ in range(1 + _TRIES))
        for work in (lambda: target.copy_(source), source.sum)
    )
    return {"copy": 2 * size / copying, "read": size / reading}


def device_facts(device: str) -> dict[str, Any]:
    """Return its name, and a CUDA device's properties that decide its speed, None if unknown."""
    if not device.startswith("cuda"):
        return {"name": device, **dict.fromkeys(("capability", "memory_bytes", "driver", "cuda"))}
    import torch

    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "driver": _driver(),
        "cuda": torch.version.cuda,
    }


def _driver() -> str | None:
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return answer.stdout.splitlines()[0].strip() if answer.stdout else None


WINDOW = 0.1
"""Seconds of each look; the system counts in hundredths, so a spinning thread uses about ten."""

PATIENCE = 20.0
"""Seconds after which a turn begins although the machine is not idle, and is marked."""

IDLE = 0.06
"""Share of the machine that may be in use: with two cores, a hundredth of a second in a window."""

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class IdleGate:
    pids: Sequence[int]

    def settle(self) -> bool:
        """Wait until the processes use no processor and others next to none; False if in vain."""
        import psutil

        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            before = list(map(cpu_seconds, self.pids))
            share = psutil.cpu_percent(WINDOW) / 100
            if before == list(map(cpu_seconds, self.pids)) and share <= IDLE:
                return True
        return False

    def watch(self, turn: Callable[[], AnswerT]) -> tuple[AnswerT, float]:
        """Take the turn; return its answer and the share of the machine used by others."""
        import psutil

        psutil.cpu_percent()  # the next call answers for the time since this one
        start, own = time.monotonic(), self._ours()
        answer = turn()
        own, seconds = self._ours() - own, time.monotonic() - start
        share = own / seconds / (os.cpu_count() or 1)
        return answer, max(0.0, psutil.cpu_percent() / 100 - share)

    def _ours(self) -> float:
        return sum(map(cpu_seconds, {*self.pids, os.getpid()}))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and its ended children have used so far.

    It is 0 for a process that has ended.
    """
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    ended = times.children_user + times.children_system  # of children that were waited for
    return float(times.user + times.system + ended)
