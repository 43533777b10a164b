"""Time transcription against the installed peers, on the same audio, with the same weights.

Every program runs in a process of its own and they take turns, each with the machine to itself.
Prints a table, where kvcast's time goes and how near the machine's limits it is, and as its last
line one JSON object. docs/bench.md says how it is measured and what every figure means.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.bench.arena import Arena, Quiet, pids, players
from kvcast.bench.command import require, say
from kvcast.bench.speech.document import Measured, document
from kvcast.bench.speech.limits import limits, machine_rates
from kvcast.bench.speech.peers import CONTENDERS, PEERS
from kvcast.bench.speech.peers.base import Task
from kvcast.bench.speech.peers.ours import Kvcast
from kvcast.bench.speech.recording import read_reference, read_samples
from kvcast.bench.speech.report import render
from kvcast.bench.turns import take_turns
from kvcast.checkpoints.source import locate
from kvcast.errors import KvcastError, UsageError

NEEDED = ("jiwer", "psutil")
_CONTESTANT = "kvcast.bench.speech.contestant:Transcriber"
_BREAKDOWN = "kvcast.bench.speech.breakdown:Breakdown"


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
    require(NEEDED)
    reference = None if args.reference is None else read_reference(args.reference)
    samples = read_samples(args.audio)
    task = Task(
        model=args.model,
        folder=str(locate(args.model)),
        threads=args.threads,
        language=args.language,
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.npy"
        np.save(file, samples, allow_pickle=False)
        measured = _measure(task, file, args.peers, args.beam, args.runs)
    found = document(
        measured,
        task,
        audio={"name": Path(args.audio).name, "seconds": len(samples) / SAMPLE_RATE},
        runs=args.runs,
        reference=reference,
    )
    print(f"{render(found)}\n{json.dumps(found, ensure_ascii=False)}", flush=True)
    return 0


def _measure(
    task: Task, samples: Path, peers: Sequence[str], beams: Sequence[int], runs: int
) -> Measured:
    folder = Path(task.folder)
    arena = Arena(
        threads=task.threads,
        contestant=_CONTESTANT,
        arguments={"task": asdict(task), "samples": str(samples)},
        report=say,
    )
    before = machine_rates(arena, folder)
    contenders = [CONTENDERS[name](task) for name in (Kvcast.name, *peers)]
    with arena.seated(contenders) as (seats, absent):
        if Kvcast.name in absent:
            raise KvcastError(f"kvcast itself {absent[Kvcast.name]}")
        referee = Quiet(pids(seats))
        results = {
            beam: take_turns(players(seats), referee, {"beam": beam}, runs=runs, report=say)
            for beam in beams
        }
    arguments = {
        "model": task.model,
        "threads": task.threads,
        "language": task.language,
        "samples": str(samples),
    }
    found = arena.breakdown(_BREAKDOWN, arguments, [{"beam": beam} for beam in beams], runs)
    breakdowns = dict(zip(beams, found, strict=True))
    floor = limits(folder, breakdowns, [before, machine_rates(arena, folder)])
    return Measured(seats, absent, results, breakdowns, floor)
