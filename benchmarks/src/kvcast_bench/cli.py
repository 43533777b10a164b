"""The words after `kvcast bench`: one subcommand a benchmark."""

import argparse
from functools import partial
from typing import Any

from kvcast.cli import console
from kvcast.cli.arguments import Parser
from kvcast.errors import UsageError
from kvcast_bench.commands import generate, gpu, opening, runtimes, serve, sources, transcribe

_BENCHMARKS = {
    "transcribe": (
        transcribe,
        "time transcription against the installed peers on the same audio",
    ),
    "generate": (
        generate,
        "time generation against the installed peers with the same weights",
    ),
    "runtimes": (
        runtimes,
        "time a model on every runtime, beside recomputing without caches",
    ),
    "serve": (
        serve,
        "time kvcast serve against other servers, with many clients",
    ),
    "open": (opening, "time opening a model in a new process, and its memory, beside llama.cpp"),
    "sources": (sources, "work published claims about caches again: counts, and times in turns"),
    "gpu": (gpu, "time decoding steps on a CUDA device, beside its memory's limit"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare one command per benchmark; each sets `run`."""
    parser.add_argument(
        "--device", choices=["cuda"], help="without a BENCHMARK: the same as bench gpu"
    )
    parser.set_defaults(run=_run_alone)
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK")
    for name, (benchmark, summary) in _BENCHMARKS.items():
        command = benchmarks.add_parser(name, help=summary, description=benchmark.__doc__)
        benchmark.add_arguments(command)
        command.set_defaults(run=partial(_run, benchmark))


def _run(benchmark: Any, args: argparse.Namespace) -> int:
    if args.device is not None and benchmark is not gpu:
        raise UsageError(f"--device {args.device} is bench gpu's alone: drop it")
    console.emit(benchmark.run(args))
    return 0


def _run_alone(args: argparse.Namespace) -> int:
    if args.device is None:
        raise UsageError(
            f"a benchmark is missing: {', '.join(_BENCHMARKS)}; see kvcast bench --help"
        )
    parser = Parser(prog="kvcast bench gpu")
    gpu.add_arguments(parser)
    console.emit(gpu.run(parser.parse_args([])))
    return 0
