"""The document of a measurement, as people read it: tables, drawn by rich.

Without a terminal the tables are plain text, as wide as they need.
"""

import io
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_BUSY = 0.05
"""Share of the machine that others may use before a figure is marked."""

_WIDE = 200


def render(found: Mapping[str, Any]) -> str:
    """Return all tables and the lines around them."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    file = io.StringIO()
    console = Console(
        file=file,
        force_terminal=is_terminal,
        width=None if is_terminal else _WIDE,
        highlight=False,
        soft_wrap=True,
    )
    for line in _heading(found):
        console.print(line, markup=False)
    console.print(_times(found))
    for line in _remarks(found):
        console.print(line, markup=False)
    console.print(_parts(found))
    if found["floor"] is not None:
        console.print(_limits(found))
        console.print(_rates(found["floor"]), markup=False)
    else:
        console.print("no floor: it needs onnx: pip install 'kvcast[export]'", markup=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _heading(found: Mapping[str, Any]) -> Iterator[str]:
    machine, settings, audio = found["machine"], found["settings"], found["audio"]
    yield (
        f"{audio['name']}, {audio['seconds']:.2f} s, model {found['model']}, "
        f"language {settings['language']}"
    )
    yield (
        f"{machine['cpu']} ({' '.join(machine['instructions'])}), {machine['cores']} cores, "
        f"{settings['threads']} threads each, {machine['system']}, Python {machine['python']}"
    )
    yield (
        f"median of {settings['runs']} after a warm-up, in turns; temperature 0, no fallback, "
        "timestamps, no prompt; samples in memory to text"
    )
    for contender in found["contenders"]:
        versions = ", ".join(f"{name} {v}" for name, v in contender["versions"].items())
        yield f"{contender['name']}: {versions}; {contender['dtype']}; {contender['settings']}"
    for absent in found["absent"]:
        yield f"{absent['name']}: {absent['reason']}"


def _times(found: Mapping[str, Any]) -> Table:
    columns = ("beam", "median s", "min", "max", "x kvcast", "word error")
    table = _table("contender", *columns, "peak MB", "load s", "import s")
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
        f"{seconds['median']:.3f}{_mark(result)}",
        f"{seconds['min']:.3f}",
        f"{seconds['max']:.3f}",
        "-" if ratio is None else f"{ratio:.2f}",
        "-" if word_error is None else f"{100 * word_error:.1f}%",
        f"{result['peak_bytes'] / 1e6:.0f}",
        f"{contender['load_seconds']:.2f}",
        f"{contender['import_seconds']:.2f}",
    ]


def _mark(entry: Mapping[str, Any]) -> str:
    """Mark what was measured while others were busy."""
    return " *" if entry["others"] > _BUSY or entry["unsettled"] else ""


def _remarks(found: Mapping[str, Any]) -> Iterator[str]:
    entries = [
        *found["breakdown"],
        *(
            result
            for contender in found["contenders"]
            for result in contender["results"]
            if "failure" not in result
        ),
    ]
    worst = max(entry["others"] for entry in entries)
    if worst > _BUSY:
        yield (
            f"* others used up to {100 * worst:.0f}% of the machine in a turn: "
            "measure again when it is quiet"
        )
    if any(entry["unsettled"] for entry in entries):
        yield "* some turn began on a busy machine"


def _parts(found: Mapping[str, Any]) -> Table:
    names = list(found["breakdown"][0]["parts"])
    table = _table("kvcast's time, ms", "beam", "whole", *names, "windows", "steps")
    for entry in found["breakdown"]:
        parts = entry["parts"].values()
        beam, whole = str(entry["beam"]), f"{1000 * entry['seconds']:.1f}{_mark(entry)}"
        counts = (str(entry["windows"]), str(entry["steps"]))
        table.add_row(
            "median", beam, whole, *(f"{1000 * p['seconds']:.1f}" for p in parts), *counts
        )
        table.add_row("share", beam, "100.0%", *(f"{100 * p['share']:.1f}%" for p in parts))
    return table


def _limits(found: Mapping[str, Any]) -> Table:
    table = _table("floor", "beam", "calls", "least ms", "measured ms", "fraction", "a call ms")
    for entry in found["floor"]["beams"]:
        for part in ("encode", "prefill", "step", "whole"):
            held = entry[part]
            table.add_row(
                part,
                str(entry["beam"]),
                str(held["calls"]),
                f"{1000 * held['floor']:.1f}",
                f"{1000 * held['measured']:.1f}",
                f"{100 * held['fraction']:.0f}%",
                f"{1000 * held['measured'] / max(1, held['calls']):.2f}",
            )
    return table


def _rates(floor: Mapping[str, Any]) -> str:
    rates = floor["rates"]
    return (
        f"this machine, in this run: reads {rates['read'] / 1e9:.1f} GB/s, a step's "
        f"{floor['step_bytes'] / 1e6:.0f} MB again and again {rates['read_again'] / 1e9:.1f} GB/s; "
        f"multiplies at {rates['int8'] / 1e12:.2f} (int8) and {rates['fp32'] / 1e12:.2f} (fp32) "
        "tera-operations a second"
    )


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table
