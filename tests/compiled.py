"""Bundles of AOTInductor. Compiling takes half a minute a model: once a session each."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import CacheLayers, Manifest
from kvcast.bundle.writing import seal, staged
from kvcast.lowering import aoti, onnx_decoder, onnx_t5, onnx_whisper, signatures
from kvcast.lowering.aoti_precision import Precision
from kvcast.lowering.signatures import Signature
from kvcast.programs.decoder import DecoderPrograms
from kvcast.programs.t5 import T5Programs
from kvcast.programs.unilm import UnilmPrograms
from kvcast.programs.whisper import WhisperPrograms

FP32 = Precision()


def compile_whisper(
    programs: WhisperPrograms, folder: Path, precision: Precision = FP32
) -> Manifest:
    """Lower and seal, without the proof that `kvcast.export_bundle` adds."""
    layers = onnx_whisper.cache_layers(programs.dimensions)
    lowered = signatures.whisper(programs)
    return _sealed("whisper", programs, lowered, layers, folder, precision)


def compile_t5(programs: T5Programs, folder: Path, precision: Precision = FP32) -> Manifest:
    """Like `compile_whisper`."""
    layers = onnx_t5.cache_layers(programs.dimensions)
    lowered = signatures.t5(programs)
    return _sealed("t5", programs, lowered, layers, folder, precision)


def compile_decoder(
    programs: DecoderPrograms, folder: Path, precision: Precision = FP32
) -> Manifest:
    """Like `compile_whisper`."""
    layers = onnx_decoder.cache_layers(programs.dimensions)
    return _sealed(
        "decoder", programs, signatures.decoder(programs, layers), layers, folder, precision
    )


def compile_unilm(programs: UnilmPrograms, folder: Path, precision: Precision = FP32) -> Manifest:
    """Like `compile_whisper`."""
    layers = onnx_decoder.cache_layers(programs.dimensions)
    lowered = signatures.unilm(programs, layers)
    return _sealed("unilm", programs, lowered, layers, folder, precision)


def _sealed(
    family: str,
    programs: Any,
    lowered: Mapping[str, Signature],
    layers: Sequence[CacheLayers],
    folder: Path,
    precision: Precision,
) -> Manifest:
    with staged(folder, overwrite=False) as staging:
        return seal(
            staging,
            Manifest(
                family=family,
                runtime="aoti",
                quantize=precision.quantize,
                dimensions=asdict(programs.dimensions),
                cache=aoti.cache_layers(layers, precision),
                graphs=aoti.lower(lowered, precision, staging),
                source={},
                tools={},
            ),
        )
