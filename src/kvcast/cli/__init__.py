"""The `kvcast` command: finds the subcommand, runs it, turns every outcome into an exit code.

A command's module is imported only when it is asked for, so that `--help` starts at once. Knows no
command's options.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence

import kvcast
from kvcast.cli import console
from kvcast.cli.arguments import Parser, normalise
from kvcast.cli.other_tools import translated
from kvcast.cli.signals import TERMINATED, Terminated, terminable
from kvcast.errors import UsageError
from kvcast.spec.runtimes import RUNTIMES

__all__ = ["main"]

*_OTHERS, _LAST = (runtime.title for runtime in RUNTIMES.values())
DESCRIPTION = (
    "Turn recordings into text with Whisper models, and continue text with language models, "
    f"on {', '.join(_OTHERS)} or {_LAST}."
)


def _add_transcribe(parser: Parser) -> None:
    from kvcast.cli import transcribe

    parser.set_defaults(run=transcribe.run)
    transcribe.add_arguments(parser)


def _add_detect(parser: Parser) -> None:
    from kvcast.cli import detect

    parser.set_defaults(run=detect.run)
    detect.add_arguments(parser)


def _add_align(parser: Parser) -> None:
    from kvcast.cli import align

    parser.set_defaults(run=align.run)
    align.add_arguments(parser)


def _add_generate(parser: Parser) -> None:
    from kvcast.cli import generate

    parser.set_defaults(run=generate.run)
    generate.add_arguments(parser)


def _add_serve(parser: Parser) -> None:
    from kvcast.cli import serve

    parser.set_defaults(run=serve.run)
    serve.add_arguments(parser)


def _add_export(parser: Parser) -> None:
    from kvcast.cli import export

    parser.set_defaults(run=export.run)
    export.add_arguments(parser)


def _add_quantize(parser: Parser) -> None:
    from kvcast.cli import quantize

    parser.set_defaults(run=quantize.run)
    quantize.add_arguments(parser)


def _add_verify(parser: Parser) -> None:
    from kvcast.cli import verify

    parser.set_defaults(run=verify.run)
    verify.add_arguments(parser)


def _add_models(parser: Parser) -> None:
    from kvcast.cli import models

    parser.set_defaults(run=models.run)
    models.add_arguments(parser)


def _add_bench(parser: Parser) -> None:
    from kvcast.cli import bench

    bench.add_arguments(parser)


def _add_inspect(parser: Parser) -> None:
    from kvcast.cli import inspect

    inspect.add_arguments(parser)


def _add_doctor(parser: Parser) -> None:
    from kvcast.cli import doctor

    parser.set_defaults(run=doctor.run)
    doctor.add_arguments(parser)


COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "transcribe": ("turn recordings into text", _add_transcribe),
    "detect": ("tell which language recordings are in", _add_detect),
    "align": ("tell when each word of a text is spoken in a recording", _add_align),
    "generate": ("continue text with a language model", _add_generate),
    "serve": ("offer models over HTTP, with OpenAI's interface", _add_serve),
    "export": ("turn a model into a bundle for one of the runtimes", _add_export),
    "quantize": ("find the precision of each matrix that changes few tokens", _add_quantize),
    "verify": ("compare a model's cached results with those without a cache", _add_verify),
    "inspect": ("show how a model works: masks, caches, costs, attention", _add_inspect),
    "doctor": ("show which runtimes work here, and why the rest do not", _add_doctor),
    "models": ("list the models and runtimes that are known", _add_models),
    "bench": ("time kvcast against other programs", _add_bench),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; docs/cli.md lists them."""
    console.prepare_output()
    try:
        with terminable():
            args = _parsed(normalise(sys.argv[1:] if argv is None else argv))
            run: Callable[[Namespace], int] = args.run
            return run(args)
    except console.ClosedPipeError as left:
        return left.exit_code
    except KeyboardInterrupt:
        console.say("interrupted")
        return console.INTERRUPTED
    except Terminated:
        console.say("terminated")
        return TERMINATED
    except Exception as error:
        return console.report(error)


def _parsed(words: list[str]) -> Namespace:
    """Return the arguments of a command, of which `run` runs it; only its options are declared."""
    parser = Parser(prog="kvcast", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"kvcast {kvcast.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    asked_for = next((word for word in words if not word.startswith("-")), None)
    for name, (summary, add_arguments) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
        if name == asked_for:
            add_arguments(command)
    args, unknown = parser.parse_known_args(translated(asked_for or "", words))
    if unknown:
        prog = f"kvcast {asked_for}" if asked_for in COMMANDS else "kvcast"
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}; see {prog} --help")
    if asked_for is None:
        raise UsageError(f"a command is missing: {', '.join(COMMANDS)}; see kvcast --help")
    return args
