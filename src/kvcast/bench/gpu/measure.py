"""Models on one device, in turns in this process, to the JSON object of all benchmarks."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch._inductor import select_algorithm
from typing_extensions import override

from kvcast.bench.backend import Backend
from kvcast.bench.gpu.models import random_model
from kvcast.bench.gpu.variants import Compile, variants
from kvcast.bench.probes import STEP
from kvcast.bench.report import Benchmark, Floors, measure
from kvcast.bench.runner import Runner
from kvcast.bench.turns import Trial
from kvcast.bench.workload import Table
from kvcast.bench.workloads.gpu import GpuSteps, TimedModel
from kvcast.errors import KvcastError
from kvcast.lowering.aoti_precision import Precision
from kvcast.machine.device import COPIED, device_facts, memory_rates
from kvcast.machine.remote import Local
from kvcast.work.floor import best_of


def measure_on(
    device: str,
    models: Mapping[str, TimedModel],
    compile_step: Compile,
    *,
    dtype: str,
    runs: int,
    copied: int = COPIED,
) -> tuple[dict[str, Any], Sequence[Table]]:
    """Measure models by name on "cuda" or, for tests, "cpu"; return the JSON object and tables.

    `compile_step` makes kernels of a step, `dtype` is that of weights and caches, and the memory's
    rate is measured with `copied` bytes. Raises KvcastError for models that the device has no room
    for.
    """
    workload = GpuSteps(models=models, dtype=dtype, device=device_facts(device))
    numbers = Precision(dtype=dtype).torch_dtype
    try:
        # What torch notes for its own developers would fill a terminal.
        with (
            patch.object(select_algorithm, "PRINT_AUTOTUNE", new=False),
            warnings.catch_warnings(action="ignore"),
            torch.no_grad(),
        ):
            backends = [
                variant
                for name, timed in models.items()
                for variant in variants(
                    name, random_model(timed, numbers, device), compile_step, dtype=dtype
                )
            ]
            benchmark = Benchmark(
                name="gpu",
                model=" ".join(models),
                runner=Runner(workload=workload, threads=1, runs=runs, host=Local),
                backends=backends,
            )
            floors = _MemoryFloors(workload, device, copied)
            return measure(benchmark, floors), workload.tables()
    except torch.cuda.OutOfMemoryError:
        raise KvcastError(
            "the device has no room for these models: name one with --model"
        ) from None


class _MemoryFloors(Floors):
    """What steps read over the rate of the device's memory."""

    def __init__(self, workload: GpuSteps, device: str, copied: int) -> None:
        read = {trial["model"]: workload.step_bytes(trial) for trial in workload.trials()}
        super().__init__(read, lambda _: memory_rates(device, copied))

    @override
    def least(self, backend: Backend, trial: Trial) -> Mapping[str, float]:
        rates = best_of(self._measured[trial["model"]])
        return {STEP: self._step_bytes[trial["model"]] / max(rates.values())}
