"""What reports of all benchmarks share: a console for text, tables, marks and the machine's line.

Without a terminal the tables are plain text, as wide as they need.
"""

import io
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

BUSY = 0.05
"""Share of the machine that others may use before a figure is marked."""

_WIDE = 200


def render(parts: Iterable[str | Table]) -> str:
    """Return lines and tables as one text."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    file = io.StringIO()
    console = Console(
        file=file,
        force_terminal=is_terminal,
        width=None if is_terminal else _WIDE,
        highlight=False,
        soft_wrap=True,
    )
    for part in parts:
        console.print(part, markup=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def table(first: str, *others: str) -> Table:
    """Begin a table of a column of names and columns of figures."""
    drawn = Table(box=SIMPLE_HEAD)
    drawn.add_column(first, no_wrap=True)
    for name in others:
        drawn.add_column(name, justify="right")
    return drawn


def machine_line(found: Mapping[str, Any]) -> str:
    """Say on what it was measured."""
    machine = found["machine"]
    return (
        f"{machine['cpu']} ({' '.join(machine['instructions'])}), {machine['cores']} cores, "
        f"{found['settings']['threads']} threads each, {machine['system']}, "
        f"Python {machine['python']}"
    )


def contender_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Say who took part and who did not."""
    for contender in found["contenders"]:
        versions = ", ".join(f"{name} {v}" for name, v in contender["versions"].items())
        yield f"{contender['name']}: {versions}; {contender['dtype']}; {contender['settings']}"
    for absent in found["absent"]:
        yield f"{absent['name']}: {absent['reason']}"


def mark(entry: Mapping[str, Any]) -> str:
    """Mark what was measured while others were busy."""
    return " *" if entry["others"] > BUSY or entry["unsettled"] else ""


def remarks(found: Mapping[str, Any]) -> Iterator[str]:
    """Say what the marks mean, where there are any."""
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
    if worst > BUSY:
        yield (
            f"* others used up to {100 * worst:.0f}% of the machine in a turn: "
            "measure again when it is quiet"
        )
    if any(entry["unsettled"] for entry in entries):
        yield "* some turn began on a busy machine"


def limit_cells(held: Mapping[str, Any]) -> list[str]:
    """Return calls, least and measured milliseconds, fraction, and milliseconds a call."""
    return [
        str(held["calls"]),
        f"{1000 * held['floor']:.1f}",
        f"{1000 * held['measured']:.1f}",
        f"{100 * held['fraction']:.0f}%",
        f"{1000 * held['measured'] / max(1, held['calls']):.2f}",
    ]


LIMIT_COLUMNS = ("calls", "least ms", "measured ms", "fraction", "a call ms")


def rates_line(rates: Mapping[str, float], step_bytes: int) -> str:
    """Say what the machine can do."""
    return (
        f"this machine, in this run: reads {rates['read'] / 1e9:.1f} GB/s, a step's "
        f"{step_bytes / 1e6:.0f} MB again and again {rates['read_again'] / 1e9:.1f} GB/s; "
        f"multiplies at {rates['int8'] / 1e12:.2f} (int8) and {rates['fp32'] / 1e12:.2f} (fp32) "
        "tera-operations a second"
    )


NO_FLOOR = "no floor: it needs onnx: pip install 'kvcast[export]'"
