"""Time one model on every runtime, in every precision, and a baseline without cross caches.

Every form runs in a process of its own and they take turns, each with the machine to itself. Of a
Whisper are measured one step of the decoder alone, one encode, and a recording end to end, and
beside each form one that projects cross keys and values anew in every call, as most exports do; of
a decoder-only model the time to the first token and of a token after it. Prints tables with what
the machine could do at best, and as its last line one JSON object. docs/bench.md says how it is
measured and what every figure means.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.bench.arena import Arena, Quiet, pids, players
from kvcast.bench.command import require, say
from kvcast.bench.contender import needs_checkpoint
from kvcast.bench.course import Course, known_rates
from kvcast.bench.runtimes.contenders import Task
from kvcast.bench.runtimes.document import Measured, document, step_bytes
from kvcast.bench.runtimes.forms import PRECISIONS, RUNTIMES, Form
from kvcast.bench.runtimes.plan import Plan
from kvcast.bench.runtimes.report import render
from kvcast.bench.runtimes.speech import SpeechPlan, duration
from kvcast.bench.runtimes.text import TextPlan
from kvcast.bench.speech.recording import read_reference, read_samples
from kvcast.bench.turns import take_turns
from kvcast.checkpoints.source import locate, read_dimensions
from kvcast.errors import KvcastError, UsageError
from kvcast.spec.decoder import DecoderDimensions
from kvcast.spec.whisper import WhisperDimensions

NEEDED = ("psutil",)
_REFERENCE_NEEDS = ("jiwer",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments; those of one kind of model alone have no default here."""
    parser.add_argument("audio", metavar="AUDIO", nargs="?", help="for a Whisper: a recording")
    parser.add_argument(
        "--model",
        default="demo",
        help="a Whisper or a decoder-only model: a checkpoint folder, GGUF file, hub id, demo, "
        "demo-base or demo-chat (default: demo)",
    )
    parser.add_argument(
        "--runtimes",
        nargs="+",
        choices=tuple(RUNTIMES),
        default=list(RUNTIMES),
        metavar="RUNTIME",
        help=f"any of {', '.join(RUNTIMES)} (default: all)",
    )
    parser.add_argument(
        "--quantize",
        nargs="+",
        choices=tuple(PRECISIONS),
        default=list(PRECISIONS),
        metavar="PRECISION",
        help=f"any of {', '.join(PRECISIONS)}; int8 and int4 are 8da8w and 8da4w on ExecuTorch "
        "(default: all)",
    )
    parser.add_argument("--threads", type=int, default=2, help="for each process (default: 2)")
    parser.add_argument("--runs", type=int, default=5, help="after one to warm up (default: 5)")
    speech = parser.add_argument_group("Whispers")
    speech.add_argument("--reference", type=Path, metavar="FILE", help="what is spoken")
    speech.add_argument("--language", help="code of what is spoken (default: en)")
    speech.add_argument("--position", type=int, help="of the step that is timed (default: 100)")
    text = parser.add_argument_group("decoder-only models")
    text.add_argument("--prompt", type=int, help="tokens of the prompt (default: 512)")
    text.add_argument("--new", type=int, help="tokens after the first (default: 64)")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    for name in ("threads", "runs", "position", "prompt", "new"):
        if (number := getattr(args, name)) is not None and number < 1:
            raise UsageError(f"{name} must be 1 or more, not {number}")
    require(NEEDED)
    folder = locate(args.model)
    if reason := needs_checkpoint(folder):
        raise KvcastError(f"{args.model} cannot be measured: bench runtimes {reason}")
    dimensions = read_dimensions(folder)
    kind = _KINDS.get(type(dimensions))
    if kind is None:
        names = " and ".join(kind.name for kind in _KINDS.values())
        raise KvcastError(f"{args.model} cannot be measured: bench runtimes takes {names}")
    options = kind.settings(args)
    runtimes, precisions = (list(dict.fromkeys(given)) for given in (args.runtimes, args.quantize))
    task = Task(model=args.model, folder=str(folder), threads=args.threads)
    with tempfile.TemporaryDirectory() as scratch:
        plan = kind.plan(dimensions, options, Path(scratch))
        measured = _measure(plan, task, runtimes, precisions, args.runs)
    settings = {
        "threads": args.threads,
        "runs": args.runs,
        "runtimes": runtimes,
        "precisions": precisions,
    }
    found = document(measured, plan, model=args.model, settings=settings)
    print(f"{render(found)}\n{json.dumps(found, ensure_ascii=False)}", flush=True)
    return 0


def _measure(
    plan: Plan, task: Task, runtimes: Sequence[str], precisions: Sequence[str], runs: int
) -> Measured:
    arena = Arena(
        threads=task.threads,
        contestant=plan.contestant,
        arguments={"task": asdict(task), **plan.arguments},
        report=say,
    )
    course = Course(arena=arena, quantize=precisions, runs=runs)

    def rates() -> Any:
        return course.rates(lambda precision: step_bytes(plan, precision), *plan.widest)

    before = rates()
    contenders = [
        kind(task, Form(runtime=runtime, precision=precision))
        for precision in precisions
        for runtime in runtimes
        for kind in plan.kinds
    ]
    with arena.seated(contenders) as (seats, absent):
        if not seats:
            raise KvcastError(
                "nothing can be measured: " + "; ".join(dict.fromkeys(absent.values()))
            )
        referee = Quiet(pids(seats))
        results = {
            measure: take_turns(
                players(seats), referee, {"measure": measure}, runs=runs, report=say
            )
            for measure in dict.fromkeys(plan.figures.values())
        }
    return Measured(contenders, seats, absent, results, known_rates(before, rates()))


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Models that are measured in one way.

    Attributes:
        name: what they are called.
        options: the command's options that are theirs alone, with their defaults.
        plan: makes a plan of dimensions, options, and a folder for files.

    """

    name: str
    options: Mapping[str, Any]
    plan: Callable[[Any, Mapping[str, Any], Path], Plan]

    def settings(self, args: argparse.Namespace) -> dict[str, Any]:
        """Return the options; raises UsageError for those that other models have."""
        given = {name: getattr(args, name) for name in _OWN if getattr(args, name) is not None}
        if foreign := sorted(given.keys() - self.options.keys()):
            raise UsageError(f"{_spelled(foreign[0])} says nothing of {self.name}")
        return {**self.options, **given}


def _spelled(option: str) -> str:
    return "AUDIO" if option == "audio" else f"--{option}"


def _speech_plan(
    dimensions: WhisperDimensions, options: Mapping[str, Any], folder: Path
) -> SpeechPlan:
    if options["audio"] is None:
        raise UsageError("a Whisper needs a recording: kvcast bench runtimes AUDIO")
    position = options["position"]
    if position >= dimensions.target_positions:
        raise UsageError(
            f"position must be below {dimensions.target_positions}, the decoder's, not {position}"
        )
    reference = options["reference"]
    if reference is not None:
        require(_REFERENCE_NEEDS)
    spoken = None if reference is None else read_reference(reference)
    samples = read_samples(options["audio"])
    file = folder / "samples.npy"
    np.save(file, samples, allow_pickle=False)
    return SpeechPlan(
        dimensions=dimensions,
        language=options["language"],
        position=position,
        samples=str(file),
        seconds=duration(samples),
        reference=spoken,
    )


def _text_plan(dimensions: DecoderDimensions, options: Mapping[str, Any], _: Path) -> TextPlan:
    prompt, new = options["prompt"], options["new"]
    if prompt + new + 1 > dimensions.max_positions:
        raise UsageError(
            f"{prompt} + {new + 1} tokens are more than the {dimensions.max_positions} that the "
            "model takes"
        )
    return TextPlan(dimensions=dimensions, prompt=prompt, new=new)


_KINDS: Mapping[type, _Kind] = {
    WhisperDimensions: _Kind(
        name="Whispers",
        options={"audio": None, "reference": None, "language": "en", "position": 100},
        plan=_speech_plan,
    ),
    DecoderDimensions: _Kind(
        name="decoder-only models", options={"prompt": 512, "new": 64}, plan=_text_plan
    ),
}
_OWN = [name for kind in _KINDS.values() for name in kind.options]
