"""Models on one device, in turns in this process, to the JSON object of all benchmarks."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._inductor import select_algorithm
from typing_extensions import override

from kvcast.bench.backend import Backend
from kvcast.bench.floor import best_of
from kvcast.bench.gpu.device import COPIED, device_facts, memory_rates
from kvcast.bench.gpu.models import DTYPES, Published, random_model
from kvcast.bench.gpu.variants import Compile, GpuVariant, variants
from kvcast.bench.probes import STEP
from kvcast.bench.report import Benchmark, Floors, measure
from kvcast.bench.runner import Runner
from kvcast.bench.schedule import Trial
from kvcast.bench.workload import Table
from kvcast.bench.workloads.gpu import GpuSteps
from kvcast.errors import KvcastError
from kvcast.machine.remote import Local
from kvcast.work import work_of
from kvcast.work.base import Work


def measure_on(
    device: str,
    models: Mapping[str, Published],
    compile_step: Compile,
    *,
    dtype: str,
    runs: int,
    copied: int = COPIED,
) -> tuple[dict[str, Any], Sequence[Table]]:
    """Measure models and return the JSON object, and its tables.

    Args:
        device: "cuda" or, for tests, "cpu".
        models: by name.
        compile_step: makes kernels of a step.
        dtype: of weights and caches.
        runs: after one to warm up.
        copied: bytes to measure the memory's rate with.

    Raises:
        KvcastError: models that the device has no room for.

    """
    texts = {name: (work_of(one.dimensions), one.prompt, one.new) for name, one in models.items()}
    workload = GpuSteps(texts=texts, device=device_facts(device))
    with _on_device():
        made = {
            name: random_model(one.dimensions, one.prompt, DTYPES[dtype], device)
            for name, one in models.items()
        }
        backends = [
            variant
            for name, model in made.items()
            for variant in variants(name, model, compile_step, new=models[name].new, dtype=dtype)
        ]
        benchmark = Benchmark(
            name="gpu",
            model=" ".join(models),
            runner=Runner(workload=workload, threads=1, runs=runs, host=Local),
            backends=backends,
            settings={"dtype": dtype},
        )
        floors = _MemoryFloors(partial(memory_rates, device, copied), backends)
        return measure(benchmark, floors), workload.tables()


class _MemoryFloors(Floors):
    """What steps read over the rate of the device's memory."""

    def __init__(
        self, measure_memory: Callable[[], Mapping[str, float]], backends: Sequence[GpuVariant]
    ) -> None:
        self._measure_memory = measure_memory
        self._bytes = {backend.of: backend.step_bytes for backend in backends}
        self._measured: list[Mapping[str, float]] = []

    @property
    @override
    def rates(self) -> list[dict[str, Any]]:
        rates = best_of(self._measured)
        return [
            {"of": name, "step_bytes": round(read), "rates": rates}
            for name, read in self._bytes.items()
        ]

    @override
    def measure_rates(self) -> None:
        self._measured.append(self._measure_memory())

    @override
    def least(self, backend: Backend, trial: Trial) -> Mapping[str, float]:
        return {STEP: self._bytes[trial["model"]] / max(best_of(self._measured).values())}

    @override
    def seconds(self, backend: Backend, work: Work) -> float | None:
        return None


@contextmanager
def _on_device() -> Iterator[None]:
    """Compute without gradients, and keep notes for torch's own developers from a terminal."""
    printed = select_algorithm.PRINT_AUTOTUNE
    select_algorithm.PRINT_AUTOTUNE = False
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except torch.cuda.OutOfMemoryError:
        raise KvcastError(
            "the device has no room for these models: name one with --model"
        ) from None
    finally:
        select_algorithm.PRINT_AUTOTUNE = printed
