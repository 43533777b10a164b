"""Reproduce published claims about caches: counts are counted again, times measured again.

Prints one or more Markdown tables for each claim. docs/sources.md has them, and explains each
claim.
"""

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from kvcast.errors import InputOutputError
from kvcast.saving import save
from kvcast_bench.commands import add_options, add_some, require
from kvcast_bench.sources.figures import Figures, markdown, write_figures

if TYPE_CHECKING:
    from kvcast_bench.sources.figures import Clock

_TIMED = ("cross", "conditional", "recomputed")
CLAIMS = ("cross", "conditional", "reset", "ring", "flops", "recomputed")
"""Modules of `kvcast_bench.sources`, in the page's order."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_some(parser, "--claims", CLAIMS, "those to work")
    add_options(parser, {"threads": (2, "of PyTorch"), "runs": (5, "after one to warm up")})
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write the tables into this page as well"
    )


def run(args: argparse.Namespace) -> str:
    """Measure; returns the output."""
    require("runtimes", "torch")
    from kvcast_bench.sources.figures import Clock

    page = _read(args.page) if args.page is not None else ""
    clock = Clock(runs=args.runs, threads=args.threads)
    figures = {claim: worked(claim, clock) for claim in dict.fromkeys(args.claims)}
    if args.page is not None:
        save(args.page, write_figures(page, figures))
    return "\n".join(f"{claim}\n\n{markdown(tables)}" for claim, tables in figures.items())


def worked(claim: str, clock: "Clock") -> Sequence[Figures]:
    measure: Callable[..., Sequence[Figures]]
    measure = import_module(f"kvcast_bench.sources.{claim}").measure
    if claim not in _TIMED:
        return measure()
    import torch

    torch.set_num_threads(clock.threads)
    return measure(clock)


def _read(page: Path) -> str:
    try:
        return page.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputOutputError(f"{page} cannot be read") from None
