"""The JSON object that a measurement ends with; docs/bench.md describes it field by field.

Everything that is shown comes from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kvcast.bench.arena import Seat
from kvcast.bench.cost import best_of
from kvcast.bench.figures import absent_facts, seat_facts, summary, surroundings
from kvcast.bench.machine import machine_facts
from kvcast.bench.runtimes.contenders import Cached
from kvcast.bench.runtimes.forms import REFERENCE, Form
from kvcast.bench.runtimes.plan import Plan
from kvcast.bench.turns import Result

FORMAT = "kvcast.bench.runtimes"
VERSION = 1


@dataclass(frozen=True)
class Measured:
    """All that was found out.

    `results` are by measure, then by contender's name; `contenders` has everybody who was asked
    for; `rates` are of the machine, several by precision, or None without `onnx`.
    """

    contenders: Sequence[Cached]
    seats: Sequence[Seat]
    absent: Mapping[str, str]
    results: Mapping[str, Mapping[str, Result]]
    rates: Mapping[str, Sequence[Mapping[str, float]]] | None


def document(
    measured: Measured, plan: Plan, *, model: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the object, of numbers, strings, lists and objects alone."""
    by_name = {contender.name: contender for contender in measured.contenders}
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": model,
        "settings": {**settings, **plan.settings, "warm_up": 1},
        "machine": machine_facts(),
        "figures": [{"figure": figure, "of": words} for figure, words in plan.work.items()],
        "contenders": [
            {
                **seat_facts(seat),
                "runtime": by_name[seat.name].form.runtime,
                "precision": by_name[seat.name].form.precision,
                "recomputes": by_name[seat.name].recomputes,
                "results": [
                    _result(figure, by_name[seat.name], measured, plan) for figure in plan.figures
                ],
            }
            for seat in measured.seats
        ],
        "absent": absent_facts(measured.absent),
        "rates": None
        if measured.rates is None
        else [
            {
                "precision": precision,
                "step_bytes": step_bytes(plan, precision),
                **best_of(found)[0],
            }
            for precision, found in measured.rates.items()
        ],
    }


def step_bytes(plan: Plan, precision: str) -> int:
    """Return what one token's call reads at least, with caches."""
    costs = plan.costs(Form(runtime=REFERENCE, precision=precision), recomputes=False)
    return round(costs[plan.step].bytes)


def _result(figure: str, contender: Cached, measured: Measured, plan: Plan) -> dict[str, Any]:
    by_name = measured.results[plan.figures[figure]]
    result = by_name[contender.name]
    if not result.stands:
        return {"figure": figure, "failure": result.failure}
    form, times = contender.form, result.series(figure)
    same = Form(runtime=REFERENCE, precision=form.precision)
    least = _least(figure, contender, measured, plan)
    return {
        "figure": figure,
        "seconds": summary(times),
        "times_onnx": _ratio(times, by_name.get(same.name), figure),
        "times_cached": _ratio(times, by_name.get(form.name), figure)
        if contender.recomputes
        else None,
        "floor": least,
        "fraction": None if least is None else least / median(times),
        "peak_bytes": max(result.series("peak_bytes")),
        **plan.facts(figure, result.last),
        **surroundings(result),
    }


def _ratio(times: Sequence[float], other: Result | None, figure: str) -> float | None:
    if other is None or not other.stands:
        return None
    return median(times) / median(other.series(figure))


def _least(figure: str, contender: Cached, measured: Measured, plan: Plan) -> float | None:
    cost = plan.costs(contender.form, recomputes=contender.recomputes).get(figure)
    if cost is None or measured.rates is None:
        return None
    _, rates = best_of(measured.rates[contender.form.precision])
    return cost.seconds(rates)
