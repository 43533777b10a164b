"""Time decoding steps on a CUDA device, with the shapes of known models and random weights.

Whisper large-v3-turbo runs with its cross keys recomputed at every step, with torch.cond, as two
programs, and as two programs in CUDA graphs; Mistral 7B runs in the last two ways. Prints tables
that say how near each comes to the rate of the device's memory; the last line is one JSON object.
docs/bench-gpu.md explains the method and every figure.
"""

import argparse
from dataclasses import replace

from kvcast.errors import KvcastError
from kvcast_bench.commands import add_options, positive, require, shown
from kvcast_bench.workloads.gpu import BYTES, PUBLISHED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        nargs="+",
        choices=list(PUBLISHED),
        default=list(PUBLISHED),
        help=f"shapes of these (default: {' '.join(PUBLISHED)})",
    )
    parser.add_argument(
        "--dtype", choices=list(BYTES), default="bf16", help="of weights and caches (default: bf16)"
    )
    add_options(parser, {"runs": (5, "after one to warm up")})
    parser.add_argument(
        "--prompt", type=positive, help="tokens before the first step (default: each model's own)"
    )
    parser.add_argument("--new", type=positive, help="steps of a run (default: each model's own)")


def run(args: argparse.Namespace) -> str:
    """Measure; returns the output."""
    require("gpu", "torch")
    import torch

    if not torch.cuda.is_available():
        raise KvcastError("no CUDA device is present: bench gpu measures nothing else")
    from kvcast_bench.gpu import measure_on
    from kvcast_bench.greedy_step import compiled

    own = {name: getattr(args, name) for name in ("prompt", "new") if getattr(args, name)}
    models = {name: replace(PUBLISHED[name], **own) for name in args.model}
    return shown(*measure_on("cuda", models, compiled, dtype=args.dtype, runs=args.runs))
