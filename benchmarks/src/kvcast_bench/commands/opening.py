"""Time opening a model, compared with llama.cpp, each time in a new process.

From the start of a process until the model is ready, and until it has answered: with a prompt's
first token, or a Whisper with a recording's text. Files are in the page cache. Prints a table, with
the memory that the process needs at most and holds at the end; the last line is one JSON object.
docs/bench.md explains the method and every figure.
"""

import argparse
from pathlib import Path

from kvcast.checkpoints.source import locate
from kvcast.errors import UsageError
from kvcast.families.table import family_with
from kvcast.loading.components import dimensions_of
from kvcast_bench.backend import Backend
from kvcast_bench.commands import add_common, add_peers, add_some, compare
from kvcast_bench.models import BenchModel
from kvcast_bench.peers.kvcast import OWN
from kvcast_bench.peers.opening import LlamaOpener, Opener
from kvcast_bench.workloads.speech import Opening

_IN_FILE = "as the file has them, or as the program chooses"
_PEERS = {"llama.cpp": LlamaOpener}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, "demo-chat", "a checkpoint folder, GGUF file, hub id or packaged model", {})
    parser.add_argument("--audio", help="a recording, which a Whisper needs")
    parser.add_argument("--prompt", default="Once upon a time", help="(default: %(default)s)")
    words = f"of kvcast; {OWN} is what it does unless told"
    add_some(parser, "--quantize", [OWN, "int8", "int4"], words, usual=[OWN])
    add_peers(parser, _PEERS)


def run(args: argparse.Namespace) -> str:
    """Measure; returns the output."""
    path = locate(args.model)
    dimensions = dimensions_of(path)
    hears = family_with(dimensions).task == "transcribe"
    if hears != (args.audio is not None):
        raise UsageError(
            "a Whisper needs a recording: --audio FILE"
            if hears
            else "the model does not listen: drop --audio"
        )
    model = BenchModel(folder=str(path), threads=args.threads)
    ours: list[Backend] = [
        Opener(
            model=model,
            name=f"kvcast-{quantize}",
            kind="" if quantize == OWN else quantize,
            precision=quantize,
            dtype=_IN_FILE if quantize == OWN else f"{quantize} matrices",
        )
        for quantize in dict.fromkeys(args.quantize)
    ]
    peers = [
        _PEERS[name](model=model, name=name, precision=OWN, dtype=_IN_FILE) for name in args.peers
    ]
    workload = Opening(
        dimensions=dimensions,
        file_bytes=_size(path),
        prompt=args.prompt,
        audio=args.audio,
    )
    reference = {"kvcast": ours[0].name}
    return compare("open", args, workload, backends=[*ours, *peers], references=lambda _: reference)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else filter(Path.is_file, path.rglob("*"))
    return sum(file.stat().st_size for file in files)
