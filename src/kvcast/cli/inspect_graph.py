"""`kvcast inspect graph`: what a runtime executes, layer by layer. Reads and draws nothing."""

import argparse
import json
from pathlib import Path

from kvcast.cli import console
from kvcast.cli.arguments import add_options, filled, keywords, whole_number
from kvcast.cli.progress import progress
from kvcast.loading.params import LOADING, LoadParams
from kvcast.saving import check_target, save

SUMMARY = "show what a runtime executes: operators, bytes read and written, caches copied or not"

_MOST = 1 << 20
_LEFT_OUT = ("adapter", "threads", "trust", "generation_config")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the view's arguments; sets `run`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=filled,
        help="a bundle, a package (.pt2, .pte), or a model to open on --runtime, exported if "
        "it has to be; no program is run",
    )
    for name, default, meaning in (
        ("length", 64, "positions that each row holds before the call"),
        ("new", 1, "tokens of each row in the call"),
        ("rows", 1, "rows, each with an encoded input of its own"),
    ):
        parser.add_argument(
            f"--{name}",
            type=whole_number(0 if name == "length" else 1, _MOST),
            default=default,
            metavar="N",
            help=f"{meaning} (default: {default})",
        )
    parser.add_argument(
        "--source",
        type=whole_number(1, _MOST),
        metavar="N",
        help="positions of an encoded input, where they vary (default: 128)",
    )
    add_options({LOADING: parser}, LoadParams, leave_out=_LEFT_OUT)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw into this file as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, draw and print; raises what goes wrong."""
    from kvcast.inspect.graph import document, render
    from kvcast.inspect.graph_picture import draw
    from kvcast.loading.opening import CallSizes, read_traffic

    if args.svg is not None:
        check_target(args.svg)
    sizes = CallSizes(rows=args.rows, length=args.length, new=args.new, source=args.source)
    with progress(quiet=args.json).waiting(f"reading {args.model}") as on_phase:
        params = LoadParams(**keywords(args, LoadParams), on_phase=on_phase)
        model = read_traffic(args.model, params, sizes)
    if args.svg is not None:
        save(args.svg, draw(args.model, model))
    shown = json.dumps(document(args.model, model))
    console.emit(f"{shown}\n" if args.json else render(args.model, model))
    return 0
