"""The `kvcast` command: finds the subcommand, runs it, turns every outcome into an exit code.

A command's module is imported only when it runs, so that `--help` starts at once.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
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

EPILOG = "kvcast COMMAND --help explains a command. kvcast doctor shows what works here."

COMMANDS = {
    "transcribe": "turn recordings into text",
    "detect": "detect the language of recordings",
    "align": "find when each word of a text is spoken in a recording",
    "generate": "answer a message, or continue a text, with a language model",
    "chat": "talk with a language model in the terminal",
    "embed": "turn texts into vectors",
    "rerank": "order documents by their relevance for a query",
    "serve": "offer models over HTTP, with OpenAI's interface",
    "export": "turn a model into a bundle for one of the runtimes",
    "quantize": "find the precision of each matrix that changes few tokens",
    "verify": "compare a model's cached results with those without a cache",
    "inspect": "show how a model works: masks, caches, costs, attention",
    "doctor": "show which runtimes work here, and why the rest do not",
    "list": "list the models on this machine",
    "pull": "download models",
    "rm": "remove downloaded models",
    "completion": "print a shell's completion of commands and options",
    "models": "list the models and runtimes that are known",
    "bench": "time kvcast against other programs",
}  # each command is a module here: `add_arguments(parser)` sets `run`, or the module has one
_OTHER_NAMES = {
    "run": "chat",
    "ls": "list",
    "remove": "rm",
    "show": "doctor",
}  # Ollama's and others'
_MODULES = {"list": "list_models"}  # a module `list` would hide the class


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
    asked_for = next((word for word in words if not word.startswith("-")), None)
    if asked_for is not None and asked_for in _OTHER_NAMES:
        place, asked_for = words.index(asked_for), _OTHER_NAMES[asked_for]
        words = [*words[:place], asked_for, *words[place + 1 :]]
    if asked_for is not None and asked_for not in COMMANDS:
        if os.path.lexists(asked_for):
            likely = "chat" if asked_for.endswith(".gguf") else "transcribe"
            raise UsageError(f"a command is missing: did you mean kvcast {likely} {asked_for}?")
        resembled = get_close_matches(asked_for, COMMANDS, n=1)
        meant = f"did you mean {resembled[0]}?" if resembled else f"{', '.join(COMMANDS)}."
        raise UsageError(f"there is no command {asked_for!r}: {meant} See kvcast --help")
    parser, commands = parsers([asked_for] if asked_for else [])
    args, unknown = parser.parse_known_args(translated(asked_for or "", words))
    if unknown:
        command = commands.get(asked_for or "", parser)
        meant = f" (did you mean {close}?)" if (close := command.meant(unknown[0])) else ""
        raise UsageError(
            f"unrecognized arguments: {' '.join(unknown)}{meant}; see {command.prog} --help"
        )
    if asked_for is None:
        raise UsageError(f"a command is missing: {', '.join(COMMANDS)}; see kvcast --help")
    return args


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


def parsers(declared: Collection[str]) -> tuple[Parser, dict[str, Parser]]:
    """Return the parser and those of all commands; only the `declared` ones have arguments."""
    parser = Parser(prog="kvcast", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"kvcast {kvcast.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    of_commands: dict[str, Parser] = {}
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=_sentence(summary))
        of_commands[name] = command
        if name in declared:
            module = import_module(f"kvcast.cli.{_MODULES.get(name, name)}")
            command.set_defaults(run=getattr(module, "run", None))
            module.add_arguments(command)
            command.show_all()
    return parser, of_commands
