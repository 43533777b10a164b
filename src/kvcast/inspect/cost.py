"""The cost of a prompt and the tokens after it, with and without a cache.

Without a cache, every token processes all positions before it again, and a Whisper or a T5 projects
its cross keys and values again; the encoder runs once either way. Combines the counts of `work` in
a JSON-ready document, and renders that as a table. docs/inspect.md documents every field.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvcast.checkpoints.source import locate
from kvcast.errors import UsageError
from kvcast.families.table import family_with
from kvcast.inspect.roofline import MachineRates
from kvcast.inspect.units import duration, plural, size, table, with_prefix
from kvcast.inspect.work import PARTS, ModelWork, Work
from kvcast.loading.components import dimensions_of

FORMAT, VERSION = "kvcast.inspect.cost", 1

_NAMES = {
    "encoder": "encoder",
    "cross_keys_values": "cross keys, values",
    "keys_values": "keys, values",
    "linear": "other weights",
    "attention": "attention",
    "head": "output head",
}


@dataclass(frozen=True, kw_only=True)
class CostQuery:
    """`prompt` tokens and `new` tokens after it, for one sequence; bytes of each value.

    The last new token is not fed back, so the cache ends up with prompt + new - 1 positions.
    """

    prompt: int
    new: int
    bytes_per_weight: float = 2.0
    bytes_per_cached: float = 2.0

    @property
    def positions(self) -> int:
        return self.prompt + self.new - 1

    def check(self, model: ModelWork) -> None:
        if self.positions > model.most_positions:
            raise UsageError(
                f"a prompt of {self.prompt:,} tokens and {self.new:,} new ones take "
                f"{self.positions:,} positions, and the model has {model.most_positions:,}: "
                "shorten --prompt or --new"
            )

    def step_bytes(self, model: ModelWork) -> float:
        return self.read(model.call(self.positions - 1, 1))

    def read(self, work: Work) -> float:
        return work.weights * self.bytes_per_weight + work.cached * self.bytes_per_cached


def document(
    name: str, model: ModelWork, question: CostQuery, machine: MachineRates | None
) -> dict[str, Any]:
    """Count everything; times need a machine. UsageError if the sequence is too long."""
    question.check(model)
    convert = _WorkConverter(question, machine)
    cached, recomputed = _with_cache(model, question), _without(model, question)
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": name,
        "parameters": model.parameters,
        "prompt": question.prompt,
        "new": question.new,
        "assumed": {
            "sequences": 1,
            "bytes_per_weight": question.bytes_per_weight,
            "bytes_per_cached": question.bytes_per_cached,
        },
        "cache": [
            {
                "kind": kind.kind,
                "layers": kind.layers,
                "positions": kind.positions,
                "bytes": kind.values * question.bytes_per_cached,
            }
            for kind in model.cache(question.positions)
        ],
        "calls": {
            "first": _pair(convert, cached[:1], recomputed[:1]),
            "next": _pair(convert, cached[1:2], recomputed[1:2]),
            "last": _pair(convert, cached[1:][-1:], recomputed[1:][-1:]),
            "all": _pair(convert, cached, recomputed),
        },
        "machine": None if machine is None else asdict(machine),
    }


def render(cost: Mapping[str, Any]) -> str:
    return "\n".join([*_introduction(cost), "", *_caches(cost), "", *_calls(cost)]) + "\n"


@dataclass(frozen=True)
class _WorkConverter:
    question: CostQuery
    machine: MachineRates | None

    def __call__(self, works: Sequence[Work]) -> dict[str, Any]:
        whole = sum(works, Work())
        question, machine = self.question, self.machine
        seconds = machine and sum(machine.seconds(w.operations, question.read(w)) for w in works)
        return {
            "flop": {**whole.flop, "total": whole.operations},
            "bytes": {
                "weights": whole.weights * question.bytes_per_weight,
                "cache": whole.cached * question.bytes_per_cached,
            },
            "seconds": seconds,
        }


def _pair(
    convert: Callable[[Sequence[Work]], Any], cached: Sequence[Work], recomputed: Sequence[Work]
) -> dict[str, Any] | None:
    return {"cached": convert(cached), "recomputed": convert(recomputed)} if cached else None


def _with_cache(model: ModelWork, question: CostQuery) -> list[Work]:
    first = model.encode() + model.project() + model.call(0, question.prompt)
    return [first, *(model.call(held, 1) for held in range(question.prompt, question.positions))]


def _without(model: ModelWork, question: CostQuery) -> list[Work]:
    first, *others = (model.recompute(question.prompt, fed) for fed in range(question.new))
    return [model.encode() + first, *others]


def _introduction(cost: Mapping[str, Any]) -> Iterator[str]:
    assumed, machine = cost["assumed"], cost["machine"]
    yield (
        f"{cost['model']}: {with_prefix(cost['parameters'])} weights; a prompt of "
        f"{plural(cost['prompt'], 'token')}, then {cost['new']:,} new"
    )
    yield (
        f"assumed: one sequence, {assumed['bytes_per_weight']:g} bytes a weight, "
        f"{assumed['bytes_per_cached']:g} bytes a cached number"
    )
    if machine is not None:
        yield (
            f"machine: {size(machine['bandwidth'])}/s ({machine['bandwidth_from']}), "
            f"{with_prefix(machine['rate'])}FLOP/s ({machine['rate_from']})"
        )


def _caches(cost: Mapping[str, Any]) -> Iterator[str]:
    header = ("cache", "layers", "positions", "bytes", "")
    lines = [
        [
            cache["kind"],
            f"{cache['layers']}",
            f"{cache['positions']:,}",
            size(cache["bytes"]),
            f"{cache['bytes'] / 2**20:,.1f} MiB",
        ]
        for cache in cost["cache"]
    ]
    yield from table(header, lines, right=range(1, len(header)))


def _calls(cost: Mapping[str, Any]) -> Iterator[str]:
    calls = cost["calls"]
    columns = [("first token", calls["first"]["cached"])]
    if calls["next"] is not None:
        columns += [
            ("next, cached", calls["next"]["cached"]),
            ("recomputed", calls["next"]["recomputed"]),
            (f"all {cost['new']:,}, cached", calls["all"]["cached"]),
            ("recomputed", calls["all"]["recomputed"]),
        ]
    titles, ways = [title for title, _ in columns], [way for _, way in columns]
    lines = [
        [_NAMES[part], *(with_prefix(way["flop"][part]) for way in ways)]
        for part in PARTS
        if any(way["flop"][part] for way in ways)
    ]
    lines.append(["all FLOP", *(with_prefix(way["flop"]["total"]) for way in ways)])
    for kind in ("weights", "cache"):
        lines.append([f"{kind} read", *(size(way["bytes"][kind]) for way in ways)])
    if cost["machine"] is not None:
        lines.append(["least time", *(duration(way["seconds"]) for way in ways)])
    yield from table(["FLOP", *titles], lines, right=range(1, len(columns) + 1))
    yield from _summary(cost)


def _summary(cost: Mapping[str, Any]) -> Iterator[str]:
    calls = cost["calls"]
    if calls["next"] is None:
        return
    with_cache, without = (calls["all"][way]["flop"] for way in ("cached", "recomputed"))
    kept = ("keys_values", "cross_keys_values")
    saved = sum(without[part] - with_cache[part] for part in kept)
    yield ""
    yield (
        f"Not projecting keys and values again saves {with_prefix(saved)}FLOP, recomputing nothing "
        f"{with_prefix(without['total'] - with_cache['total'])}FLOP "
        f"({without['total'] / with_cache['total']:,.1f} times)."
    )
    if cost["machine"] is not None:
        first, *steps = (calls[name]["cached"]["seconds"] for name in ("first", "next", "last"))
        each = " to ".join(dict.fromkeys(map(duration, steps)))
        yield f"At best the first token takes {duration(first)} and each next {each}."


def open_work(model: str, source: int | None = None) -> ModelWork:
    """Return a model to count: a bundle, a checkpoint, a configuration's folder or a hub id.

    `source`: tokens of the source. Raises KvcastError; InputMissingError for an unknown name.
    """
    dimensions = dimensions_of(locate(model))
    if source is None:
        return ModelWork(dimensions=dimensions)
    if "source" in family_with(dimensions).programs(dimensions)["decode"].sizes:
        return ModelWork(dimensions=dimensions, source=source)
    raise UsageError(f"{model} is not a T5, which --source is for: drop it")
