"""`kvcast verify MODEL`: checks a model's cached results against uncached ones."""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvcast.cli import console
from kvcast.cli.arguments import add_options, filled, headings, keywords
from kvcast.cli.console import progress
from kvcast.cli.prompts import read_prompts
from kvcast.errors import InputMissingError, InputOutputError, UsageError
from kvcast.loading.params import LOADING, LoadParams
from kvcast.saving import check_target, save
from kvcast.verification.params import VERIFYING, VerifyParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcast.engine.model import Model
    from kvcast.verification.cases import Case
    from kvcast.verification.report import Report

_OUTPUT = "output"
_LEFT_OUT = frozenset({"generation_config"})

EPILOG = """\
A bundle keeps the report in its bundle.json; its other files stay as they are. Exit codes: 0 all
checks passed, 1 one failed or an error, 2 wrong usage, 66 input missing, 74 cannot read or write,
130 interrupted. docs/verify.md explains the checks, docs/verification.schema.json describes the
document that --json prints.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=filled,
        help="a bundle, or whatever kvcast export takes, which is opened on --runtime",
    )
    under = headings(parser, VERIFYING, LOADING, _OUTPUT)
    under[VERIFYING].add_argument(
        "--foreign",
        type=Path,
        metavar="FOLDER",
        help="instead of MODEL: a decoder that optimum, onnxruntime-genai or optimum-executorch "
        "exported",
    )
    add_options(under, VerifyParams)
    under[VERIFYING].add_argument(
        "--audio",
        action="append",
        default=[],
        metavar="FILE",
        help="a recording whose first window is encoded, instead of noise; may be repeated",
    )
    under[VERIFYING].add_argument(
        "--prompts",
        metavar="FILE",
        help="a text file, or JSON Lines, with a prompt or a source a line, instead of random ones",
    )
    add_options(under, LoadParams, leave_out=_LEFT_OUT)
    under[_OUTPUT].add_argument("--json", action="store_true", help="print one JSON document")
    under[_OUTPUT].add_argument(
        "--junit", type=Path, metavar="FILE", help="write the report as JUnit XML as well"
    )
    under[_OUTPUT].add_argument(
        "--quiet", "-q", action="store_true", help="no progress and no notices"
    )


def run(args: argparse.Namespace) -> int:
    if (args.model is None) == (args.foreign is None):
        raise UsageError("give a MODEL, or the folder of another exporter with --foreign")
    if args.junit is not None:
        check_target(args.junit)
    report = _verified(args) if args.foreign is None else _foreign(args)
    if args.junit is not None:
        save(args.junit, report.junit())
    if args.json:
        console.emit(json.dumps(report.document(), ensure_ascii=False, allow_nan=False) + "\n")
    else:
        lines = [console.printable(line.rstrip("\n")) for line in report.lines()]
        console.emit("\n".join(lines) + "\n")
    return 0 if report.passed else 1


def _foreign(args: argparse.Namespace) -> "Report":
    from kvcast.verification.foreign.verifying import verify_foreign

    own = ("audio", "prompts", "runtime", "quantize", "dtype", "cache", "adapter")
    if given := [f"--{name}" for name in own if getattr(args, name)]:
        raise UsageError(f"--foreign takes the folder as it is: drop {' and '.join(given)}")
    with progress(quiet=args.quiet).waiting(f"verifying {args.foreign}") as on_phase:
        return verify_foreign(
            args.foreign,
            **keywords(args, VerifyParams),
            threads=args.threads,
            trust=args.trust,
            on_phase=on_phase,
        )


def _verified(args: argparse.Namespace) -> "Report":
    from kvcast.verification.subject import open_subject
    from kvcast.verification.verifying import verify

    params = VerifyParams(**keywords(args, VerifyParams))
    read = _inputs(args)
    with progress(quiet=args.quiet).waiting(f"verifying {args.model}") as on_phase:
        opening = LoadParams(**keywords(args, LoadParams), on_phase=on_phase)
        subject = open_subject(args.model, opening, against=params.against, cases_of_model=read)
        report = verify(subject, positions=params.positions, seed=params.seed, on_phase=on_phase)
    try:
        subject.keep(report)
    except InputOutputError as error:
        if not args.quiet:
            console.say(f"the bundle does not keep the report: {error}")
    return report


def _inputs(args: argparse.Namespace) -> "Callable[[Model], Sequence[Case]]":
    """Return a function from the model to the inputs of rows; files are checked now."""
    from kvcast.verification.cases import cases_of_prompts, cases_of_recordings

    if args.prompts is not None and args.audio:
        raise UsageError("a model takes audio or text: give --audio or --prompts")
    if args.prompts is not None:
        lines = read_prompts(args.prompts)
        if any(line.system is not None for line in lines):
            raise UsageError("prompts are read as they are: leave out system")
        return partial(cases_of_prompts, texts=[line.text for line in lines])
    for path in args.audio:
        if not Path(path).exists():
            raise InputMissingError(f"{path}: there is no such file")
    return partial(cases_of_recordings, paths=args.audio) if args.audio else lambda _: ()
