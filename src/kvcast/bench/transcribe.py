"""Time transcription against the installed peers, on the same audio, with the same weights.

Every program runs in a process of its own and they take turns, each with the machine to itself.
Prints a table, where kvcast's time goes and how near the machine's limits it is, and as its last
line one JSON object. docs/bench.md says how it is measured and what every figure means.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE, open_audio
from kvcast.bench.arena import Arena, Quiet, players
from kvcast.bench.document import Measured, document
from kvcast.bench.limits import limits, machine_rates
from kvcast.bench.peers import PEERS
from kvcast.bench.peers.base import Task
from kvcast.bench.peers.ours import Kvcast
from kvcast.bench.report import render
from kvcast.bench.turns import take_turns
from kvcast.bench.wer import normalise
from kvcast.checkpoints.source import locate
from kvcast.errors import InputMissingError, InputOutputError, KvcastError, UsageError

NEEDED = ("jiwer", "psutil")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("audio", metavar="AUDIO", help="a recording, or - for standard input")
    parser.add_argument(
        "--reference", type=Path, metavar="FILE", help="what is spoken, for the word error"
    )
    parser.add_argument(
        "--model",
        default="demo",
        help="a checkpoint folder, hub id, bundle, demo or demo-base (default: demo)",
    )
    parser.add_argument("--language", default="en", help="code of what is spoken (default: en)")
    parser.add_argument("--threads", type=int, default=2, help="for each program (default: 2)")
    parser.add_argument(
        "--beam", type=int, nargs="+", default=[1, 5], help="beams; 1 is greedy (default: 1 5)"
    )
    parser.add_argument("--runs", type=int, default=5, help="after one to warm up (default: 5)")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=PEERS,
        default=list(PEERS),
        metavar="PEER",
        help=f"any of {', '.join(PEERS)}; none for kvcast alone (default: all that are installed)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    for name in ("threads", "runs"):
        if getattr(args, name) < 1:
            raise UsageError(f"{name} must be 1 or more, not {getattr(args, name)}")
    if min(args.beam) < 1:
        raise UsageError(f"beam must be 1 or more, not {min(args.beam)}")
    _require(NEEDED)
    reference = None if args.reference is None else _read_reference(args.reference)
    samples = _read_samples(args.audio)
    task = Task(
        model=args.model,
        folder=str(locate(args.model)),
        threads=args.threads,
        language=args.language,
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.npy"
        np.save(file, samples, allow_pickle=False)
        measured = _measure(Arena(task, file, _say), args.peers, args.beam, args.runs)
    found = document(
        measured,
        task,
        audio={"name": Path(args.audio).name, "seconds": len(samples) / SAMPLE_RATE},
        runs=args.runs,
        reference=reference,
    )
    print(f"{render(found)}\n{json.dumps(found, ensure_ascii=False)}", flush=True)
    return 0


def _measure(arena: Arena, peers: Sequence[str], beams: Sequence[int], runs: int) -> Measured:
    before = machine_rates(arena)
    with arena.seated([Kvcast.name, *peers]) as (seats, absent):
        if Kvcast.name in absent:
            raise KvcastError(f"kvcast itself {absent[Kvcast.name]}")
        referee = Quiet([seat.remote.pid for seat in seats])
        results = {
            beam: take_turns(players(seats), referee, beam=beam, runs=runs, report=arena.report)
            for beam in beams
        }
    breakdowns = arena.breakdown(beams, runs)
    floor = limits(Path(arena.task.folder), breakdowns, [before, machine_rates(arena)])
    return Measured(seats, absent, results, breakdowns, floor)


def _read_reference(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputMissingError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError):
        raise InputOutputError(f"{path} cannot be read as UTF-8 text") from None
    if not normalise(text):
        raise UsageError(f"{path} holds no words")
    return text


def _read_samples(source: str) -> NDArray[np.float32]:
    audio = open_audio(source)
    try:
        blocks = list(audio.blocks())
    finally:
        audio.close()
    samples = np.concatenate([np.empty(0, np.float32), *blocks])
    if not len(samples):
        raise InputOutputError(f"{source} holds no sound")
    return samples


def _require(packages: Sequence[str]) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise KvcastError(f"bench needs {' and '.join(missing)}: pip install 'kvcast[bench]'")


def _say(message: str) -> None:
    """Tell a person at a terminal what is going on."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"\r\x1b[K{message}", end="", file=sys.stderr, flush=True)
