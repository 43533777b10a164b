"""The `kvcast` command: finds the subcommand, runs it, turns every outcome into an exit code.

A command's module is imported only when it runs, so that `--help` starts at once.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module

import kvcast
from kvcast.cli import console
from kvcast.cli.arguments import Parser, normalise
from kvcast.cli.console import TERMINATED, Terminated, terminable
from kvcast.cli.option_aliases import translated
from kvcast.errors import UsageError
from kvcast.spec.runtimes import RUNTIMES

__all__ = ["main"]

*_OTHERS, _LAST = (runtime.title for runtime in RUNTIMES.values())
DESCRIPTION = (
    "Turn recordings into text with speech models, and generate text with language models, "
    f"on {', '.join(_OTHERS)} or {_LAST}."
)


COMMANDS = {
    "transcribe": "turn recordings into text",
    "detect": "detect the language of recordings",
    "align": "find when each word of a text is spoken in a recording",
    "generate": "continue text with a language model",
    "serve": "offer models over HTTP, with OpenAI's interface",
    "export": "turn a model into a bundle for one of the runtimes",
    "quantize": "find the precision of each matrix that changes few tokens",
    "verify": "compare a model's cached results with those without a cache",
    "inspect": "show how a model works: masks, caches, costs, attention",
    "doctor": "show which runtimes work here, and why the rest do not",
    "models": "list the models and runtimes that are known",
    "bench": "time kvcast against other programs",
}  # each command is a module here: `add_arguments(parser)` sets `run`, or the module has one


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
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
        if name == asked_for:
            module = import_module(f"kvcast.cli.{name}")
            command.set_defaults(run=getattr(module, "run", None))
            module.add_arguments(command)
    args, unknown = parser.parse_known_args(translated(asked_for or "", words))
    if unknown:
        prog = f"kvcast {asked_for}" if asked_for in COMMANDS else "kvcast"
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}; see {prog} --help")
    if asked_for is None:
        raise UsageError(f"a command is missing: {', '.join(COMMANDS)}; see kvcast --help")
    return args
