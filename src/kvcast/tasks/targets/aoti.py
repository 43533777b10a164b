"""AOTInductor as a target. torch is imported inside functions."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError, UsageError
from kvcast.runtimes.cores import instruction_sets
from kvcast.tasks.targets.base import Asked, Build, Lowered, Numbers, Order


class AotiTarget:
    """AOTInductor: native code for the machine that exports."""

    def numbers(self, asked: Asked) -> Numbers:
        """See the protocol."""
        quantize = asked.quantize or "none"
        dtype = asked.dtype or ("fp32" if quantize == "none" else "bf16")
        cache = asked.cache or dtype
        # The lowering knows bf16, int8 and int4 too, but compiled T5s and UniLMs crash in them.
        numbers = Numbers(quantize=quantize, dtype=dtype, cache=cache)
        if not numbers.exact:
            raise UsageError(
                "bundles of AOTInductor are in fp32 so far: add --quantize none, drop --cache int8"
            )
        return numbers

    def check_build(self, build: Build) -> None:
        """See the protocol."""
        if build != Build():
            raise UsageError("code for other devices and --max-autotune are not there yet")
        compilers = (os.environ.get("CXX"), "g++", "clang++")
        if not any(shutil.which(compiler) for compiler in compilers if compiler):
            raise KvcastError("compiling needs g++: install it, or use --runtime onnx")

    def lower(self, order: Order, folder: Path) -> Lowered:
        """See the protocol."""
        from kvcast.lowering import aoti, onnx_decoder, onnx_t5, onnx_whisper, signatures
        from kvcast.lowering.aoti_precision import Precision

        programs, numbers = order.programs, order.numbers
        precision = Precision(dtype=numbers.dtype, quantize=numbers.quantize)
        layers = {"whisper": onnx_whisper, "t5": onnx_t5}.get(
            order.family, onnx_decoder
        ).cache_layers(programs.dimensions)
        signed: Mapping[str, Callable[[], Any]] = {
            "whisper": lambda: signatures.whisper(programs),
            "t5": lambda: signatures.t5(programs),
            "decoder": lambda: signatures.decoder(programs, layers),
            "unilm": lambda: signatures.unilm(programs, layers),
        }
        graphs = aoti.lower(signed[order.family](), precision, folder)
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
