"""The document of `kvcast bench runtimes`, as people read it."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from kvcast.bench import tables


def render(found: Mapping[str, Any]) -> str:
    """Return all tables and the lines around them."""
    return tables.render(_parts_of(found))


def _parts_of(found: Mapping[str, Any]) -> Iterator[str | Table]:
    settings = found["settings"]
    yield f"model {found['model']} on every runtime, one process each"
    yield tables.machine_line(found)
    yield (
        f"median of {settings['runs']} after a warm-up, in turns; x onnx: over ONNX Runtime's in "
        "the same precision; x cached: over the same runtime's with cached cross keys and values"
    )
    yield from tables.contender_lines(found)
    for figure in found["figures"]:
        yield f"\n{figure['of']}; {settings['threads']} threads"
        yield _table(found, figure["figure"])
    if any("failure" not in one for each in found["contenders"] for one in each["results"]):
        yield from tables.remarks({**found, "breakdown": []})
    if found["rates"] is None:
        yield tables.NO_FLOOR
        return
    for rates in found["rates"]:
        yield f"{rates['precision']}: {tables.rates_line(rates, rates['step_bytes'])}"


def _table(found: Mapping[str, Any], figure: str) -> Table:
    columns = ("median ms", "min", "max", "x onnx", "x cached", "least ms", "of least")
    others = ("word error", "peak MB", "load s")
    table = tables.table("contender", "precision", *columns, *others)
    for contender in found["contenders"]:
        (result,) = (one for one in contender["results"] if one["figure"] == figure)
        table.add_row(contender["name"], contender["precision"], *_cells(contender, result))
    return table


def _cells(contender: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    if "failure" in result:
        return [result["failure"]]
    seconds, least, error = result["seconds"], result["floor"], result.get("word_error")
    return [
        f"{1000 * seconds['median']:.2f}{tables.mark(result)}",
        f"{1000 * seconds['min']:.2f}",
        f"{1000 * seconds['max']:.2f}",
        _ratio(result["times_onnx"]),
        _ratio(result["times_cached"]),
        "-" if least is None else f"{1000 * least:.2f}",
        "-" if least is None else f"{100 * result['fraction']:.0f}%",
        "-" if error is None else f"{100 * error:.1f}%",
        f"{result['peak_bytes'] / 1e6:.0f}",
        f"{contender['load_seconds']:.2f}",
    ]


def _ratio(times: float | None) -> str:
    return "-" if times is None else f"{times:.2f}"
