"""`kvcast bench …`: one module a command, and here their common part.

A command chooses a workload by the model's dimensions, and backends by its options.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvcast.checkpoints.source import locate
from kvcast.errors import KvcastError, UsageError
from kvcast.loading.components import dimensions_of
from kvcast_bench.backend import Backend
from kvcast_bench.models import BenchModel
from kvcast_bench.peers.table import CAUSAL, SEQ2SEQ, SERVED_SPEECH, SERVED_TEXTS, SPEECH
from kvcast_bench.recording import read_recordings
from kvcast_bench.render import render
from kvcast_bench.report import Benchmark, measure
from kvcast_bench.runner import Runner
from kvcast_bench.workload import OptionDefaults, Table, Workload

Kinds = Mapping[type, Any]
"""By the type of a model's dimensions, the class of the workload that a command measures."""

_NONE = "none"
_PEERS = {
    "speech": SPEECH,
    "causal": CAUSAL,
    "seq2seq": SEQ2SEQ,
    "served-texts": SERVED_TEXTS,
    "served-speech": SERVED_SPEECH,
}


def add_options(parser: Any, options: OptionDefaults, *, absent: bool = False) -> None:
    """Declare options; `absent` ones have no default until the workload is known."""
    for name, (default, words) in options.items():
        settings: dict[str, Any] = {"default": None if absent else default}
        shown = default
        if isinstance(default, list):
            settings["nargs"] = "*" if "none to skip" in words else "+"
            shown = " ".join(map(str, default))
        words += f" (default: {shown})"
        parser.add_argument(f"--{name}", type=positive, help=words, **settings)


def add_common(parser: argparse.ArgumentParser, model: str, words: str, kinds: Kinds) -> None:
    """Declare the common arguments: the model, and the numeric options of all workloads."""
    parser.add_argument("--model", default=model, help=f"{words} (default: {model})")
    add_options(parser, {"threads": (2, "for each program"), "runs": (5, "after one to warm up")})
    for workload in kinds.values():
        group = parser.add_argument_group(workload.kind) if len(kinds) > 1 else parser
        add_options(group, workload.options, absent=True)


def add_some(
    parser: Any,
    flag: str,
    names: Iterable[str],
    words: str,
    usual: Sequence[str] | None = None,
    **settings: Any,
) -> None:
    """Declare an option that takes some of these names; without it the usual ones, or all."""
    listed = list(dict.fromkeys(names))
    words += f" (default: {' '.join(usual) if usual else 'all'})"
    settings = {"default": usual or listed, "nargs": "+", "metavar": "NAME", **settings}
    parser.add_argument(
        flag, choices=listed, help=f"any of {', '.join(listed)}; {words}", **settings
    )


class _Peers(argparse.Action):
    """Takes names, or `none` alone."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        names = [name for name in values if name != _NONE]
        if names and len(names) < len(values):
            parser.error(f"argument {option_string}: {_NONE} leaves out all others")
        setattr(namespace, self.dest, names)


def add_peers(parser: Any, names: Iterable[str], **settings: Any) -> None:
    """Declare `--peers`, of which there may be none."""
    listed = list(dict.fromkeys(names))
    parser.add_argument(
        "--peers",
        choices=[*listed, _NONE],
        nargs="*",
        action=_Peers,
        metavar="NAME",
        help=f"any of {', '.join(listed)}; {_NONE} for kvcast alone (default: all)",
        **{"default": listed, **settings},
    )


def positive(text: str) -> int:
    """Read a whole number from 1, for argparse's `type`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return int(text)


def require(command: str, *packages: str) -> None:
    """Raise KvcastError unless all packages, which are in the command's extra, are installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        advice = f"in a clone of kvcast, pip install --editable 'benchmarks[{command}]'"
        raise KvcastError(f"bench {command} needs {' and '.join(missing)}: {advice}")


def choose_workload(
    args: argparse.Namespace,
    kinds: Kinds,
    command: str,
    find: Callable[[str], Path] = locate,
    **options: Any,
) -> tuple[Any, Any]:
    """Return the workload for the model, and the model.

    `options` are further options of the workload. Raises KvcastError for a model that the command
    does not support, and UsageError for an option of another workload.
    """
    folder = find(args.model)
    dimensions = dimensions_of(folder)
    workload = kinds.get(type(dimensions))
    if workload is None:
        names = " and ".join(kind.kind for kind in kinds.values())
        raise KvcastError(f"{args.model} cannot be measured: bench {command} takes {names}")
    options |= _own_options(args, workload, kinds)
    if "audio" in options:
        if options["audio"] is None:
            raise UsageError(f"a Whisper needs a recording: kvcast bench {command} AUDIO")
        options |= read_recordings(options["audio"], options.pop("reference") or ())
    model = workload.model(folder=str(folder), threads=args.threads)
    return workload(dimensions=dimensions, **options), model


def _own_options(args: argparse.Namespace, workload: Any, kinds: Kinds) -> dict[str, Any]:
    own: dict[str, Any] = workload.own()
    every = [name for kind in kinds.values() for name in kind.own()]
    given = {name: value for name in every if (value := getattr(args, name)) is not None}
    if foreign := sorted(given.keys() - own.keys()):
        named, *others = (f"--{name}".replace("--audio", "AUDIO") for name in (foreign[0], *own))
        raise UsageError(
            f"{named} says nothing of {workload.kind}, whose own options are {', '.join(others)}"
        )
    return own | given


def peers(args: argparse.Namespace, workload: Workload, model: BenchModel) -> list[Backend]:
    """Return the requested peers; raises UsageError for peers of another workload."""
    here = _PEERS[workload.name]
    names = list(here) if args.peers is None else args.peers
    if others := [name for name in names if name not in here]:
        raise UsageError(f"{others[0]} takes no {workload.kind}: peers are {', '.join(here)}")
    return [here[name](model=model) for name in names]


def compare(command: str, args: argparse.Namespace, workload: Workload, **facts: Any) -> str:
    """Measure; returns the output. `facts` are further fields of `Benchmark`."""
    runner = Runner(workload=workload, threads=args.threads, runs=args.runs)
    benchmark = Benchmark(name=command, model=args.model, runner=runner, **facts)
    return shown(measure(benchmark), workload.tables())


def shown(document: Mapping[str, Any], tables: Sequence[Table]) -> str:
    """Return tables and, as the last line, the JSON object."""
    return f"{render(document, tables)}\n{json.dumps(document, ensure_ascii=False)}\n"
