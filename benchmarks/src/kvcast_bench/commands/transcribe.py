"""Time transcription against the installed peers, on the same audio, with the same weights.

Takes one recording, which may be several files, or a folder of recordings. A program with several
modes, such as batched windows, has a row for each.

Every program runs in a separate process and they take turns, each with the machine to itself.
Prints a table, then where kvcast's time goes and how near it comes to the machine's limits; the
last line is one JSON object. docs/bench.md explains the method and every figure.
"""

import argparse
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.families.whisper import WhisperDimensions
from kvcast_bench.backend import Way
from kvcast_bench.commands import (
    Kinds,
    add_common,
    add_peers,
    choose_workload,
    compare,
    peers,
    positive,
)
from kvcast_bench.peers.kvcast import QUANTIZED, Kvcast, own_runtime
from kvcast_bench.peers.table import SPEECH
from kvcast_bench.workloads.speech import SpeechWorkload

_KVCAST = "kvcast"
_KINDS: Kinds = {WhisperDimensions: SpeechWorkload}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "audio",
        metavar="AUDIO",
        nargs="+",
        help="a recording or - for standard input, several to be joined, or a folder of recordings "
        "with a .txt beside each",
    )
    parser.add_argument(
        "--reference",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="what is spoken, for the word error; joined, too",
    )
    words = "a checkpoint folder, hub id, bundle, demo or demo-base"
    add_common(parser, "demo", words, _KINDS)
    parser.add_argument("--language", help="code of the spoken language (default: en)")
    add_peers(parser, SPEECH)
    parser.add_argument(
        "--batch",
        type=positive,
        nargs="+",
        default=[],
        metavar="N",
        help="also so many windows at once, with voice activity and, where a program can, without",
    )
    parser.add_argument(
        "--word-timestamps", action="store_true", help="also with a time for each word"
    )


def run(args: argparse.Namespace) -> str:
    """Measure; returns the output."""
    speech, model = choose_workload(args, _KINDS, "transcribe")
    folder = Path(model.folder)
    quantize = read_bundle(folder).quantize if is_bundle(folder) else "int8"
    # All of them meet `Transcriber`.
    plain: list[Any] = [
        Kvcast(model, own_runtime(folder), QUANTIZED[quantize], _KVCAST),
        *peers(args, speech, model),
    ]
    ways = [Way(batch=batch, vad=vad) for batch in args.batch for vad in (False, True)]
    ways += [Way(words=True)] if args.word_timestamps else []
    origins = {
        program.going(way).name: program.name
        for program in plain
        for way in ways
        if program.goes(way)
    }
    return compare(
        "transcribe",
        args,
        speech,
        backends=[
            backend
            for program in plain
            for backend in (program, *(program.going(way) for way in ways if program.goes(way)))
        ],
        references=lambda program: {
            "kvcast": _KVCAST,
            **({"plain": origins.get(program.name, program.name)} if ways else {}),
        },
        needed=[_KVCAST],
    )
