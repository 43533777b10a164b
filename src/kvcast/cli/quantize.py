"""`kvcast quantize MODEL --budget FLIPS --on AUDIO|TEXT`: finds a recipe, shows the frontier."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcast.cli import console
from kvcast.cli.arguments import add_options, filled, headings, keywords
from kvcast.cli.console import progress
from kvcast.errors import UsageError
from kvcast.loading.params import LOADING
from kvcast.quantizing.params import SEARCH, QuantizeParams
from kvcast.saving import check_target, save
from kvcast.spec.recipes import names_recipe

if TYPE_CHECKING:
    from kvcast.quantizing.finding import Found, Measured

JSON_FORMAT = "kvcast.quantize"
JSON_VERSION = 1

EPILOG = """\
What is written is followed by --quantize RECIPE.json of kvcast export, transcribe, generate and
serve. Each matrix lies in memory in fp32, int8 and int4 at once, 1.4 times what fp32 takes.
Exit codes: 0 done, 1 error, 2 wrong usage, 66 model or input missing, 74 cannot read or write,
130 interrupted, 143 terminated.
docs/quantize.md explains the search; docs/quantize.schema.json describes what --json prints.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=filled,
        help="a folder, a GGUF file, a hub id org/name[@revision], or demo, demo-base, demo-chat, "
        "demo-t5, demo-unilm",
    )
    parser.add_argument(
        "--output", "-o", type=Path, metavar="RECIPE.json", help="write the recipe to this file"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the frontier to this file")
    add_options(headings(parser, SEARCH, LOADING), QuantizeParams)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    if args.output is not None and not names_recipe(str(args.output)):
        raise UsageError(f"--output must end in .json, not {args.output}")
    for target in filter(None, (args.output, args.svg)):
        check_target(target)  # before minutes of work
    from kvcast.quantizing.finding import draw, find_recipe, summary, table

    with progress(quiet=args.quiet).waiting(f"quantising {args.model}") as on_phase:
        params = QuantizeParams(**keywords(args, QuantizeParams), on_phase=on_phase)
        found = find_recipe(args.model, params)
    if args.output is not None:
        save(args.output, found.recipe.text())
    if args.svg is not None:
        save(args.svg, draw(f"{found.recipe.model}: flips and bytes", found, args.budget))
    if args.json:
        document = {"format": JSON_FORMAT, "version": JSON_VERSION, **_fields(args, found)}
        console.emit(json.dumps(document, ensure_ascii=False) + "\n")
    else:
        console.emit("".join(f"{line}\n" for line in (*table(found), *summary(found))))
    return 0


def _fields(args: argparse.Namespace, found: "Found") -> dict[str, Any]:
    return {
        "model": args.model,
        "on": args.on,
        "budget": args.budget,
        "positions": found.positions,
        "recipe": found.recipe.fields(),
        "points": [_point(point) for point in found.points],
        "parts": {
            target: [asdict(level) for level in levels] for target, levels in found.alone.items()
        },
        "seconds": found.seconds,
    }


def _point(point: "Measured") -> dict[str, Any]:
    return {
        "name": point.name,
        "flips": point.flips,
        "bytes": point.size,
        "token": asdict(point.token),
        "recipe": None if point.recipe is None else point.recipe.fields(),
    }
