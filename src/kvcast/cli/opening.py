"""Opening the model that a command's options name. Knows no command."""

import argparse
from typing import TYPE_CHECKING

import kvcast
from kvcast.cli import console
from kvcast.cli.arguments import OptionGroup

if TYPE_CHECKING:
    from kvcast.tasks.loading import Model


def opened(args: argparse.Namespace, loading: OptionGroup) -> "Model":
    """Load the model; says what is taken on trust, unless asked to be quiet."""
    if args.trust and not args.quiet:
        from kvcast.tasks.loading import package_on_trust

        if package := package_on_trust(args.model, args.runtime):
            console.say(f"{package} is taken on trust: no bundle.json vouches for it")
    return kvcast.load(**loading.keywords(args))
