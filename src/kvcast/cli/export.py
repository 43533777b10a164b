"""`kvcast export MODEL --output DIR`: exports and tells what was written.

Knows no format of models or bundles, and not which destinations may be replaced.
"""

import argparse
from pathlib import Path

import kvcast
from kvcast.cli import console
from kvcast.cli.arguments import OptionGroup, filled, option
from kvcast.cli.progress import progress
from kvcast.cli.transcribe_options import QUANTIZATIONS

EPILOG = """\
An existing bundle is replaced with --force; a folder that holds anything else never is.
Exit codes: 0 done, 1 error, 2 wrong usage, 66 model missing, 74 cannot read or write,
130 interrupted (the destination is as it was before).
"""

EXPORTING = OptionGroup(
    "export",
    (
        option(
            "--runtime",
            default="onnx",
            choices=("onnx", "aoti", "executorch"),
            help="what the bundle runs on (default: onnx; aoti is AOTInductor, native code for "
            "this machine, and needs g++; executorch needs kvcast[executorch])",
        ),
        option(
            "--output",
            "-o",
            type=Path,
            required=True,
            metavar="DIR",
            help="the bundle's folder, made by this command",
        ),
        option(
            "--quantize",
            choices=QUANTIZATIONS,
            help="how weights are stored (default: int8 on onnx, none on aoti, 8da8w on "
            "executorch; the last two are executorch's)",
        ),
        option(
            "--dtype",
            choices=("fp32", "bf16", "fp16"),
            help="numbers of what is not quantised, on aoti (default: fp32; bf16 where weights "
            "are quantised)",
        ),
        option(
            "--cache",
            choices=("fp32", "int8"),
            help="numbers of a text model's keys and values on onnx (default: fp32)",
        ),
        option(
            "--device",
            default="cpu",
            choices=("cpu", "cuda"),
            help="what aoti compiles for (default: cpu)",
        ),
        option(
            "--max-autotune",
            action="store_true",
            help="let aoti try several forms of every product and keep the fastest; takes minutes",
        ),
        option(
            "--force",
            keyword="overwrite",
            action="store_true",
            help="replace an existing bundle",
        ),
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = EPILOG
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=filled,
        help="a Hugging Face, CTranslate2 or Mistral folder, a GGUF file, a hub id "
        "org/name[@revision], or demo, demo-base, demo-chat, demo-t5, demo-unilm",
    )
    EXPORTING.add_to(parser)
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Export and print every file with its size; returns the exit code."""
    with progress(quiet=args.quiet).waiting(f"exporting {args.model}") as on_phase:
        bundle = kvcast.export_bundle(args.model, on_phase=on_phase, **EXPORTING.keywords(args))
    written = sorted(path for path in bundle.rglob("*") if path.is_file())
    for path in written:
        console.emit(f"{console.readable_size(path.stat().st_size):>10}  {path}\n")
    console.emit(
        f"{console.readable_size(sum(path.stat().st_size for path in written)):>10}  {bundle}\n"
    )
    return 0
