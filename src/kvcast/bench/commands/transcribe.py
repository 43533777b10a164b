"""Time transcription against the installed peers, on the same audio, with the same weights.

Every program runs in a process of its own and they take turns, each with the machine to itself.
Prints a table, then where kvcast's time goes and how near it comes to the machine's limits; the
last line is one JSON object. docs/bench.md says how it measures and what every figure means.
"""

import argparse
from pathlib import Path

from kvcast.bench.commands import Kinds, add_common, add_some, choose_workload, compare, peers
from kvcast.bench.peers.kvcast import QUANTIZED, REFERENCE, Kvcast
from kvcast.bench.peers.table import SPEECH
from kvcast.bench.workloads.speech import Speech
from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.spec.whisper import WhisperDimensions

_KVCAST = "kvcast"
_KINDS: Kinds = {WhisperDimensions: Speech}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("audio", metavar="AUDIO", help="a recording, or - for standard input")
    parser.add_argument(
        "--reference", type=Path, metavar="FILE", help="what is spoken, for the word error"
    )
    words = "a checkpoint folder, hub id, bundle, demo or demo-base"
    add_common(parser, "demo", words, _KINDS)
    parser.add_argument("--language", help="code of what is spoken (default: en)")
    add_some(parser, "--peers", SPEECH, "none for kvcast alone", nargs="*")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    speech, model = choose_workload(args, _KINDS, "transcribe")
    folder = Path(model.folder)
    quantize = read_bundle(folder).quantize if is_bundle(folder) else "int8"
    ours = Kvcast(model, REFERENCE, QUANTIZED[quantize], _KVCAST)
    return compare(
        "transcribe",
        args,
        speech,
        backends=[ours, *peers(args, speech, model)],
        references=lambda _: {"kvcast": _KVCAST},
        needed=[_KVCAST],
    )
