"""`kvcast bench …`: one module a command, and here what they share.

A command chooses a workload by the model's dimensions, and backends by its options.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.bench.backend import Backend
from kvcast.bench.layout import Layout
from kvcast.bench.models import Model
from kvcast.bench.peers.kvcast import REFERENCE, Kvcast
from kvcast.bench.peers.table import Make
from kvcast.bench.recording import read_reference, read_samples
from kvcast.bench.render import render
from kvcast.bench.report import Benchmark, measure
from kvcast.bench.runner import Runner
from kvcast.bench.workload import Workload
from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.checkpoints.base import Dimensions
from kvcast.checkpoints.source import read_dimensions
from kvcast.errors import KvcastError, UsageError
from kvcast.tasks.families import family_of


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Models that a command measures in one way."""

    name: str  # what they are called
    model: type[Model]  # what backends are given
    workload: Callable[..., Any]  # made of dimensions and options
    layout: Layout  # how results are shown
    # the command's numbers, or lists of them, that are theirs alone: default and help
    options: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    # the command's other options that are theirs alone, with their defaults
    words: Mapping[str, Any] = field(default_factory=dict)
    peers: Mapping[str, Make] = field(default_factory=dict)  # who can take part
    # further backends of kvcast's, made of model and workload
    others: Callable[[Any, Any], Sequence[Backend]] = lambda *_: ()

    def chosen(self, args: argparse.Namespace, kinds: "Kinds") -> dict[str, Any]:
        """Return its options; raises UsageError for numbers below 1 and for others' options."""
        own = {**{name: default for name, (default, _) in self.options.items()}, **self.words}
        every = [name for kind in kinds.values() for name in (*kind.options, *kind.words)]
        given = {name: value for name in every if (value := getattr(args, name)) is not None}
        if foreign := sorted(given.keys() - own.keys()):
            raise UsageError(
                f"{_spelled(foreign[0])} says nothing of {self.name}, whose own options are "
                f"{', '.join(map(_spelled, own))}"
            )
        return {**own, **given}


Kinds = Mapping[type, Kind]
"""By the model's dimensions."""

_NONE: Kinds = {}


def add_numbers(parser: Any, options: Mapping[str, tuple[Any, str]], *, own: bool = False) -> None:
    """Declare options that are numbers, or lists of them; those of one kind have no default yet."""
    for name, (default, words) in options.items():
        is_list = isinstance(default, list)
        shown = " ".join(map(str, default)) if is_list else default
        parser.add_argument(
            f"--{name}",
            type=int,
            **({"nargs": "*" if "none to skip" in words else "+"} if is_list else {}),
            default=None if own else default,
            help=f"{words} (default: {shown})",
        )


def add_kinds(parser: argparse.ArgumentParser, kinds: Kinds) -> None:
    """Declare the numbers of each kind under its name."""
    for kind in kinds.values():
        add_numbers(parser.add_argument_group(kind.name), kind.options, own=True)


def add_some(parser: Any, flag: str, names: Iterable[str], words: str, **settings: Any) -> None:
    """Declare an option that takes some of these names; without it all of them."""
    listed = tuple(names)
    settings = {"default": list(listed), "nargs": "*", "metavar": "NAME", **settings}
    parser.add_argument(
        flag, choices=listed, help=f"any of {', '.join(listed)}; {words} (default: all)", **settings
    )


EVERYBODYS = {"threads": (2, "for each program"), "runs": (5, "after one to warm up")}


def check_positive(args: argparse.Namespace, numbers: Iterable[str], kinds: Kinds = _NONE) -> None:
    """Raise UsageError for options that are numbers, or lists of them, below 1."""
    for name in (*numbers, *(name for kind in kinds.values() for name in kind.options)):
        given = getattr(args, name)
        for number in given if isinstance(given, list) else [given]:
            if number is not None and number < 1:
                raise UsageError(f"{name} must be 1 or more, not {number}")


def kind_of(kinds: Kinds, folder: Path, model: str, command: str) -> tuple[Kind, Any]:
    """Return the kind and the dimensions of a model; raises KvcastError if it is none of these."""
    dimensions = _dimensions(folder)
    if type(dimensions) not in kinds:
        names = " and ".join(kind.name for kind in kinds.values())
        raise KvcastError(f"{model} cannot be measured: bench {command} takes {names}")
    return kinds[type(dimensions)], dimensions


def beside_peers(
    command: str,
    args: argparse.Namespace,
    kind: Kind,
    folder: Path,
    workload: Workload,
    ours: Mapping[str, str],
    compared: Callable[[Backend], str],
) -> int:
    """Measure kvcast in some precisions beside other programs, and print; returns the exit code.

    `compared` names the backend of kvcast's that one is compared with.
    """
    peers = list(kind.peers) if args.peers is None else args.peers
    if strangers := [name for name in peers if name not in kind.peers]:
        raise UsageError(f"{strangers[0]} takes no {kind.name}: peers are {', '.join(kind.peers)}")
    model = kind.model(folder=str(folder), threads=args.threads)
    backends = [
        *(Kvcast(model, REFERENCE, precision, name) for name, precision in ours.items()),
        *kind.others(model, workload),
        *(kind.peers[name](model=model) for name in peers),
    ]
    benchmark = Benchmark(
        name=command,
        model=args.model,
        runner=Runner(workload=workload, threads=args.threads, runs=args.runs),
        backends=backends,
        references={backend.name: {"kvcast": compared(backend)} for backend in backends},
        needed=list(ours),
    )
    return show(measure(benchmark), kind.layout)


def require(*packages: str) -> None:
    """Raise KvcastError unless all packages are installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise KvcastError(f"bench needs {' and '.join(missing)}: pip install 'kvcast[bench]'")


@contextmanager
def recording(audio: str, reference: Path | None) -> Iterator[dict[str, Any]]:
    """Give what a workload is told of a recording; its samples lie in a file meanwhile."""
    spoken = None if reference is None else read_reference(reference)
    samples = read_samples(audio)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.npy"
        np.save(file, samples, allow_pickle=False)
        yield {
            "samples": str(file),
            "audio": {"name": Path(audio).name, "seconds": len(samples) / SAMPLE_RATE},
            "reference": spoken,
        }


def show(found: Mapping[str, Any], layout: Layout) -> int:
    """Print tables and, as the last line, the JSON object; returns the exit code."""
    print(f"{render(found, layout)}\n{json.dumps(found, ensure_ascii=False)}", flush=True)
    return 0


def _dimensions(folder: Path) -> Dimensions:
    if is_bundle(folder):
        manifest = read_bundle(folder)
        found: Dimensions = family_of(manifest.family).dimensions(manifest.dimensions)
        return found
    return read_dimensions(folder)


def _spelled(option: str) -> str:
    return "AUDIO" if option == "audio" else f"--{option}"
