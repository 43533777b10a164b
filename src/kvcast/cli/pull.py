"""`kvcast pull NAME…`: downloads models, so that they open without the network."""

import argparse

from kvcast.cli import console
from kvcast.cli.arguments import filled

EPILOG = """\
A name is a hub id org/name[@revision][:quantization], or a usual name, such as base or qwen3:0.6b;
kvcast models lists these. Files go to huggingface_hub's cache (HF_HOME), and an interrupted
download goes on where it was.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("names", nargs="+", type=filled, metavar="NAME", help="a model to download")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress and no summary")


def run(args: argparse.Namespace) -> int:
    from kvcast.loading.local_models import pull

    for name in args.names:
        with console.progress(quiet=args.quiet).waiting(f"downloading {name}") as on_phase:
            model = pull(name, on_phase)
        if not args.quiet:
            size = console.readable_size(model.bytes)
            console.say(f"{name}: {model.family}, {model.precision}, {size}")
    return 0
