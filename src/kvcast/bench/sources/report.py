"""The document of a text-to-text model's measurement, as people read it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from kvcast.bench import tables
from kvcast.bench.timed import ENCODE, PREFILL, STEP

_SPREAD = ("min", "max", "x kvcast")
_LIMITED = (ENCODE, PREFILL, STEP, "whole")


def render(found: Mapping[str, Any]) -> str:
    """Return all tables and the lines around them."""
    return tables.render(_parts_of(found))


def _parts_of(found: Mapping[str, Any]) -> Iterator[str | Table]:
    settings = found["settings"]
    yield (
        f"model {found['model']}: {settings['source']} tokens of source, {settings['target']} of "
        "target, end tokens held back"
    )
    yield tables.machine_line(found)
    yield (
        f"median of {settings['runs']} after a warm-up, in turns; x kvcast: over kvcast's of the "
        "same precision"
    )
    yield from tables.contender_lines(found)
    yield _targets(found)
    if settings["lengths"]:
        yield _lengths(found)
    yield from tables.remarks(found)
    yield _breakdown(found)
    if found["floor"] is None:
        yield tables.NO_FLOOR
        return
    yield _limits(found)
    for floor in found["floor"]:
        yield f"{floor['name']}: {tables.rates_line(floor['rates'], floor['step_bytes'])}"


def _targets(found: Mapping[str, Any]) -> Table:
    columns = (
        *("precision", "batch", "beam"),
        *("first ms", *_SPREAD),
        *("a step ms", *_SPREAD),
        *("tokens/s", "peak MB", "load s"),
    )
    table = tables.table("contender", *columns)
    settings = found["settings"]
    asked = [(b, k, settings["source"]) for b in settings["batches"] for k in settings["beams"]]
    for contender, result in _results(found, asked):
        facts = (contender["name"], contender["precision"], *map(str, _sizes(result)[:2]))
        if "failure" in result:
            table.add_row(*facts, result["failure"])
            continue
        table.add_row(
            *facts,
            *_spread(result, "first"),
            *_spread(result, "step"),
            f"{result['tokens_per_second']:.1f}",
            f"{result['peak_bytes'] / 1e6:.0f}",
            f"{contender['load_seconds']:.2f}",
        )
    return table


def _lengths(found: Mapping[str, Any]) -> Table:
    """Show what a step costs with sources of other lengths, and what the shortest's costs less."""
    table = tables.table(
        *("greedy, batch 1", "precision", "source", "first ms", "a step ms", *_SPREAD),
        "over the first",
    )
    lengths = found["settings"]["lengths"]
    for contender in found["contenders"]:
        base = None
        for _, result in _results({"contenders": [contender]}, [(1, 1, t) for t in lengths]):
            facts = (contender["name"], contender["precision"], str(result["source"]))
            if "failure" in result:
                table.add_row(*facts, result["failure"])
                continue
            step = result["step_seconds"]["median"]
            base = step if base is None else base
            first = f"{1000 * result['first_seconds']['median']:.2f}"
            table.add_row(*facts, first, *_spread(result, "step"), f"{step / base:.2f}")
    return table


def _results(
    found: Mapping[str, Any], asked: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield contender and result for batch, beams and source of each trial, one by one."""
    for sizes in dict.fromkeys(asked):
        for contender in found["contenders"]:
            for result in contender["results"]:
                if _sizes(result) == sizes:
                    yield contender, result


def _sizes(entry: Mapping[str, Any]) -> tuple[int, int, int]:
    return entry["rows"], entry["beams"], entry["source"]


def _spread(result: Mapping[str, Any], of: str) -> list[str]:
    seconds, ratios = result[f"{of}_seconds"], result["times_kvcast"]
    return [
        f"{1000 * seconds['median']:.2f}{tables.mark(result)}",
        f"{1000 * seconds['min']:.2f}",
        f"{1000 * seconds['max']:.2f}",
        "-" if ratios is None else f"{ratios[of]:.2f}",
    ]


def _breakdown(found: Mapping[str, Any]) -> Table:
    parts = list(found["breakdown"][0]["parts"])
    columns = ("of", "batch", "beam", "source", "whole", *parts, "steps")
    table = tables.table("kvcast's time, ms", *columns)
    for entry in found["breakdown"]:
        facts = (entry["name"], *map(str, _sizes(entry)))
        held = entry["parts"].values()
        whole = f"{1000 * entry['seconds']:.1f}{tables.mark(entry)}"
        milliseconds = (f"{1000 * part['seconds']:.1f}" for part in held)
        table.add_row("median", *facts, whole, *milliseconds, str(entry["steps"]))
        table.add_row("share", *facts, "100.0%", *(f"{100 * p['share']:.1f}%" for p in held))
    return table


def _limits(found: Mapping[str, Any]) -> Table:
    """Show floors; the last column says what cross keys would cost if each step made them again."""
    columns = ("of", "batch", "beam", "source", *tables.LIMIT_COLUMNS, "cross keys again ms")
    table = tables.table("floor", *columns)
    for floor in found["floor"]:
        for entry in floor["targets"]:
            facts = (floor["name"], *map(str, _sizes(entry)))
            for part in _LIMITED:
                again = f"{1000 * entry['cross_keys_again']:.2f}" if part == "step" else ""
                table.add_row(part, *facts, *tables.limit_cells(entry[part]), again)
    return table
