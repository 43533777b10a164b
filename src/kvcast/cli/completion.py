"""`kvcast completion SHELL`: a script that completes commands and options, by shtab."""

import argparse

from kvcast.cli import console

SHELLS = ("bash", "zsh", "fish")

EPILOG = """\
  kvcast completion bash > ~/.local/share/bash-completion/completions/kvcast
  kvcast completion zsh > "${fpath[1]}/_kvcast"
  kvcast completion fish > ~/.config/fish/completions/kvcast.fish

The script runs no Python. Print it again after an update.
"""
_COMPLETED = {"FILE": "file", "AUDIO": "file", "TEXT": "file", "MODEL": "file", "DIR": "directory"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    import shtab

    from kvcast.cli import COMMANDS, bench, parsers

    kinds = {"file": shtab.FILE, "directory": shtab.DIRECTORY}
    whole, commands = parsers(
        [name for name in COMMANDS if name != "bench" or bench.is_installed()]
    )
    for parser in commands.values():
        for action in parser.arguments:
            if action.metavar in _COMPLETED and action.choices is None:
                action.complete = kinds[_COMPLETED[action.metavar]]  # type: ignore[attr-defined]
    console.emit(shtab.complete(whole, args.shell))
    return 0
