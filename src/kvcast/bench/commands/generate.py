"""Time generation against the installed peers, with the same weights and the same tokens.

Every program runs in a process of its own and they take turns, each with the machine to itself.
Decoder-only models continue prompts: measured are the time to the first token, of a token after
it, one text and several at once, and steps at far positions. A T5 writes targets of sources: the
time to the first token and of a step, greedy and with beams, and with sources of other lengths.
Prints tables, where kvcast's time goes and how near the machine's limits it is, and as its last
line one JSON object. docs/bench.md says how it is measured and what every figure means.
"""

import argparse

from kvcast.bench.backend import Backend
from kvcast.bench.commands import (
    EVERYBODYS,
    Kind,
    Kinds,
    add_kinds,
    add_numbers,
    add_some,
    beside_peers,
    check_positive,
    kind_of,
    require,
)
from kvcast.bench.models import CausalModel, Seq2seqModel
from kvcast.bench.peers.kvcast import QUANTIZED, KvcastRing
from kvcast.bench.peers.table import CAUSAL, SEQ2SEQ
from kvcast.bench.random_t5 import RANDOM, is_random, random_folder
from kvcast.bench.workloads import causal, seq2seq
from kvcast.checkpoints.source import locate
from kvcast.spec.decoder import DecoderDimensions
from kvcast.spec.t5 import T5Dimensions

NEEDED = ("psutil",)
_KINDS: Kinds = {
    DecoderDimensions: Kind(
        name="decoder-only models",
        model=CausalModel,
        workload=causal.Causal,
        layout=causal.LAYOUT,
        options={
            "prompt": (512, "tokens of each prompt"),
            "new": (128, "tokens after the first"),
            "positions": ([100, 1000, 8000], "where steps are timed; none to skip"),
            "window": (512, "of the model whose layers are rings, at the positions"),
        },
        peers=CAUSAL,
        others=lambda model, workload: (
            [KvcastRing(model, workload.window)] if workload.positions else []
        ),
    ),
    T5Dimensions: Kind(
        name="T5s",
        model=Seq2seqModel,
        workload=seq2seq.Seq2seq,
        layout=seq2seq.LAYOUT,
        options={
            "source": (128, "tokens of each source"),
            "target": (64, "tokens to write for each"),
            "beam": ([1, 4], "beams; 1 is greedy"),
            "lengths": ([32, 128, 512], "of sources whose steps are compared; none to skip"),
        },
        peers=SEQ2SEQ,
    ),
}
_NUMBERS = {**EVERYBODYS, "batch": ([1, 8], "texts at once")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments; those of one kind of model alone have no default here."""
    parser.add_argument(
        "--model",
        default="demo-chat",
        help=f"a checkpoint folder, GGUF file, hub id, bundle, demo-chat, demo-t5 or "
        f"{', '.join(RANDOM)} (random weights) (default: demo-chat)",
    )
    add_numbers(parser, _NUMBERS)
    add_some(parser, "--quantize", ("int8", "int4", "none"), "of kvcast", nargs="+")
    peers = dict.fromkeys((*CAUSAL, *SEQ2SEQ))
    add_some(parser, "--peers", peers, "none for kvcast alone", default=None)
    add_kinds(parser, _KINDS)


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    check_positive(args, _NUMBERS, _KINDS)
    require(*NEEDED)
    if is_random(args.model):
        require("safetensors")
        folder = random_folder(args.model)
    else:
        folder = locate(args.model)
    kind, dimensions = kind_of(_KINDS, folder, args.model, "generate")
    workload = kind.workload(dimensions=dimensions, batch=args.batch, **kind.chosen(args, _KINDS))
    precisions = [QUANTIZED[quantize] for quantize in dict.fromkeys(args.quantize)]
    ours = {f"kvcast-{one}": one for one in precisions}
    quantized = ("int8", "int4")  # all others are compared with kvcast's fp32

    def compared(backend: Backend) -> str:
        return f"kvcast-{backend.precision if backend.precision in quantized else 'fp32'}"

    return beside_peers("generate", args, kind, folder, workload, ours, compared)
