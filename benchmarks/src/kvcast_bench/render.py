"""The JSON object of a benchmark, as people read it: lines and tables.

Without a terminal the tables are plain text, as wide as they need.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Drawn

from kvcast_bench.workload import Table

BUSY = 0.05
"""Share of the machine that other programs may use before a figure is marked."""

Document = Mapping[str, Any]
"""The JSON object, or a part of it."""

_WIDE = 300
_LIMITS = ("calls", "least ms", "measured ms", "fraction", "a call ms")


def render(document: Document, tables: Sequence[Table]) -> str:
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    console = Console(
        force_terminal=is_terminal,
        width=None if is_terminal else _WIDE,
        highlight=False,
        soft_wrap=True,
    )
    with console.capture() as shown:
        for part in _parts(document, tables):
            console.print(part, markup=False)
    return "\n".join(line.rstrip() for line in shown.get().splitlines())


def _parts(document: Document, tables: Sequence[Table]) -> Iterator[str | Drawn]:
    settings = "; ".join(f"{name} {_said(value)}" for name, value in document["settings"].items())
    yield f"kvcast bench {document['benchmark']}, model {document['model']}: {settings}"
    yield "medians after a warm-up, backends in turns, each with the machine to itself"
    machine = document["machine"]
    yield (
        f"{machine['cpu']} ({' '.join(machine['instructions'])}), {machine['cores']} cores, "
        f"{machine['system']}, Python {machine['python']}"
    )
    for backend in document["backends"]:
        versions = ", ".join(f"{name} {v}" for name, v in backend["versions"].items())
        yield f"{backend['name']}: {versions}; {backend['dtype']}; {backend['settings']}"
    for absent in document["absent"]:
        yield f"{absent['name']}: {absent['reason']}"
    for table in tables:
        if table.line is not None:
            yield f"\n{table.line}"
        yield _measured(document, table)
    yield from _remarks(document)
    places = {field: head for table in tables for head, field in table.places.items()}
    if document["breakdown"]:
        yield _breakdown(document, places)
    if document["rates"] is None:
        yield "no floor: kvcast's own kernels, which measure it, do not run here: `kvcast doctor`"
        return
    if document["breakdown"]:
        yield _floors(document, places, tables)
    yield from map(_rates, document["rates"])


def _said(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_said(part)}" for name, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _shown(value: float | None, number: str = ".2f", factor: float = 1) -> str:
    """Return a number times `factor` as `number` formats it, or a dash for None."""
    return "-" if value is None else format(value * factor, number)


def _measured(document: Document, table: Table) -> Drawn:
    backends = {backend["name"]: backend for backend in document["backends"]}
    rows = [row for row in document["rows"] if row["trial"] in table.trials]
    if table.by_backend:
        rows.sort(key=lambda row: list(backends).index(row["backend"]))
    metrics = [row["metrics"][name] for row in rows if "metrics" in row for name in table.metrics]
    compared = list(dict.fromkeys(label for metric in metrics for label in metric["times"]))
    heads = []
    for title in table.metrics.values():
        heads += [title, "min", "max", *(f"x {label}" for label in compared)]
        heads += ["least ms", "of least"] if table.floors else []
    last = ("peak MB", "load s", "import s")
    drawn = _table("backend", "precision", *table.places, *heads, *table.facts, *last)
    for row in rows:
        backend = backends[row["backend"]]
        places = (str(row["trial"][field]) for field in table.places.values())
        cells = [row["failure"]] if "failure" in row else _cells(row, backend, table, compared)
        drawn.add_row(row["backend"], backend["precision"], *places, *cells)
    return drawn


def _cells(
    row: Document, backend: Document, table: Table, compared: Sequence[str]
) -> Iterator[str]:
    for name in table.metrics:
        metric = row["metrics"][name]
        middle, *ends = (
            _shown(metric[which], table.number, table.factor) for which in ("median", "min", "max")
        )
        yield from (middle + _mark(row), *ends)
        yield from (_shown(metric["times"].get(label)) for label in compared)
        if table.floors:
            yield _shown(metric.get("floor"), factor=1000)
            yield _shown(metric.get("fraction"), ".0%")
    yield from (_shown(row["facts"].get(fact), number) for fact, number in table.facts.values())
    yield f"{row['peak_bytes'] / 1e6:.0f}"
    yield from (_shown(backend[f"{name}_seconds"]) for name in ("load", "import"))


def _breakdown(document: Document, places: Document) -> Drawn:
    """Show kvcast's time by part: medians, and shares of the whole."""
    parts = list(document["breakdown"][0]["metrics"])
    drawn = _table("kvcast's time, ms", "of", *places.values(), *parts, "inputs", "steps")
    for row in document["breakdown"]:
        of, metrics = _of(row, places), row["metrics"].values()
        first, *others = (_shown(metric["median"], ".1f", 1000) for metric in metrics)
        counts = (str(row["facts"][count]) for count in ("inputs", "steps"))
        drawn.add_row("median", *of, first + _mark(row), *others, *counts)
        drawn.add_row("share", *of, *(_shown(metric["share"], ".1%") for metric in metrics))
    return drawn


def _floors(document: Document, places: Document, tables: Sequence[Table]) -> Drawn:
    """Show the least time of each part, and each measured row that has a limit.

    The last column is the cost of cross-attention keys if each step recomputed them.
    """
    drawn = _table("floor", "of", *places.values(), *_LIMITS, "cross keys again ms")
    for row in document["breakdown"]:
        held = {part: metric for part, metric in row["metrics"].items() if "calls" in metric}
        for part in sorted(held, key="whole".__eq__):  # the whole comes last
            again = row["facts"].get("cross_keys_again") if part == "step" else None
            drawn.add_row(part, *_of(row, places), *_limit(held[part]), _shown(again, factor=1000))
    for table in tables:
        for row in document["rows"] if table.limit else ():
            for metric in row.get("metrics", {}).values() if row["trial"] in table.trials else ():
                if "floor" in metric:
                    name = table.limit.format(**row["trial"])
                    drawn.add_row(name, *_of(row, places), *_limit({**metric, "calls": 1}))
    return drawn


def _of(row: Document, places: Document) -> list[str]:
    return [row["backend"], *(str(row["trial"].get(field, "")) for field in places)]


def _limit(held: Document) -> list[str]:
    return [
        str(held["calls"]),
        *(_shown(held[which], ".1f", 1000) for which in ("floor", "median")),
        _shown(held["fraction"], ".0%"),
        _shown(held["median"] / max(1, held["calls"]), factor=1000),
    ]


def _rates(document: Document) -> str:
    """Describe the machine's speed: memory and products, or a device's memory."""
    rates, step = document["rates"], f"a step's {document['step_bytes'] / 1e6:.0f} MB"
    if "copy" in rates:
        return (
            f"{step}; the device's memory, in this run: copies {rates['copy'] / 1e9:.0f} GB/s "
            f"(read and written), reads {rates['read'] / 1e9:.0f} GB/s"
        )
    return (
        f"{document['of']}: this machine, in this run: "
        f"reads {rates['read'] / 1e9:.1f} GB/s, "
        f"{step} again and again {rates['read_again'] / 1e9:.1f} GB/s; multiplies at "
        f"{rates['int8'] / 1e12:.2f} (int8) and {rates['fp32'] / 1e12:.2f} (fp32) "
        "tera-operations a second"
    )


def _mark(row: Document) -> str:
    return " *" if row["others"] > BUSY or row["unsettled"] else ""


def _remarks(document: Document) -> Iterator[str]:
    rows = [row for row in (*document["rows"], *document["breakdown"]) if "failure" not in row]
    worst = max((row["others"] for row in rows), default=0.0)
    if worst > BUSY:
        yield (
            f"* others used up to {100 * worst:.0f}% of the machine in a turn: "
            "measure again when it is quiet"
        )
    if any(row["unsettled"] for row in rows):
        yield "* some turn began on a busy machine"


def _table(first: str, *others: str) -> Drawn:
    """Begin a table of a column of names and columns of figures."""
    drawn = Drawn(box=SIMPLE_HEAD)
    drawn.add_column(first, no_wrap=True)
    for name in others:
        drawn.add_column(name, justify="right")
    return drawn
