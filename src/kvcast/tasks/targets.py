"""What bundles are exported to: for each runtime how a family's programs are lowered and opened.

A table of families a runtime, so that neither exporting nor loading has cases. torch and everything
that needs it is imported inside the functions: opening a bundle of ONNX Runtime needs none of it.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kvcast.bundle.manifest import CacheLayers, Graph, Manifest
from kvcast.errors import KvcastError, UsageError
from kvcast.runtimes.cores import instruction_sets

QUANTIZE = ("none", "int8", "int4")
CACHES = ("fp32", "int8")

Lowered = tuple[dict[str, Graph], tuple[CacheLayers, ...]]


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What numbers a bundle has.

    Attributes:
        quantize: of matrices, one of QUANTIZE.
        cache: of self caches, one of CACHES.

    """

    quantize: str
    cache: str = "fp32"

    @property
    def exact(self) -> bool:
        """Whether all are fp32, so that results must be equal."""
        return (self.quantize, self.cache) == ("none", "fp32")

    def check(self) -> None:
        """Raise UsageError for a number that is none of the choices."""
        check_choice("quantize", self.quantize, QUANTIZE)
        check_choice("cache", self.cache, CACHES)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise UsageError unless `value` is one of `choices`."""
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


class Target(Protocol):
    """One runtime."""

    def lower(self, family: str, programs: Any, numbers: Numbers, folder: Path) -> Lowered:
        """Write the graphs of a family's programs; raises KvcastError for what cannot be had."""

    def processor(self) -> tuple[str, ...]:
        """Name what the graphs will ask of a processor: this one's instructions, if anything."""

    def open(self, family: str, folder: Path, manifest: Manifest, threads: int) -> Any:
        """Open a bundle whose files have been checked."""


class OnnxTarget:
    """ONNX Runtime."""

    def lower(self, family: str, programs: Any, numbers: Numbers, folder: Path) -> Lowered:
        """See the protocol."""
        return _ONNX_LOWERINGS[family](programs, numbers, folder)

    def processor(self) -> tuple[str, ...]:
        """See the protocol."""
        return ()

    def open(self, family: str, folder: Path, manifest: Manifest, threads: int) -> Any:
        """See the protocol."""
        from kvcast.runtimes.onnx import OnnxEncoderDecoder
        from kvcast.runtimes.onnx_decoder import OnnxDecoderOnly
        from kvcast.runtimes.onnx_unilm import OnnxUnilm

        runtimes = {"decoder": OnnxDecoderOnly, "unilm": OnnxUnilm}
        return runtimes.get(family, OnnxEncoderDecoder)(folder, manifest, threads)


class AotiTarget:
    """AOTInductor: native code for the machine that exports."""

    def lower(self, family: str, programs: Any, numbers: Numbers, folder: Path) -> Lowered:
        """See the protocol."""
        # The lowering knows bf16, int8 and int4 too, but compiled T5s and UniLMs crash in them.
        if not numbers.exact:
            raise UsageError(
                "bundles of AOTInductor are in fp32 so far: add --quantize none, drop --cache int8"
            )
        compilers = (os.environ.get("CXX"), "g++", "clang++")
        if not any(shutil.which(compiler) for compiler in compilers if compiler):
            raise KvcastError("compiling needs g++: install it, or use --runtime onnx")
        from kvcast.lowering import aoti, onnx_decoder, onnx_t5, onnx_whisper, signatures
        from kvcast.lowering.aoti_precision import Precision

        precision = Precision()
        layers = {"whisper": onnx_whisper, "t5": onnx_t5}.get(family, onnx_decoder).cache_layers(
            programs.dimensions
        )
        signed: Mapping[str, Callable[[], Any]] = {
            "whisper": lambda: signatures.whisper(programs),
            "t5": lambda: signatures.t5(programs),
            "decoder": lambda: signatures.decoder(programs, layers),
            "unilm": lambda: signatures.unilm(programs, layers),
        }
        graphs = aoti.lower(signed[family](), precision, folder)
        return graphs, aoti.cache_layers(layers, precision)

    def processor(self) -> tuple[str, ...]:
        """See the protocol."""
        return instruction_sets()

    def open(self, family: str, folder: Path, manifest: Manifest, threads: int) -> Any:
        """See the protocol."""
        if missing := set(manifest.processor) - set(instruction_sets()):
            raise KvcastError(
                f"{folder} was compiled for a processor with {min(missing)}, which this one lacks: "
                "export it here"
            )
        from kvcast.runtimes.aoti import AotiEncoderDecoder
        from kvcast.runtimes.aoti_decoder import AotiDecoderOnly
        from kvcast.runtimes.aoti_unilm import AotiUnilm

        runtimes = {"decoder": AotiDecoderOnly, "unilm": AotiUnilm}
        return runtimes.get(family, AotiEncoderDecoder)(folder, manifest, threads)


def _onnx_whisper(programs: Any, numbers: Numbers, folder: Path) -> Lowered:
    _refuse_int8_cache("Whisper", numbers)
    from kvcast.lowering.onnx_whisper import cache_layers, lower

    return lower(programs, numbers.quantize, folder), cache_layers(programs.dimensions)


def _onnx_t5(programs: Any, numbers: Numbers, folder: Path) -> Lowered:
    _refuse_int8_cache("T5", numbers)
    from kvcast.lowering.onnx_t5 import cache_layers, lower

    return lower(programs, numbers.quantize, folder), cache_layers(programs.dimensions)


def _onnx_decoder(programs: Any, numbers: Numbers, folder: Path) -> Lowered:
    from kvcast.lowering.onnx_decoder import cache_layers, lower

    graphs = lower(programs, numbers.quantize, folder, numbers.cache)
    return graphs, cache_layers(programs.dimensions, numbers.cache)


def _onnx_unilm(programs: Any, numbers: Numbers, folder: Path) -> Lowered:
    from kvcast.lowering.onnx_decoder import cache_layers
    from kvcast.lowering.onnx_unilm import lower

    graphs = lower(programs, numbers.quantize, folder, numbers.cache)
    return graphs, cache_layers(programs.dimensions, numbers.cache)


def _refuse_int8_cache(family: str, numbers: Numbers) -> None:
    if numbers.cache != "fp32":
        raise UsageError(f"{family} keeps its self cache in fp32: drop --cache {numbers.cache}")


_ONNX_LOWERINGS: Mapping[str, Callable[[Any, Numbers, Path], Lowered]] = {
    "whisper": _onnx_whisper,
    "t5": _onnx_t5,
    "decoder": _onnx_decoder,
    "unilm": _onnx_unilm,
}
TARGETS: Mapping[str, Target] = {"onnx": OnnxTarget(), "aoti": AotiTarget()}
