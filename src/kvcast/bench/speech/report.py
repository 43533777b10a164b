"""The document of `kvcast bench transcribe`, as people read it."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from kvcast.bench import tables


def render(found: Mapping[str, Any]) -> str:
    """Return all tables and the lines around them."""
    return tables.render(_parts_of(found))


def _parts_of(found: Mapping[str, Any]) -> Iterator[str | Table]:
    yield from _heading(found)
    yield from tables.contender_lines(found)
    yield _times(found)
    yield from tables.remarks(found)
    yield _parts(found)
    if found["floor"] is None:
        yield tables.NO_FLOOR
        return
    yield _limits(found)
    yield tables.rates_line(found["floor"]["rates"], found["floor"]["step_bytes"])


def _heading(found: Mapping[str, Any]) -> Iterator[str]:
    settings, audio = found["settings"], found["audio"]
    yield (
        f"{audio['name']}, {audio['seconds']:.2f} s, model {found['model']}, "
        f"language {settings['language']}"
    )
    yield tables.machine_line(found)
    yield (
        f"median of {settings['runs']} after a warm-up, in turns; temperature 0, no fallback, "
        "timestamps, no prompt; samples in memory to text"
    )


def _times(found: Mapping[str, Any]) -> Table:
    columns = ("beam", "median s", "min", "max", "x kvcast", "word error")
    table = tables.table("contender", *columns, "peak MB", "load s", "import s")
    for beam in found["settings"]["beams"]:
        for contender in found["contenders"]:
            (result,) = (r for r in contender["results"] if r["beam"] == beam)
            table.add_row(contender["name"], str(beam), *_cells(contender, result))
    return table


def _cells(contender: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    if "failure" in result:
        return [result["failure"]]
    seconds = result["seconds"]
    ratio, word_error = result["times_kvcast"], result["word_error"]
    return [
        f"{seconds['median']:.3f}{tables.mark(result)}",
        f"{seconds['min']:.3f}",
        f"{seconds['max']:.3f}",
        "-" if ratio is None else f"{ratio:.2f}",
        "-" if word_error is None else f"{100 * word_error:.1f}%",
        f"{result['peak_bytes'] / 1e6:.0f}",
        f"{contender['load_seconds']:.2f}",
        f"{contender['import_seconds']:.2f}",
    ]


def _parts(found: Mapping[str, Any]) -> Table:
    names = list(found["breakdown"][0]["parts"])
    table = tables.table("kvcast's time, ms", "beam", "whole", *names, "windows", "steps")
    for entry in found["breakdown"]:
        parts = entry["parts"].values()
        beam, whole = str(entry["beam"]), f"{1000 * entry['seconds']:.1f}{tables.mark(entry)}"
        counts = (str(entry["windows"]), str(entry["steps"]))
        table.add_row(
            "median", beam, whole, *(f"{1000 * p['seconds']:.1f}" for p in parts), *counts
        )
        table.add_row("share", beam, "100.0%", *(f"{100 * p['share']:.1f}%" for p in parts))
    return table


def _limits(found: Mapping[str, Any]) -> Table:
    table = tables.table("floor", "beam", *tables.LIMIT_COLUMNS)
    for entry in found["floor"]["beams"]:
        for part in ("encode", "prefill", "step", "whole"):
            table.add_row(part, str(entry["beam"]), *tables.limit_cells(entry[part]))
    return table
