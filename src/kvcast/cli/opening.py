"""Opening the model that a command's options name. Knows no command."""

import argparse
from typing import TYPE_CHECKING

from kvcast.cli import console
from kvcast.cli.arguments import OptionGroup

if TYPE_CHECKING:
    from kvcast.tasks.loading import OpenedModel


def opened(args: argparse.Namespace, loading: OptionGroup) -> "OpenedModel":
    """Load the model; says what was taken on trust, unless asked to be quiet."""
    from kvcast.tasks.loading import open_model

    found = open_model(**loading.keywords(args))
    if found.on_trust is not None and not args.quiet:
        console.say(f"{found.on_trust} is taken on trust: no bundle.json vouches for it")
    return found
