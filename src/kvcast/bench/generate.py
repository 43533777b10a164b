"""Time generation against the installed peers, with the same weights and the same tokens.

Every program runs in a process of its own and they take turns, each with the machine to itself.
Decoder-only models continue prompts: measured are the time to the first token, of a token after
it, one text and several at once, and steps at far positions. A T5 writes targets of sources: the
time to the first token and of a step, greedy and with beams, and with sources of other lengths.
Prints tables, where kvcast's time goes and how near the machine's limits it is, and as its last
line one JSON object. docs/bench.md says how it is measured and what every figure means.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcast.bench.command import require
from kvcast.bench.precision import OURS
from kvcast.bench.sources import measure as sources_measure
from kvcast.bench.sources import peers as sources_peers
from kvcast.bench.sources import report as sources_report
from kvcast.bench.sources.random_t5 import RANDOM, is_random, random_folder
from kvcast.bench.text import measure as text_measure
from kvcast.bench.text import peers as text_peers
from kvcast.bench.text import report as text_report
from kvcast.bench.text.measure import STEPS_AT_POSITION
from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.checkpoints.base import Dimensions
from kvcast.checkpoints.source import locate, read_dimensions
from kvcast.errors import KvcastError, UsageError
from kvcast.spec.decoder import DecoderDimensions
from kvcast.spec.t5 import T5Dimensions
from kvcast.tasks.families import family_of

NEEDED = ("psutil",)


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Models that are measured in one way.

    Attributes:
        name: what they are called.
        options: the command's options that are theirs alone, with their defaults.
        peers: who can take part.
        measure: takes the model, its folder, its dimensions and all options; gives the document.
        render: makes tables of it.

    """

    name: str
    options: Mapping[str, Any]
    peers: Sequence[str]
    measure: Callable[..., dict[str, Any]]
    render: Callable[[Mapping[str, Any]], str]

    def settings(self, args: argparse.Namespace) -> dict[str, Any]:
        """Return the options; raises UsageError for those that other models have."""
        given = {name for name in _OWN if getattr(args, name) is not None}
        if foreign := sorted(given - self.options.keys()):
            raise UsageError(
                f"{_flag(foreign[0])} says nothing of {self.name}, whose own options are "
                f"{', '.join(map(_flag, self.options))}"
            )
        if strangers := [name for name in args.peers or () if name not in self.peers]:
            raise UsageError(
                f"{strangers[0]} takes no {self.name}: peers are {', '.join(self.peers)}"
            )
        own = {name: getattr(args, name) for name in given}
        return {
            **{name: getattr(args, name) for name in ("threads", "runs", "batch")},
            "quantize": list(dict.fromkeys(args.quantize)),
            "peers": list(self.peers) if args.peers is None else args.peers,
            **self.options,
            **own,
        }


_KINDS: Mapping[type, _Kind] = {
    DecoderDimensions: _Kind(
        name="decoder-only models",
        options={"prompt": 512, "new": 128, "positions": [100, 1000, 8000], "window": 512},
        peers=text_peers.PEERS,
        measure=text_measure.measure,
        render=text_report.render,
    ),
    T5Dimensions: _Kind(
        name="T5s",
        options={"source": 128, "target": 64, "beam": [1, 4], "lengths": [32, 128, 512]},
        peers=sources_peers.PEERS,
        measure=sources_measure.measure,
        render=sources_report.render,
    ),
}
_OWN = [name for kind in _KINDS.values() for name in kind.options]
_PEERS = list(dict.fromkeys(peer for kind in _KINDS.values() for peer in kind.peers))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments; those of one kind of model alone have no default here."""
    parser.add_argument(
        "--model",
        default="demo-chat",
        help=f"a checkpoint folder, GGUF file, hub id, bundle, demo-chat, demo-t5 or "
        f"{', '.join(RANDOM)} (random weights) (default: demo-chat)",
    )
    parser.add_argument("--threads", type=int, default=2, help="for each program (default: 2)")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[1, 8], help="texts at once (default: 1 8)"
    )
    parser.add_argument("--runs", type=int, default=5, help="after one to warm up (default: 5)")
    parser.add_argument(
        "--quantize",
        nargs="+",
        choices=tuple(OURS),
        default=list(OURS),
        help="of kvcast (default: int8 int4 none)",
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=_PEERS,
        metavar="PEER",
        help=f"any of {', '.join(_PEERS)}; none for kvcast alone (default: all that are "
        "installed and take the model)",
    )
    _add_own_arguments(parser)


def _add_own_arguments(parser: argparse.ArgumentParser) -> None:
    continued = parser.add_argument_group("decoder-only models")
    continued.add_argument("--prompt", type=int, help="tokens of each prompt (default: 512)")
    continued.add_argument("--new", type=int, help="tokens after the first (default: 128)")
    continued.add_argument(
        "--positions",
        type=int,
        nargs="*",
        help=f"where {STEPS_AT_POSITION} steps are timed; none to skip (default: 100 1000 8000)",
    )
    continued.add_argument(
        "--window",
        type=int,
        help="of the model with random weights and rings, at the positions (default: 512)",
    )
    answered = parser.add_argument_group("T5s")
    answered.add_argument("--source", type=int, help="tokens of each source (default: 128)")
    answered.add_argument("--target", type=int, help="tokens to write for each (default: 64)")
    answered.add_argument("--beam", type=int, nargs="+", help="beams; 1 is greedy (default: 1 4)")
    answered.add_argument(
        "--lengths",
        type=int,
        nargs="*",
        help="tokens of sources whose steps are compared; none to skip (default: 32 128 512)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    _check(args)
    require(NEEDED)
    folder = random_folder(args.model) if is_random(args.model) else locate(args.model)
    dimensions = _dimensions(folder)
    kind = _KINDS.get(type(dimensions))
    if kind is None:
        names = " and ".join(kind.name for kind in _KINDS.values())
        raise KvcastError(f"{args.model} cannot be measured: bench generate takes {names}")
    found = kind.measure(args.model, folder, dimensions, **kind.settings(args))
    print(f"{kind.render(found)}\n{json.dumps(found, ensure_ascii=False)}", flush=True)
    return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("threads", "batch", "runs", *_OWN):
        given = getattr(args, name)
        numbers = given if isinstance(given, list) else [given]
        if too_small := [number for number in numbers if number is not None and number < 1]:
            raise UsageError(f"{name} must be 1 or more, not {too_small[0]}")


def _dimensions(folder: Path) -> Dimensions:
    if is_bundle(folder):
        manifest = read_bundle(folder)
        found: Dimensions = family_of(manifest.family).dimensions(manifest.dimensions)
        return found
    return read_dimensions(folder)


def _flag(name: str) -> str:
    return f"--{name}"
