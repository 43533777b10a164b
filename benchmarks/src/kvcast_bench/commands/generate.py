"""Time generation against the installed peers, with the same weights and the same tokens.

Every program runs in a separate process and they take turns, each with the machine to itself.
Decoder-only models continue prompts, one and several at once: it times the first token, each token
after it, and steps at far positions. Of T5s, which answer sources, it times the first token and a
step, greedy and with beams, and with sources of several lengths. Prints tables, then where
kvcast's time goes and how near it comes to the machine's limits; the last line is one JSON object.
docs/bench.md explains the method and every figure.
"""

import argparse
from pathlib import Path

from kvcast.checkpoints.source import locate
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.t5 import T5Dimensions
from kvcast_bench.backend import Backend
from kvcast_bench.commands import (
    Kinds,
    add_common,
    add_options,
    add_peers,
    add_some,
    choose_workload,
    compare,
    peers,
)
from kvcast_bench.peers.kvcast import OWN, QUANTIZED, Kvcast, KvcastNgram, KvcastRing, own_runtime
from kvcast_bench.peers.table import CAUSAL, SEQ2SEQ
from kvcast_bench.random_t5 import PREFIX, RANDOM, random_folder
from kvcast_bench.workloads.causal import Causal
from kvcast_bench.workloads.seq2seq import Seq2seq

_KINDS: Kinds = {DecoderDimensions: Causal, T5Dimensions: Seq2seq}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments; arguments of one kind of model have no default here."""
    words = "a checkpoint folder, GGUF file, hub id, bundle, demo-chat, demo-t5 or "
    words += f"{', '.join(RANDOM)} (random weights)"
    add_common(parser, "demo-chat", words, _KINDS)
    add_options(parser, {"batch": ([1, 8], "texts at once")})
    words = f"of kvcast; {OWN} is what it does unless told"
    add_some(parser, "--quantize", QUANTIZED, words, usual=["int8", "int4", "none"])
    add_peers(parser, [*CAUSAL, *SEQ2SEQ], default=None)


def run(args: argparse.Namespace) -> str:
    """Measure; returns the output."""
    workload, model = choose_workload(args, _KINDS, "generate", _find, batch=args.batch)
    precisions = [QUANTIZED[quantize] for quantize in dict.fromkeys(args.quantize)]
    runtime = own_runtime(Path(model.folder))
    ours: list[Backend] = [
        Kvcast(model, runtime, precision, f"kvcast-{precision}") for precision in precisions
    ]
    has_rings = isinstance(workload, Causal) and workload.positions
    rings = [KvcastRing(model, workload.window)] if has_rings else []
    is_causal = isinstance(workload, Causal)
    drafting = [KvcastNgram(model, precision) for precision in precisions if is_causal]
    return compare(
        "generate",
        args,
        workload,
        backends=[*ours, *drafting, *rings, *peers(args, workload, model)],
        references=_compared,
        needed=[backend.name for backend in ours],
    )


def _find(model: str) -> Path:
    if not model.startswith(PREFIX):
        return locate(model)
    return random_folder(model)


def _compared(backend: Backend) -> dict[str, str]:
    """Compare with kvcast in the same precision, and all that is not quantised with its fp32."""
    precision = backend.precision if backend.precision in ("int8", "int4", OWN) else "fp32"
    return {"kvcast": f"kvcast-{precision}"}
