"""Time `kvcast serve` against other servers, with many clients at once.

Every server runs in a separate process, and so do its clients; they take turns, each with the
machine to itself. A decoder-only model continues prompts that begin with the same text, and a
Whisper transcribes short clips. Prints throughput, how long clients wait for the first token and
between tokens; the last line is one JSON object. docs/bench.md explains the method and every
figure.
"""

import argparse
from functools import partial
from pathlib import Path

from kvcast.checkpoints.source import locate
from kvcast.errors import KvcastError, UsageError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.whisper import WhisperDimensions
from kvcast_bench.backend import Backend
from kvcast_bench.commands import (
    Kinds,
    add_common,
    add_options,
    add_peers,
    add_some,
    choose_workload,
    peers,
    require,
    shown,
)
from kvcast_bench.models import BenchModel
from kvcast_bench.peers.kvcast import QUANTIZED, Kvcast, own_runtime
from kvcast_bench.peers.servers import KvcastEngine, KvcastServer, LlamaServer
from kvcast_bench.peers.table import SERVED_SPEECH, SERVED_TEXTS
from kvcast_bench.report import Benchmark, Floors, measure
from kvcast_bench.runner import Runner
from kvcast_bench.workloads.serving import ServedSpeech, ServedTexts

_KINDS: Kinds = {DecoderDimensions: ServedTexts, WhisperDimensions: ServedSpeech}
_ENGINE = "engine"
_OVER = 64
"""Positions that a prompt may take beyond one for each of its words."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments; arguments of one kind of model have no default here."""
    parser.add_argument("audio", metavar="AUDIO", nargs="*", help="for a Whisper: a recording")
    words = "a Whisper or a decoder-only model: a checkpoint folder, GGUF file, hub id, demo, "
    words += "demo-base or demo-chat"
    add_common(parser, "demo-chat", words, _KINDS)
    options = {
        "clients": ([1, 4, 16], "at once"),
        "requests": (1, "of each client in a turn, in sequence"),
        "slots": (8, "texts that llama.cpp's server decodes at once"),
    }
    add_options(parser, options)
    add_some(parser, "--quantize", ("int8", "int4", "none"), "of kvcast")
    add_peers(parser, [*SERVED_TEXTS, *SERVED_SPEECH], default=None)
    parser.add_argument(
        "--baseline", choices=[_ENGINE], help="also kvcast.Engine without a server, with one client"
    )
    parser.add_argument(
        "--reference", type=Path, nargs="+", metavar="FILE", help="recordings for a Whisper"
    )
    parser.add_argument("--language", help="code of a Whisper's language (default: en)")


def run(args: argparse.Namespace) -> str:
    """Measure; returns the output."""
    require("serve", "aiohttp", "fastapi", "uvicorn")
    args.audio = args.audio or None
    workload, model = choose_workload(
        args, _KINDS, "serve", _find, clients=args.clients, requests=args.requests
    )
    is_speech = isinstance(workload, ServedSpeech)
    if args.baseline and (is_speech or 1 not in args.clients):
        raise UsageError("--baseline needs a decoder-only model, and --clients 1 among others")
    own = [
        Kvcast(model, own_runtime(Path(model.folder)), QUANTIZED[quantize], name)
        for quantize in dict.fromkeys(args.quantize)
        for name in [f"kvcast-{QUANTIZED[quantize]}"]
    ]
    others = peers(args, workload, model)
    for other in others:
        if isinstance(other, LlamaServer):
            other.size(args.slots, workload.prompt + workload.new + _OVER)
    ours = [KvcastServer(backend) for backend in own]
    engines = [KvcastEngine(backend) for backend in own if args.baseline]
    runner = Runner(workload=workload, threads=args.threads, runs=args.runs)
    benchmark = Benchmark(
        name="serve",
        model=args.model,
        runner=runner,
        backends=[*ours, *engines, *others],
        references=partial(_compared, bool(engines)),
        settings={"slots": args.slots},
    )
    return shown(measure(benchmark, Floors({}, lambda _: None)), workload.tables())


def _find(name: str) -> Path:
    folder = locate(name)
    if reason := BenchModel(folder=str(folder), threads=1).needs_checkpoint():
        raise KvcastError(f"{name} cannot be measured: bench serve {reason}")
    return folder


def _compared(has_engine: bool, backend: Backend) -> dict[str, str]:
    """Compare with kvcast's server in the same precision, and with its engine."""
    ours = f"kvcast-{backend.precision}"
    return {"kvcast": ours, **({"engine": f"{ours}-{_ENGINE}"} if has_engine else {})}
