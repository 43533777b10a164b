"""Time one model on every runtime, in every precision, and a baseline without cross caches.

Every variant runs in a process of its own and they take turns, each with the machine to itself. A
Whisper takes one step of the decoder, one encode, and a recording end to end, and so does, beside
each variant, a baseline that projects cross keys and values anew in every call, as most exports do.
Of a decoder-only model it times the first token and a token after it. Prints tables with what the
machine could do at best, and as its last line one JSON object. docs/bench.md says how it is
measured and what every figure means.
"""

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from kvcast.bench.commands import (
    EVERYBODYS,
    Kind,
    Kinds,
    add_kinds,
    add_numbers,
    add_some,
    check_positive,
    kind_of,
    recording,
    require,
    show,
)
from kvcast.bench.layout import Found, Layout, Table
from kvcast.bench.models import CausalModel, Model, SpeechModel
from kvcast.bench.peers.kvcast import PRECISIONS, REFERENCE, RUNTIMES, Kvcast
from kvcast.bench.probes import ENCODE, STEP
from kvcast.bench.recompute.backend import Recomputing
from kvcast.bench.report import Benchmark, measure
from kvcast.bench.runner import Runner
from kvcast.bench.workloads.causal import FIRST, TEXT, Causal
from kvcast.bench.workloads.speech import TRANSCRIBE, WORD_ERROR, Speech
from kvcast.checkpoints.source import locate
from kvcast.errors import KvcastError, UsageError
from kvcast.spec.decoder import DecoderDimensions
from kvcast.spec.whisper import WhisperDimensions

NEEDED = ("psutil",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments; those of one kind of model alone have no default here."""
    parser.add_argument("audio", metavar="AUDIO", nargs="?", help="for a Whisper: a recording")
    parser.add_argument(
        "--model",
        default="demo",
        help="a Whisper or a decoder-only model: a checkpoint folder, GGUF file, hub id, demo, "
        "demo-base or demo-chat (default: demo)",
    )
    add_some(parser, "--runtimes", RUNTIMES, "each takes part", nargs="+")
    words = "int8 and int4 are 8da8w and 8da4w on ExecuTorch"
    add_some(parser, "--quantize", PRECISIONS, words, nargs="+")
    add_numbers(parser, EVERYBODYS)
    add_kinds(parser, _KINDS)
    parser.add_argument("--reference", type=Path, metavar="FILE", help="what a Whisper hears")
    parser.add_argument("--language", help="code of what a Whisper hears (default: en)")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    check_positive(args, EVERYBODYS, _KINDS)
    require(*NEEDED)
    folder = locate(args.model)
    if reason := Model(folder=str(folder), threads=args.threads).needs_checkpoint():
        raise KvcastError(f"{args.model} cannot be measured: bench runtimes {reason}")
    kind, dimensions = kind_of(_KINDS, folder, args.model, "runtimes")
    chosen = kind.chosen(args, _KINDS)
    with _heard(chosen) as heard:
        workload = kind.workload(dimensions=dimensions, **chosen, **heard)
        model = kind.model(folder=str(folder), threads=args.threads)
        runtimes, precisions = map(list, map(dict.fromkeys, (args.runtimes, args.quantize)))
        backends: list[Kvcast] = [
            make(model, runtime, precision)
            for precision in precisions
            for runtime in runtimes
            for make in _BACKENDS[kind.model]
        ]
        benchmark = Benchmark(
            name="runtimes",
            model=args.model,
            runner=Runner(workload=workload, threads=args.threads, runs=args.runs),
            backends=backends,
            references={backend.name: compared(backend) for backend in backends},
            settings={"runtimes": runtimes, "precisions": precisions},
        )
        return show(measure(benchmark), kind.layout)


def _heard(chosen: dict[str, Any]) -> AbstractContextManager[dict[str, Any]]:
    """Take the recording out of a Whisper's options, and give what its workload is told of it."""
    if "audio" not in chosen:
        return nullcontext({})
    audio, reference = chosen.pop("audio"), chosen.pop("reference")
    if audio is None:
        raise UsageError("a Whisper needs a recording: kvcast bench runtimes AUDIO")
    if reference is not None:
        require("jiwer")
    return recording(audio, reference)


def _causal(*, dimensions: DecoderDimensions, prompt: int, new: int) -> Causal:
    middle = prompt + new // 2
    return Causal(
        dimensions=dimensions, prompt=prompt, new=new, step_at=middle, peak_per_turn=False
    )


def compared(backend: Kvcast) -> dict[str, str]:
    """Compare with ONNX Runtime in the same precision, and a baseline with what caches."""
    same = {"onnx": f"{REFERENCE}-{backend.precision}"}
    cached = {"cached": f"{backend.runtime}-{backend.precision}"}
    return {**same, **cached} if backend.recomputes else same


def _speech_tables(found: Found) -> Sequence[Table]:
    settings = found["settings"]
    sources = settings["source_positions"]
    one = {
        STEP: "one step of the decoder alone: 1 row, 1 new token at position "
        f"{settings['position']}, {sources} source positions; of 20 the median",
        ENCODE: f"one encode: 1 window of {sources} positions; cross keys and values too, unless "
        "steps recompute them; of 3 the median",
        TRANSCRIBE: f"{settings['audio']['seconds']:.2f} s of sound to text: greedy (beam 1), "
        "temperature 0, timestamps, no prompt",
    }
    return [
        Table(
            measure=measure,
            metrics={measure: "median ms"},
            line=line,
            floors=measure != TRANSCRIBE,
            facts=WORD_ERROR if measure == TRANSCRIBE else {},
        )
        for measure, line in one.items()
    ]


def _causal_tables(found: Found) -> Sequence[Table]:
    settings = found["settings"]
    one = {
        FIRST: f"the first token: a prompt of {settings['prompt']} random tokens, 1 row, greedy",
        STEP: f"a token after it: the mean of {settings['new']}, 1 row, greedy, end tokens ignored",
    }
    return [
        Table(measure=TEXT, metrics={metric: "median ms"}, line=line, floors=True)
        for metric, line in one.items()
    ]


LAYOUTS = {"speech": Layout(tables=_speech_tables), "causal": Layout(tables=_causal_tables)}
_BACKENDS = {SpeechModel: (Kvcast, Recomputing), CausalModel: (Kvcast,)}
_KINDS: Kinds = {
    WhisperDimensions: Kind(
        name="Whispers",
        model=SpeechModel,
        workload=partial(Speech, beams=[1]),
        layout=LAYOUTS["speech"],
        options={"position": (100, "of the step that is timed")},
        words={"audio": None, "reference": None, "language": "en"},
    ),
    DecoderDimensions: Kind(
        name="decoder-only models",
        model=CausalModel,
        workload=_causal,
        layout=LAYOUTS["causal"],
        options={"prompt": (512, "tokens of the prompt"), "new": (64, "tokens after the first")},
    ),
}
