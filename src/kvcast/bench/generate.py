"""Time generation against the installed peers, with the same weights and the same prompts.

Every program runs in a process of its own and they take turns, each with the machine to itself.
Measures the time to the first token, the time of a token after it, one text and several at once,
and steps at far positions. Prints tables, where kvcast's time goes and how near the machine's
limits it is, and as its last line one JSON object. docs/bench.md says how it is measured and what
every figure means.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvcast.bench.arena import Arena, Quiet, Seat, pids, players
from kvcast.bench.command import require, say
from kvcast.bench.text.document import Measured, Results, document
from kvcast.bench.text.floor import Floor
from kvcast.bench.text.limits import Limit, dimensions_of, machine_rates
from kvcast.bench.text.peers import CONTENDERS, OURS, PEERS, RING
from kvcast.bench.text.peers.base import Task
from kvcast.bench.text.report import render
from kvcast.bench.text.trials import Trial
from kvcast.bench.turns import Result, take_turns
from kvcast.checkpoints.source import locate
from kvcast.errors import KvcastError, UsageError
from kvcast.spec.decoder import DecoderDimensions

NEEDED = ("psutil",)
_CONTESTANT = "kvcast.bench.text.contestant:Generator"
_BREAKDOWN = "kvcast.bench.text.breakdown:Breakdown"
_STEPS_AT_POSITION = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--model",
        default="demo-chat",
        help="a checkpoint folder, GGUF file, hub id, bundle or demo-chat (default: demo-chat)",
    )
    parser.add_argument("--threads", type=int, default=2, help="for each program (default: 2)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each (default: 512)")
    parser.add_argument(
        "--new", type=int, default=128, help="tokens after the first (default: 128)"
    )
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[1, 8], help="prompts at once (default: 1 8)"
    )
    parser.add_argument(
        "--positions",
        type=int,
        nargs="*",
        default=[100, 1000, 8000],
        help=f"where {_STEPS_AT_POSITION} steps are timed; none to skip (default: 100 1000 8000)",
    )
    parser.add_argument(
        "--window",
        type=int,
        default=512,
        help="of the model with random weights and rings, at the positions (default: 512)",
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
        choices=PEERS,
        default=list(PEERS),
        metavar="PEER",
        help=f"any of {', '.join(PEERS)}; none for kvcast alone (default: all that are installed)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    _check(args)
    require(NEEDED)
    folder = locate(args.model)
    dimensions = dimensions_of(folder)
    plan = Plan.of(args, dimensions)
    task = Task(
        model=args.model,
        folder=str(folder),
        threads=args.threads,
        vocab_size=dimensions.vocab_size,
        window=args.window,
    )
    measured = _measure(plan, task)
    found = document(
        measured,
        task,
        settings={
            "prompt": args.prompt,
            "new": args.new,
            "batches": args.batch,
            "positions": args.positions,
            "window": args.window,
        },
        runs=args.runs,
    )
    print(f"{render(found)}\n{json.dumps(found, ensure_ascii=False)}", flush=True)
    return 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who does what how often."""

    dimensions: DecoderDimensions
    quantize: Sequence[str]
    peers: Sequence[str]
    texts: Sequence[Trial]
    positions: Sequence[Trial]
    runs: int

    @classmethod
    def of(cls, args: argparse.Namespace, dimensions: DecoderDimensions) -> "Plan":
        """Plan what was asked for; raises UsageError where the model is too short for it."""
        texts = [Trial(rows=rows, prompt=args.prompt, steps=args.new) for rows in args.batch]
        positions = [
            Trial(rows=1, prompt=position, steps=_STEPS_AT_POSITION) for position in args.positions
        ]
        for trial in (*texts, *positions):
            if trial.prompt + trial.new > dimensions.max_positions:
                raise UsageError(
                    f"{trial.prompt} + {trial.new} tokens are more than the "
                    f"{dimensions.max_positions} that the model takes"
                )
        return cls(
            dimensions=dimensions,
            quantize=list(dict.fromkeys(args.quantize)),
            peers=args.peers,
            texts=texts,
            positions=positions,
            runs=args.runs,
        )

    @property
    def names(self) -> list[str]:
        """Contenders in order."""
        rings = [RING] if self.positions else []
        return [*(OURS[quantize] for quantize in self.quantize), *rings, *self.peers]

    def floor(self, quantize: str) -> Floor:
        """Return what counts kvcast's work."""
        return Floor(dimensions=self.dimensions, quantize=quantize)


def _check(args: argparse.Namespace) -> None:
    for name in ("threads", "prompt", "new", "window", "runs"):
        if getattr(args, name) < 1:
            raise UsageError(f"{name} must be 1 or more, not {getattr(args, name)}")
    for name in ("batch", "positions"):
        if min(getattr(args, name), default=1) < 1:
            raise UsageError(f"{name} must be 1 or more, not {min(getattr(args, name))}")


def _measure(plan: Plan, task: Task) -> Measured:
    arena = Arena(
        threads=task.threads,
        contestant=_CONTESTANT,
        arguments={"task": asdict(task)},
        report=say,
    )
    before = _rates(arena, plan)
    contenders = [CONTENDERS[name](task) for name in plan.names]
    with arena.seated(contenders) as (seats, absent):
        ours = {quantize: OURS[quantize] for quantize in plan.quantize}
        reasons = [absent[name] for name in ours.values() if name in absent]
        if len(reasons) == len(ours):
            raise KvcastError(f"kvcast itself: {reasons[0]}")
        steady = [seat for seat in seats if seat.name != RING]
        texts = _turns(plan.texts, steady, seats, plan.runs)
        positions = _turns(plan.positions, seats, seats, plan.runs)
    seated = {q: name for q, name in ours.items() if name not in absent}
    breakdowns = {
        name: dict(
            zip(
                plan.texts,
                arena.breakdown(
                    _BREAKDOWN,
                    {"model": task.model, "quantize": quantize, "threads": task.threads},
                    [trial.to_json() for trial in plan.texts],
                    plan.runs,
                ),
                strict=True,
            )
        )
        for quantize, name in seated.items()
    }
    limits = _limits(plan, task, before, _rates(arena, plan))
    return Measured(
        seats=seats,
        precisions={contender.name: contender.precision for contender in contenders},
        absent=absent,
        texts=texts,
        positions=positions,
        breakdowns=breakdowns,
        floors=None
        if limits is None
        else {
            name: limit.held(breakdowns.get(name, {}), _of(positions, name))
            for name, limit in limits.items()
            if name in {seat.name for seat in seats}
        },
    )


def _turns(
    trials: Sequence[Trial], taking: Sequence[Seat], all_: Sequence[Seat], runs: int
) -> Results:
    """Let some take turns while all are quiet."""
    referee = Quiet(pids(all_))
    return {
        trial: take_turns(players(taking), referee, trial.to_json(), runs=runs, report=say)
        for trial in trials
    }


def _of(results: Results, name: str) -> dict[Trial, Result]:
    return {trial: by_name[name] for trial, by_name in results.items() if name in by_name}


Measurements = Mapping[str, Mapping[str, float] | None]


def _rates(arena: Arena, plan: Plan) -> Measurements:
    """Measure the machine for each quantisation, whose steps read more or less."""
    prompt = plan.texts[0].prompt
    return {
        quantize: machine_rates(arena, plan.floor(quantize), prompt) for quantize in plan.quantize
    }


def _limits(plan: Plan, task: Task, *measurements: Measurements) -> dict[str, Limit] | None:
    found: dict[str, Any] = {}
    for quantize in plan.quantize:
        known = [one for by_quantize in measurements if (one := by_quantize[quantize]) is not None]
        if not known:
            return None
        found[OURS[quantize]] = Limit(plan.floor(quantize), known)
    if OURS["int8"] in found:
        found[RING] = found[OURS["int8"]].with_window(task.window)
    return found
