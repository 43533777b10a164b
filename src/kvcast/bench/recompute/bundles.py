"""The recomputing Whisper on each runtime that has bundles: lowered, opened, kept in a folder.

A table by runtime; torch is imported inside functions.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcast import __version__
from kvcast.bench.models import made_path
from kvcast.bundle.manifest import VERSION, Manifest, read_bundle
from kvcast.bundle.writing import seal, staged
from kvcast.checkpoints.base import WhisperCheckpoint
from kvcast.checkpoints.source import fingerprint
from kvcast.errors import KvcastError
from kvcast.runtimes.base import EncoderDecoder
from kvcast.spec.runtimes import BundlePrecision
from kvcast.tasks.families import family_of
from kvcast.tasks.targets import TARGETS
from kvcast.tasks.targets.base import Lowered

if TYPE_CHECKING:
    from kvcast.programs.whisper import WhisperPrograms

_TIED_TABLE = "decoder.embedding.weight"
_EXECUTORCH_CHUNK = 128


def open_exported(
    checkpoint: WhisperCheckpoint,
    folder: Path,
    runtime: str,
    numbers: BundlePrecision,
    threads: int,
) -> EncoderDecoder:
    """Lower the recomputing programs of the checkpoint in `folder` once, and open them."""
    made_for = TARGETS[runtime].processor()
    parts = (fingerprint(folder), runtime, repr(numbers), *made_for, str(VERSION), __version__)
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]
    bundle = made_path(f"recompute-{key}")
    try:
        manifest = read_bundle(bundle)
    except KvcastError:  # not there yet, or damaged
        programs = family_of(checkpoint.family).programs(checkpoint)
        manifest = write_bundle(programs, runtime, numbers, bundle)
    return open_bundle(bundle, manifest, threads)


def write_bundle(
    programs: "WhisperPrograms", runtime: str, numbers: BundlePrecision, bundle: Path
) -> Manifest:
    """Lower and seal; a bundle that only this module opens."""
    lower, _ = _RUNTIMES[runtime]
    with staged(bundle, overwrite=True) as folder:
        graphs, layers = lower(programs, numbers, folder)
        manifest = Manifest(
            family="whisper-recompute",
            runtime=runtime,
            quantize=numbers.quantize,
            dtype=numbers.dtype,
            dimensions=asdict(programs.dimensions),
            cache=layers,
            graphs=graphs,
            source={},
            tools={name: version(name) for name in ("kvcast", "torch")},
        )
        return seal(folder, manifest)


def open_bundle(bundle: Path, manifest: Manifest, threads: int) -> EncoderDecoder:
    """Open what `write_bundle` wrote."""
    _, opening = _RUNTIMES[manifest.runtime]
    return opening(bundle, manifest, threads)


def _lower_onnx(programs: "WhisperPrograms", numbers: BundlePrecision, folder: Path) -> Lowered:
    from kvcast.bench.recompute.programs import RecomputingPrograms
    from kvcast.bundle.caches import of_decoder as cache_layers
    from kvcast.lowering.onnx import FOLDER, export_graph, save_graph
    from kvcast.lowering.onnx_quantize import quantize_matrices, quantize_table
    from kvcast.lowering.signatures import cache_names

    (folder / FOLDER).mkdir()
    signed = RecomputingPrograms.of(programs).signatures()
    encode, decode = export_graph(signed["encode"]), export_graph(signed["decode"])
    layers = programs.dimensions.decoder_layers
    aliases = dict(zip(cache_names("present", layers), cache_names("past", layers), strict=True))
    if numbers.quantize != "none":
        bits = {"int8": 8, "int4": 4}[numbers.quantize]
        quantize_matrices(encode, bits=8)
        _quantize_projections(decode)
        quantize_matrices(decode, bits=bits)
        quantize_table(decode, _TIED_TABLE, bits=bits)
    graphs = {
        "encode": save_graph(encode, folder, f"{FOLDER}/encode.onnx", {}),
        "decode": save_graph(decode, folder, f"{FOLDER}/decode.onnx", aliases),
    }
    return graphs, cache_layers(programs.dimensions)


def _quantize_projections(decode: Any) -> None:
    """Quantise to int8 what multiplies the encoder's states, and nothing else yet."""
    from kvcast.bench.recompute.programs import STATES
    from kvcast.lowering.onnx_quantize import quantize_matrices

    (states,) = (value for value in decode.graph.inputs if value.name == STATES)
    projections = {use.node for use in states.uses()}
    others = [n for n in decode.graph if n.op_type == "MatMul" and n not in projections]
    for node in others:
        node.op_type = "Later"
    quantize_matrices(decode, bits=8)
    for node in others:
        node.op_type = "MatMul"


def _open_onnx(folder: Path, manifest: Manifest, threads: int) -> EncoderDecoder:
    from kvcast.runtimes.onnx import OnnxEncoderDecoder

    return OnnxEncoderDecoder(folder, manifest, threads)


def _lower_aoti(programs: "WhisperPrograms", numbers: BundlePrecision, folder: Path) -> Lowered:
    from kvcast.bench.recompute.aoti import with_cast_projections
    from kvcast.bench.recompute.programs import RecomputingPrograms
    from kvcast.bundle.caches import of_decoder as cache_layers
    from kvcast.lowering import aoti
    from kvcast.lowering.aoti_precision import Precision

    precision = Precision(dtype=numbers.dtype, quantize=numbers.quantize)
    if numbers.quantize == "int4":
        programs = with_cast_projections(programs, precision.torch_dtype)
    graphs = aoti.lower(RecomputingPrograms.of(programs).signatures(), precision, folder)
    return graphs, aoti.cache_layers(cache_layers(programs.dimensions), precision)


def _open_aoti(folder: Path, manifest: Manifest, threads: int) -> EncoderDecoder:
    from kvcast.bench.recompute.aoti import RecomputingAoti

    return RecomputingAoti(folder, manifest, threads)


def _lower_executorch(
    programs: "WhisperPrograms", numbers: BundlePrecision, folder: Path
) -> Lowered:
    import torch
    from torch.export import Dim

    from kvcast.bench.recompute.programs import RecomputingPrograms, of_one_input
    from kvcast.bundle.caches import of_decoder as cache_layers
    from kvcast.lowering import executorch

    signed = RecomputingPrograms.of(programs, of_one_input).signatures()
    sizes, layers = programs.dimensions, cache_layers(programs.dimensions)
    own, _ = layers
    features = torch.zeros(1, sizes.n_mels, 2 * sizes.source_positions)
    states = torch.zeros(1, sizes.source_positions, sizes.d_model)
    chunk = min(_EXECUTORCH_CHUNK, own.capacity)
    decode_arguments = [
        *executorch.new_positions(chunk),
        executorch.caches([own], Dim("capacity", max=own.capacity)),
        ([(states,)], [(None,)]),
    ]
    methods = {
        "encode": executorch.export_method(
            signed["encode"], [(features, None)], _only_states, numbers.quantize
        ),
        "decode": executorch.export_method(
            signed["decode"], decode_arguments, executorch.without_caches, numbers.quantize
        ),
    }
    facts = executorch.facts_of(sizes.vocab_size, [own], chunk, {})
    return executorch.save_methods(methods, signed, facts, folder), layers


def _only_states(source: Any) -> list[Any]:
    return [states for (states,) in source]


def _open_executorch(folder: Path, manifest: Manifest, threads: int) -> EncoderDecoder:
    from kvcast.runtimes.executorch import ExecutorchEncoderDecoder

    return ExecutorchEncoderDecoder(folder, manifest, threads)


_Lower = Callable[["WhisperPrograms", BundlePrecision, Path], Lowered]
_Open = Callable[[Path, Manifest, int], EncoderDecoder]
_RUNTIMES: Mapping[str, tuple[_Lower, _Open]] = {
    "onnx": (_lower_onnx, _open_onnx),
    "aoti": (_lower_aoti, _open_aoti),
    "executorch": (_lower_executorch, _open_executorch),
}
