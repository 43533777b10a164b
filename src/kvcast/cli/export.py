"""`kvcast export MODEL --output DIR`: exports and lists the written files."""

import argparse
from pathlib import Path

import kvcast
from kvcast.cli import console
from kvcast.cli.arguments import add_options, filled, headings, keywords
from kvcast.cli.console import progress
from kvcast.loading.params import LOADING, ExportParams
from kvcast.spec.runtimes import CALIBRATED

EPILOG = """\
An existing bundle is replaced with --force; a folder that holds anything else never is.
Exit codes: 0 done, 1 error, 2 wrong usage, 66 model missing, 74 cannot read or write,
130 interrupted, 143 terminated (the destination is as it was before).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=filled,
        help="a Hugging Face, CTranslate2 or Mistral folder, a GGUF file, a hub id "
        "org/name[@revision], or demo, demo-base, demo-chat, demo-t5, demo-unilm",
    )
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        required=True,
        metavar="DIR",
        help="the bundle's folder, made by this command",
    )
    add_options(headings(parser, LOADING), ExportParams)
    parser.add_argument(
        "--quiet", "-q", action="store_true", help="no progress and no list of files"
    )


def run(args: argparse.Namespace) -> int:
    with progress(quiet=args.quiet).waiting(f"exporting {args.model}") as on_phase:
        bundle = kvcast.export_bundle(
            args.model, args.output, on_phase=on_phase, **keywords(args, ExportParams)
        )
    if args.quiet:
        return 0
    if args.quantize == CALIBRATED:
        from kvcast.loading.exporting import calibration_summary

        console.say(calibration_summary(bundle))
    written = sorted(path for path in bundle.rglob("*") if path.is_file())
    sizes = {path: path.stat().st_size for path in written}
    for path, size in [*sizes.items(), (bundle, sum(sizes.values()))]:
        console.emit(f"{console.readable_size(size):>10}  {console.printable(str(path))}\n")
    return 0
