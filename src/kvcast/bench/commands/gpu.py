"""Time decoding steps on a CUDA device, with the shapes of known models and random weights.

Whisper large-v3-turbo with its cross keys projected at every step, with torch.cond, as two
programs, and as two programs in CUDA graphs; Mistral 7B as the last two. Prints tables that say
how near each comes to the rate of the device's memory, and as its last line one JSON object.
docs/bench-gpu.md says how it is measured and what every figure means.
"""

import argparse
from dataclasses import replace

from kvcast.bench.commands import positive, require, show
from kvcast.errors import KvcastError

NEEDED = ("psutil", "torch")
_MODELS = ("whisper-large-v3-turbo", "mistral-7b")
_DTYPES = ("bf16", "fp16", "fp32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--model",
        nargs="+",
        choices=_MODELS,
        default=list(_MODELS),
        help=f"shapes of these (default: {' '.join(_MODELS)})",
    )
    parser.add_argument(
        "--dtype", choices=_DTYPES, default="bf16", help="of weights and caches (default: bf16)"
    )
    parser.add_argument(
        "--runs", type=positive, default=5, help="after one to warm up (default: 5)"
    )
    parser.add_argument(
        "--prompt", type=positive, help="tokens before the first step (default: each model's own)"
    )
    parser.add_argument("--new", type=positive, help="steps of a run (default: each model's own)")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    require(*NEEDED)
    import torch

    if not torch.cuda.is_available():
        raise KvcastError("no CUDA device is present: bench gpu measures nothing else")
    from kvcast.bench.gpu.measure import measure_on
    from kvcast.bench.gpu.models import PUBLISHED
    from kvcast.bench.gpu.steps import compiled

    own = {name: getattr(args, name) for name in ("prompt", "new")}
    given = {name: number for name, number in own.items() if number is not None}
    models = {name: replace(PUBLISHED[name], **given) for name in args.model}
    return show(*measure_on("cuda", models, compiled, dtype=args.dtype, runs=args.runs))
