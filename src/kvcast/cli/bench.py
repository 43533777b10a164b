"""`kvcast bench transcribe`: hands over to kvcast.bench, which is imported only here."""

import argparse

from kvcast.bench import transcribe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare one command per benchmark; each sets `run`."""
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    command = benchmarks.add_parser(
        "transcribe",
        help="time transcription against the installed peers on the same audio",
        description=transcribe.__doc__,
    )
    transcribe.add_arguments(command)
    command.set_defaults(run=transcribe.run)
