"""One JSON object for every benchmark; docs/bench.md describes it field by field.

Everything that is shown comes from it. A row is one backend in one trial, measured or broken down.
"""

import os
import platform
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.inspect.roofline import Arithmetic, Cost, best_of
from kvcast.inspect.work import Work
from kvcast.machine.resources import CPU_INFO, available_cores, cpu_entry, instruction_sets
from kvcast_bench.backend import Backend
from kvcast_bench.probes import ENCODE, STEP
from kvcast_bench.runner import Runner
from kvcast_bench.turns import BackendResult, Results, Trial
from kvcast_bench.workload import of_trial

FORMAT = "kvcast.bench"
VERSION = 3
_DESCRIBED = ("name", "precision", "dtype", "settings")


class Floors:
    """A machine's limits: rates, measured before and after the benchmark.

    `measure` makes them, or None, for each name in `step_bytes`: the bytes that a step reads.
    """

    def __init__(
        self, step_bytes: Mapping[str, float], measure: Callable[[int], Mapping[str, float] | None]
    ) -> None:
        self._step_bytes, self._measure = step_bytes, measure
        self._measured: dict[str, list[Mapping[str, float]]] = {}

    @property
    def rates(self) -> list[dict[str, Any]] | None:
        """The best measurement, or None where it should exist and does not."""
        if self._step_bytes and not self._measured:
            return None
        return [
            {"of": of, "step_bytes": round(self._step_bytes[of]), "rates": best_of(rates)}
            for of, rates in self._measured.items()
        ]

    def measure_rates(self) -> None:
        for of, step_bytes in self._step_bytes.items():
            if (rates := self._measure(round(step_bytes))) is not None:
                self._measured.setdefault(of, []).append(rates)

    def least(self, backend: Backend, trial: Trial) -> Mapping[str, float]:  # noqa: ARG002
        """Return the least seconds of each metric of a trial that has a floor."""
        return {}

    def seconds(self, backend: Backend, work: Work) -> float | None:  # noqa: ARG002
        """Return the least seconds of a backend's work, or None where that is not known."""
        return None


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A command's request: model, runner, backends and ratios."""

    name: str  # of the command
    model: str  # as the user called it
    runner: Runner
    backends: Sequence[Backend]  # in the order of the tables
    # By label, the names of the backends that a backend is compared with.
    references: Callable[[Any], Mapping[str, str]] = lambda _: {}
    # Names of kvcast's backends, of which one must take part, and whose time is broken down. Where
    # there are none, anybody may and nobody's is.
    needed: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the command, for the JSON object


def measure(benchmark: Benchmark, floors: Floors | None = None) -> dict[str, Any]:
    """Measure, and return a JSON object.

    `floors` belong to a device other than the CPU. Raises KvcastError with the first reason if none
    of the needed backends can take part.
    """
    runner, workload = benchmark.runner, benchmark.runner.workload
    floors = floors or ProcessorFloors(benchmark)
    floors.measure_rates()
    trials = workload.trials()
    with runner.loaded(benchmark.backends) as (loaded, absent):
        _check_present(benchmark, absent)
        results = runner.turns(loaded, trials)
        ours = [player for player in loaded if player.backend.name in benchmark.needed]
        broken_down = [trial for trial in trials if trial["measure"] == workload.broken_down]
        breakdowns = runner.turns(ours, broken_down, "break_down") if ours else []
    floors.measure_rates()
    return {
        "format": FORMAT,
        "version": VERSION,
        "benchmark": benchmark.name,
        "workload": workload.name,
        "model": benchmark.model,
        "settings": {
            "threads": runner.threads,
            "runs": runner.runs,
            "warm_up": 1,
            **benchmark.settings,
            **workload.settings,
        },
        "machine": machine_facts(),
        "backends": [
            {
                **{name: getattr(player.backend, name) for name in _DESCRIBED},
                **player.facts,
            }
            for player in loaded
        ],
        "absent": [{"name": name, "reason": reason} for name, reason in absent.items()],
        "rows": [
            _row(benchmark, player.backend, trial, results, floors)
            for trial, by_name in results
            for player in loaded
            if player.backend.name in by_name
        ],
        "breakdown": [
            _broken_down(benchmark, player.backend, trial, by_name[player.backend.name], floors)
            for player in ours
            for trial, by_name in breakdowns
        ],
        "rates": floors.rates,
    }


def _check_present(benchmark: Benchmark, absent: Mapping[str, str]) -> None:
    needed = benchmark.needed or [backend.name for backend in benchmark.backends]
    if all(name in absent for name in needed):
        if benchmark.needed:
            raise KvcastError(f"kvcast itself: {absent[needed[0]]}")
        reasons = "; ".join(dict.fromkeys(absent.values()))
        raise KvcastError(f"nothing can be measured: {reasons}")


def _row(
    benchmark: Benchmark, backend: Backend, trial: Trial, results: Results, floors: Floors
) -> dict[str, Any]:
    workload, by_name = benchmark.runner.workload, of_trial(results, trial)
    result, place = by_name[backend.name], {"backend": backend.name, "trial": dict(trial)}
    if not result.stands:
        return {**place, "failure": result.failure}
    others, least = benchmark.references(backend), floors.least(backend, trial)
    return {
        **place,
        "metrics": {
            metric: {
                **_summary(result.series(metric)),
                "times": {
                    label: _ratio(result, by_name.get(other), metric)
                    for label, other in others.items()
                },
                **_held(least.get(metric), median(result.series(metric))),
            }
            for metric in workload.metrics[trial["measure"]]
        },
        "facts": dict(workload.facts(trial, backend.name, results)),
        "peak_bytes": max(result.series("peak_bytes")),
        **result.surroundings(),
    }


def _summary(values: Sequence[float]) -> dict[str, Any]:
    return {"median": median(values), "min": min(values), "max": max(values), "all": list(values)}


def _ratio(result: BackendResult, other: BackendResult | None, metric: str) -> float | None:
    """Return None where the other has no figure, or took no time that the clock shows."""
    if other is None or not other.stands or not (compared := median(other.series(metric))):
        return None
    return median(result.series(metric)) / compared


def _held(least: float | None, measured: float) -> dict[str, float]:
    """Compare with the least; `fraction` is 1 at best."""
    if least is None:
        return {}
    return {"floor": least, "fraction": least / measured if measured else 0.0}


def _broken_down(
    benchmark: Benchmark, backend: Backend, trial: Trial, result: BackendResult, floors: Floors
) -> dict[str, Any]:
    """Return a row of a breakdown, each part of which is held against its calls' work."""
    if not result.stands:
        raise KvcastError(f"no breakdown of {dict(trial)}: {result.failure}")
    workload, calls, inputs = benchmark.runner.workload, result.last["calls"], trial.get("rows", 1)
    counted = workload.counted(trial)
    least: defaultdict[str, list[float]] = defaultdict(list)
    for call in calls:
        if call["part"] == ENCODE:
            work = counted.encode(call["inputs"]) + counted.project(call["inputs"])
        else:
            sizes = {"rows": call["rows"], "asked": call["asked"], "inputs": inputs}
            work = counted.call(call["held"], call["new"], **sizes)
        if (seconds := floors.seconds(backend, work)) is not None:
            least[call["part"]].append(seconds)
    if least:
        least["whole"] = [sum(map(sum, least.values()))]
    again = counted.project(inputs)
    medians = {part: median(result.series(part)) for part in ("whole", *workload.parts)}
    return {
        "backend": backend.name,
        "trial": dict(trial),
        "metrics": {
            part: {
                "median": took,
                "share": took / medians["whole"],
                **(
                    {"calls": len(least[part]), **_held(sum(least[part]), took)}
                    if part in least
                    else {}
                ),
            }
            for part, took in medians.items()
        },
        "facts": {
            "steps": sum(call["part"] == STEP for call in calls),
            "inputs": sum(call.get("inputs", 0) for call in calls),
            "cross_keys_again": floors.seconds(backend, again) if again.operations else None,
        },
        **result.surroundings(),
    }


class ProcessorFloors(Floors):
    """Work against the rates of the processor and its memory."""

    def __init__(self, benchmark: Benchmark) -> None:
        self._workload = benchmark.runner.workload
        # Steps in fewer bits read fewer bytes again and again.
        step = self._workload.step_work
        step_bytes = {
            arithmetic.precision: self._cost(arithmetic, step).bytes
            for backend in benchmark.backends
            if (arithmetic := backend.arithmetic) is not None
        }
        super().__init__(step_bytes, benchmark.runner.rates)

    @override
    def least(self, backend: Backend, trial: Trial) -> Mapping[str, float]:
        works = self._workload.work(trial, backend)
        floors = {metric: self.seconds(backend, work) for metric, work in works.items()}
        return {metric: seconds for metric, seconds in floors.items() if seconds is not None}

    @override
    def seconds(self, backend: Backend, work: Work) -> float | None:
        arithmetic = backend.arithmetic
        if arithmetic is None or arithmetic.precision not in self._measured:
            return None
        return self._cost(arithmetic, work).seconds(best_of(self._measured[arithmetic.precision]))

    def _cost(self, arithmetic: Arithmetic, work: Work) -> Cost:
        return arithmetic.cost(work, self._workload.stored, self._workload.counted({}).width)


# Instructions that decide how fast int8, fp32 and bf16 products are.
_TELLING = (
    *("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimddp", "i8mm"),
)


def machine_facts() -> dict[str, object]:
    """Return the facts of the machine that belong to every figure measured on it.

    The processor's name, the instructions that decide its speed, cores, logical processors, memory
    in bytes, system and Python. Needs psutil.
    """
    import psutil

    instructions = instruction_sets()
    return {
        "cpu": cpu_entry(CPU_INFO, "model name") or platform.processor() or platform.machine(),
        "instructions": [name for name in _TELLING if name in instructions],
        "cores": available_cores(),
        "processors": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
