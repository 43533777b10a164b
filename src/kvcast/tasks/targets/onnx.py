"""ONNX Runtime as a target.

torch is imported inside functions: opening a bundle needs none of it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.errors import UsageError
from kvcast.tasks.targets.base import Asked, Build, Lowered, Numbers, Order, Target, check_choice
from kvcast.tasks.targets.trial import Trial, double_on_onnx, versions


class OnnxTarget(Target):
    """ONNX Runtime."""

    tools: tuple[str, ...] = ("onnxruntime", "onnx")

    @override
    def numbers(self, asked: Asked) -> Numbers:
        if asked.dtype not in (None, "fp32"):
            raise UsageError(f"bundles of ONNX Runtime are in fp32: drop --dtype {asked.dtype}")
        quantize, cache = asked.quantize or "int8", asked.cache or "fp32"
        check_choice("quantize of ONNX Runtime", quantize, ("none", "int8", "int4"))
        check_choice("cache of ONNX Runtime", cache, ("fp32", "int8"))
        return Numbers(quantize=quantize, cache=cache)

    @override
    def check_build(self, numbers: Numbers, build: Build) -> None:
        if build != Build():
            raise UsageError("ONNX Runtime compiles nothing: drop --device and --max-autotune")

    @override
    def lower(self, order: Order, folder: Path) -> Lowered:
        return _LOWERINGS[order.family](order.programs, order.numbers, folder)

    @override
    def try_out(self) -> Trial:
        found = versions("onnxruntime")
        double_on_onnx()
        return Trial(versions=found)

    @override
    def processor(self) -> tuple[str, ...]:
        return ()

    @override
    def open(self, family: str, folder: Path, manifest: Manifest, threads: int) -> Any:
        from kvcast.runtimes.onnx import OnnxEncoderDecoder
        from kvcast.runtimes.onnx_decoder import OnnxDecoderOnly
        from kvcast.runtimes.onnx_unilm import OnnxUnilm

        runtimes = {"decoder": OnnxDecoderOnly, "unilm": OnnxUnilm}
        return runtimes.get(family, OnnxEncoderDecoder)(folder, manifest, threads)


def _whisper(programs: Any, numbers: Numbers, folder: Path) -> Lowered:
    _refuse_int8_cache("Whisper", numbers)
    from kvcast.lowering.onnx_whisper import cache_layers, lower

    return lower(programs, numbers.quantize, folder), cache_layers(programs.dimensions)


def _t5(programs: Any, numbers: Numbers, folder: Path) -> Lowered:
    _refuse_int8_cache("T5", numbers)
    from kvcast.lowering.onnx_t5 import cache_layers, lower

    return lower(programs, numbers.quantize, folder), cache_layers(programs.dimensions)


def _decoder(programs: Any, numbers: Numbers, folder: Path) -> Lowered:
    from kvcast.lowering.onnx_decoder import cache_layers, lower

    graphs = lower(programs, numbers.quantize, folder, numbers.cache)
    return graphs, cache_layers(programs.dimensions, numbers.cache)


def _unilm(programs: Any, numbers: Numbers, folder: Path) -> Lowered:
    from kvcast.lowering.onnx_decoder import cache_layers
    from kvcast.lowering.onnx_unilm import lower

    graphs = lower(programs, numbers.quantize, folder, numbers.cache)
    return graphs, cache_layers(programs.dimensions, numbers.cache)


def _refuse_int8_cache(family: str, numbers: Numbers) -> None:
    if numbers.cache != "fp32":
        raise UsageError(f"{family} keeps its self cache in fp32: drop --cache {numbers.cache}")


_LOWERINGS: Mapping[str, Callable[[Any, Numbers, Path], Lowered]] = {
    "whisper": _whisper,
    "t5": _t5,
    "decoder": _decoder,
    "unilm": _unilm,
}
