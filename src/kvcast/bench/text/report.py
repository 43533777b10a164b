"""The document of `kvcast bench generate`, as people read it."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from kvcast.bench import tables
from kvcast.bench.text.document import POSITION, TEXT

_SPREAD = ("median", "min", "max", "x kvcast")


def render(found: Mapping[str, Any]) -> str:
    """Return all tables and the lines around them."""
    return tables.render(_parts_of(found))


def _parts_of(found: Mapping[str, Any]) -> Iterator[str | Table]:
    yield from _heading(found)
    yield from tables.contender_lines(found)
    yield _texts(found)
    if found["settings"]["positions"]:
        yield _positions(found)
    yield from tables.remarks(found)
    yield _parts(found)
    if found["floor"] is None:
        yield tables.NO_FLOOR
        return
    yield _limits(found)
    for floor in found["floor"]:
        yield f"{floor['name']}: {tables.rates_line(floor['rates'], floor['step_bytes'])}"


def _heading(found: Mapping[str, Any]) -> Iterator[str]:
    settings = found["settings"]
    yield (
        f"model {found['model']}: {settings['prompt']} tokens of prompt, {settings['new']} after "
        "the first, greedy, end tokens ignored"
    )
    yield tables.machine_line(found)
    yield (
        f"median of {settings['runs']} after a warm-up, in turns; x kvcast: over kvcast's of the "
        "same precision; rings: a model of the same sizes with random weights and a window of "
        f"{settings['window']}"
    )


def _results(
    found: Mapping[str, Any], measure: str
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield contender and result, those of one trial together."""
    everything = [
        (contender, result)
        for contender in found["contenders"]
        for result in contender["results"]
        if result["measure"] == measure
    ]
    yield from sorted(everything, key=lambda pair: (pair[1]["rows"], pair[1]["prompt"]))


def _texts(found: Mapping[str, Any]) -> Table:
    columns = (
        *("precision", "batch"),
        *("first ms", *_SPREAD[1:]),
        *("a step ms", *_SPREAD[1:]),
        *("tokens/s", "peak MB", "load s", "import s"),
    )
    table = tables.table("contender", *columns)
    for contender, result in _results(found, TEXT):
        name, facts = contender["name"], [contender["precision"], str(result["rows"])]
        if "failure" in result:
            table.add_row(name, *facts, result["failure"])
            continue
        table.add_row(
            name,
            *facts,
            *_spread(result, "first"),
            *_spread(result, "step"),
            f"{result['tokens_per_second']:.1f}",
            f"{result['peak_bytes'] / 1e6:.0f}",
            f"{contender['load_seconds']:.2f}",
            f"{contender['import_seconds']:.2f}",
        )
    return table


def _positions(found: Mapping[str, Any]) -> Table:
    table = tables.table("contender", "precision", "position", "a step ms", *_SPREAD[1:], "peak MB")
    for contender, result in _results(found, POSITION):
        facts = (contender["name"], contender["precision"], str(result["prompt"]))
        if "failure" in result:
            table.add_row(*facts, result["failure"])
            continue
        table.add_row(*facts, *_spread(result, "step"), f"{result['peak_bytes'] / 1e6:.0f}")
    return table


def _spread(result: Mapping[str, Any], of: str) -> list[str]:
    seconds, ratios = result[f"{of}_seconds"], result["times_kvcast"]
    return [
        f"{1000 * seconds['median']:.2f}{tables.mark(result)}",
        f"{1000 * seconds['min']:.2f}",
        f"{1000 * seconds['max']:.2f}",
        "-" if ratios is None else f"{ratios[of]:.2f}",
    ]


def _parts(found: Mapping[str, Any]) -> Table:
    parts = list(found["breakdown"][0]["parts"])
    table = tables.table("kvcast's time, ms", "of", "batch", "whole", *parts, "steps")
    for entry in found["breakdown"]:
        name, rows, held = entry["name"], str(entry["rows"]), entry["parts"].values()
        whole = f"{1000 * entry['seconds']:.1f}{tables.mark(entry)}"
        milliseconds = (f"{1000 * part['seconds']:.1f}" for part in held)
        table.add_row("median", name, rows, whole, *milliseconds, str(entry["steps"]))
        table.add_row("share", name, rows, "100.0%", *(f"{100 * p['share']:.1f}%" for p in held))
    return table


def _limits(found: Mapping[str, Any]) -> Table:
    table = tables.table("floor", "of", "batch", *tables.LIMIT_COLUMNS)
    for floor in found["floor"]:
        for entry in floor["texts"]:
            for part in ("prefill", "step", "whole"):
                rows = str(entry["rows"])
                table.add_row(part, floor["name"], rows, *tables.limit_cells(entry[part]))
        for entry in floor["positions"]:
            part = f"step at {entry['position']}"
            table.add_row(part, floor["name"], "1", *tables.limit_cells(entry))
    return table
