"""`kvcast bench …`: hands over to kvcast.bench, which is imported only here."""

import argparse

from kvcast.bench import generate, transcribe

_BENCHMARKS = {
    "transcribe": (
        transcribe,
        "time transcription against the installed peers on the same audio",
    ),
    "generate": (
        generate,
        "time generation against the installed peers with the same weights",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare one command per benchmark; each sets `run`."""
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    for name, (benchmark, summary) in _BENCHMARKS.items():
        command = benchmarks.add_parser(name, help=summary, description=benchmark.__doc__)
        benchmark.add_arguments(command)
        command.set_defaults(run=benchmark.run)
