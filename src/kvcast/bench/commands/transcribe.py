"""Time transcription against the installed peers, on the same audio, with the same weights.

Every program runs in a process of its own and they take turns, each with the machine to itself.
Prints a table, where kvcast's time goes and how near the machine's limits it is, and as its last
line one JSON object. docs/bench.md says how it is measured and what every figure means.
"""

import argparse
from pathlib import Path

from kvcast.bench.commands import (
    EVERYBODYS,
    Kind,
    Kinds,
    add_numbers,
    add_some,
    beside_peers,
    check_positive,
    kind_of,
    recording,
    require,
)
from kvcast.bench.models import SpeechModel
from kvcast.bench.peers.kvcast import QUANTIZED
from kvcast.bench.peers.table import SPEECH
from kvcast.bench.workloads.speech import LAYOUT, Speech
from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.checkpoints.source import locate
from kvcast.spec.whisper import WhisperDimensions

NEEDED = ("jiwer", "psutil")
_KVCAST = "kvcast"
_KINDS: Kinds = {
    WhisperDimensions: Kind(
        name="Whispers", model=SpeechModel, workload=Speech, layout=LAYOUT, peers=SPEECH
    )
}
_NUMBERS = {**EVERYBODYS, "beam": ([1, 5], "beams; 1 is greedy")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("audio", metavar="AUDIO", help="a recording, or - for standard input")
    parser.add_argument(
        "--reference", type=Path, metavar="FILE", help="what is spoken, for the word error"
    )
    parser.add_argument(
        "--model",
        default="demo",
        help="a checkpoint folder, hub id, bundle, demo or demo-base (default: demo)",
    )
    parser.add_argument("--language", default="en", help="code of what is spoken (default: en)")
    add_numbers(parser, _NUMBERS)
    add_some(parser, "--peers", SPEECH, "none for kvcast alone")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    check_positive(args, _NUMBERS)
    require(*NEEDED)
    with recording(args.audio, args.reference) as heard:
        folder = locate(args.model)
        kind, dimensions = kind_of(_KINDS, folder, args.model, "transcribe")
        speech = Speech(dimensions=dimensions, language=args.language, beams=args.beam, **heard)
        quantize = read_bundle(folder).quantize if is_bundle(folder) else "int8"
        ours = {_KVCAST: QUANTIZED[quantize]}
        return beside_peers("transcribe", args, kind, folder, speech, ours, lambda _: _KVCAST)
