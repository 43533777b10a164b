"""`--html` of `kvcast inspect cache` and `masks`: a page of all calls. Draws nothing itself."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kvcast.cli.arguments import filled
from kvcast.errors import UsageError
from kvcast.saving import save

if TYPE_CHECKING:
    from kvcast.inspect.schedule import Schedule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the page's options."""
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page, too, with a slider over the calls: slots, masks, tokens and costs",
    )
    parser.add_argument(
        "--model",
        type=filled,
        metavar="MODEL",
        help="whose kinds of layers the page shows, and whose operations and bytes it counts, as "
        "kvcast inspect cost takes it; --window is then drawn in place of its rings' own",
    )


def check(args: argparse.Namespace) -> None:
    """Raise UsageError for a model without a page."""
    if args.model is not None and args.html is None:
        raise UsageError("--model is what the page is about: add --html, or drop it")


def write(args: argparse.Namespace, schedule: "Schedule", texts: list[list[str]]) -> None:
    """Write the page of a schedule, with the words of its rows' tokens, if there are any."""
    from kvcast.inspect.page.pages import page

    # A model's rings have their own window, unless the user gave one.
    is_own = args.model is not None and not hasattr(args, "window")
    window = None if is_own else schedule.window
    save(args.html, page(schedule, window, getattr(args, "capacity", None), texts, args.model))
