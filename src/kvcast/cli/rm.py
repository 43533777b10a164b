"""`kvcast rm NAME…`: removes downloaded models, and copies in the cache folder."""

import argparse

from kvcast.cli import console
from kvcast.cli.arguments import filled
from kvcast.errors import UsageError

EPILOG = """\
Removes all revisions of a model from huggingface_hub's cache, which other programs share, or a copy
that kvcast list shows in kvcast's own cache, by its folder. Other folders and files are left alone.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "names",
        nargs="+",
        type=filled,
        metavar="NAME",
        help="a downloaded model, as it was pulled, or a copy",
    )
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    from kvcast.loading.local_models import removal

    for name, remove in map(removal, args.names):
        if not args.yes and not console.confirmed(f"remove {name}?", default=False):
            raise UsageError(f"{name} is kept: --yes removes it without a question")
        console.say(f"{name}: removed, {console.readable_size(remove())}")
    return 0
