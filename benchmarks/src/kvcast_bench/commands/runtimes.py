"""Time one model on every runtime, in every precision, and a baseline without cross caches.

Every variant runs in a separate process and they take turns, each with the machine to itself.
Of a Whisper it times one decode step, one encode, and a recording end to end, and for each variant
a baseline that recomputes cross-attention keys and values in every call, as most exports do.
Of a decoder-only model it times the first token and a token after it. Prints tables with the
machine's limits; the last line is one JSON object. docs/bench.md explains the method and every
figure.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from kvcast.checkpoints.source import locate
from kvcast.errors import KvcastError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.whisper import WhisperDimensions
from kvcast.inspect.work import Work
from kvcast_bench.commands import Kinds, add_common, add_some, choose_workload, compare
from kvcast_bench.models import BenchModel
from kvcast_bench.peers.kvcast import ONNX, PRECISIONS, RUNTIMES, Kvcast
from kvcast_bench.probes import ENCODE, STEP
from kvcast_bench.recompute.backend import Recomputing
from kvcast_bench.workload import OptionDefaults, Table
from kvcast_bench.workloads.causal import FIRST, Causal
from kvcast_bench.workloads.speech import TRANSCRIBE, SpeechWorkload


@dataclass(frozen=True, kw_only=True)
class OneText(Causal):
    """One prompt and its continuation, shown with the machine's limits."""

    options: ClassVar[OptionDefaults] = {
        "prompt": (512, "tokens of the prompt"),
        "new": (64, "tokens after the first"),
    }
    peak_per_turn: ClassVar[bool] = False

    @property
    @override
    def step_work(self) -> Work:
        return self.counted({}).call(self.prompt + self.new // 2, 1)

    @override
    def tables(self) -> Sequence[Table]:
        lines = {
            FIRST: f"the first token: a prompt of {self.prompt} random tokens, 1 row, greedy",
            STEP: f"a token after it: the mean of {self.new}, 1 row, greedy, end tokens ignored",
        }
        return [
            Table(trials=self.texts(), metrics={metric: "median ms"}, line=line, floors=True)
            for metric, line in lines.items()
        ]


class Steps(SpeechWorkload):
    """A recording, and one step and one encode of it alone."""

    options: ClassVar[OptionDefaults] = {"position": (100, "of the step that is timed")}

    @override
    def tables(self) -> Sequence[Table]:
        sources, (whole,) = self.dimensions.source_positions, super().tables()
        lines = {
            STEP: "one step of the decoder alone: 1 row, 1 new token at position "
            f"{self.position}, {sources} source positions; of 20 the median",
            ENCODE: f"one encode: 1 window of {sources} positions; cross keys and values too, "
            "unless steps recompute them; of 3 the median",
        }
        line = f"{self.audio['seconds']:.2f} s of sound to text: greedy (beam 1), temperature 0, "
        line += "timestamps, no prompt"
        return [
            *(
                Table(trials=[{"measure": of}], metrics={of: "median ms"}, line=line, floors=True)
                for of, line in lines.items()
            ),
            replace(
                whole,
                line=line,
                metrics={TRANSCRIBE: "median ms"},
                factor=1000,
                number=".2f",
                places={},
            ),
        ]


_KINDS: Kinds = {WhisperDimensions: Steps, DecoderDimensions: OneText}
_BACKENDS: Mapping[type, Sequence[type[Kvcast]]] = {
    Steps: (Kvcast, Recomputing),
    OneText: (Kvcast,),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments; arguments of one kind of model have no default here."""
    parser.add_argument("audio", metavar="AUDIO", nargs="*", help="for a Whisper: a recording")
    words = "a Whisper or a decoder-only model: a checkpoint folder, GGUF file, hub id, demo, "
    words += "demo-base or demo-chat"
    add_common(parser, "demo", words, _KINDS)
    add_some(parser, "--runtimes", RUNTIMES, "each takes part")
    add_some(parser, "--quantize", PRECISIONS, "int8 and int4 are 8da8w and 8da4w on ExecuTorch")
    parser.add_argument(
        "--reference", type=Path, nargs="+", metavar="FILE", help="recordings for a Whisper"
    )
    parser.add_argument("--language", help="code of a Whisper's language (default: en)")


def run(args: argparse.Namespace) -> str:
    """Measure; returns the output."""
    args.audio = args.audio or None
    workload, model = choose_workload(args, _KINDS, "runtimes", _find)
    runtimes, precisions = map(list, map(dict.fromkeys, (args.runtimes, args.quantize)))
    return compare(
        "runtimes",
        args,
        workload,
        backends=[
            make(model, runtime, precision)
            for precision in precisions
            for runtime in runtimes
            for make in _BACKENDS[type(workload)]
        ],
        references=compared,
        settings={"runtimes": runtimes, "precisions": precisions},
    )


def _find(name: str) -> Path:
    folder = locate(name)
    if reason := BenchModel(folder=str(folder), threads=1).needs_checkpoint():
        raise KvcastError(f"{name} cannot be measured: bench runtimes {reason}")
    return folder


def compared(backend: Kvcast) -> dict[str, str]:
    """Compare with ONNX Runtime in the same precision, and a baseline with its cached variant."""
    same = {ONNX: f"{ONNX}-{backend.precision}"}
    cached = {"cached": f"{backend.runtime}-{backend.precision}"}
    return {**same, **cached} if backend.recomputes else same
