"""Opens models on kvcast's interpreter, bundles and checkpoints, and writes its bundles.

A checkpoint needs no bundle: its family writes the programs, and its weights are packed from its
mapped files. A bundle has a file of operations for each program, and weights that are quantized
when it is written and packed for the processor when it is opened.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.checkpoints.base import Checkpoint, LazyTensors
from kvcast.checkpoints.safetensors import read_safetensors
from kvcast.errors import KvcastError
from kvcast.families.base import Family
from kvcast.families.programs import CacheLayers
from kvcast.runtimes.native.interpreter import WEIGHTS, Interpreter, read_program
from kvcast.runtimes.native.library import Machine
from kvcast.runtimes.native.matrices import (
    CODES,
    LEAST,
    SCALES,
    Kind,
    kinds_by,
    roles_of,
    store_matrix,
)
from kvcast.runtimes.native.weights import BundleWeights, CheckpointWeights, packed_constants
from kvcast.runtimes.opening import naming
from kvcast.runtimes.target import Stored, StoredValues
from kvcast.spec.program import Program
from kvcast.spec.runtimes import BundlePrecision, OnPhase, ignore_phase
from kvcast.spec.stored_matrices import BlocksOf, no_blocks, unpack_nibbles

_DTYPES = {"fp32": "float32", "fp16": "float16", "int8": "int8"}


def open_bundle(
    folder: Path, manifest: Manifest, threads: int, instructions: str | None = None
) -> Interpreter:
    """Open a bundle's programs, on an ISA; KvcastError names the file that cannot be run."""
    paths = {name: folder / graph.file for name, graph in manifest.graphs.items()}
    programs = {name: _read(path, manifest.graphs[name]) for name, path in paths.items()}
    machine = Machine(threads, instructions)
    path = next(iter(paths.values())).parent / WEIGHTS
    with naming(path):
        tensors = LazyTensors({name: [part] for name, part in read_safetensors(path).items()})
        weights = BundleWeights(path, tensors.rows_of)
        constants = packed_constants(machine, list(programs.values()), weights)
    exact = manifest.quantize == "none"
    return Interpreter(machine, programs, constants, paths.__getitem__, exact=exact)


def open_checkpoint(
    checkpoint: Checkpoint,
    precision: BundlePrecision,
    threads: int,
    instructions: str | None = None,
    on_phase: OnPhase = ignore_phase,
) -> tuple[Manifest, Interpreter]:
    """Open a checkpoint, on an ISA; the manifest equals its bundle's."""
    precision = checkpoint.resolve_precision(precision)
    family, dimensions = checkpoint.family, checkpoint.dimensions
    programs = family.write_programs(dimensions)
    machine = Machine(threads, instructions)
    weights = CheckpointWeights(
        programs,
        checkpoint.tensors,
        family.tensor_shapes(dimensions),
        checkpoint.tensors.rows_of,
        family.constants(dimensions, checkpoint.tensors),
        precision,
        checkpoint.tensors.blocks_of,
    )
    constants = packed_constants(machine, list(programs.values()), weights, on_phase)
    manifest = manifest_of(checkpoint, programs, precision)
    exact = precision.quantize == "none"
    place = Path(checkpoint.source)
    return manifest, Interpreter(machine, programs, constants, lambda _: place, exact=exact)


def manifest_of(
    checkpoint: Checkpoint, programs: Mapping[str, Program], precision: BundlePrecision
) -> Manifest:
    return Manifest(
        family=checkpoint.family.name,
        runtime="native",
        quantize=precision.quantize,
        dtype=precision.dtype,
        device="cpu",
        processor=(),
        dimensions=asdict(checkpoint.dimensions),
        cache=cache_layers(checkpoint.family, checkpoint.dimensions, precision),
        graphs=graphs_of(programs, ""),
        source={"name": checkpoint.source},
        tools={},
        recipe={} if precision.recipe is None else precision.recipe.fields(),
    )


def graphs_of(programs: Mapping[str, Program], folder: str) -> dict[str, Graph]:
    return {
        name: Graph(
            file=f"{folder}{name}.json",
            inputs=tuple(program.inputs),
            outputs=tuple(program.outputs),
            aliases={},
        )
        for name, program in programs.items()
    }


def cache_layers(
    family: Family, dimensions: Any, precision: BundlePrecision
) -> tuple[CacheLayers, ...]:
    own, cross = _DTYPES[precision.cache], _DTYPES[precision.cross]
    return tuple(
        layer.of_dtype(cross if layer.kind == "cross" else own)
        for layer in family.caches(dimensions)
    )


def _read(path: Path, graph: Graph) -> Program:
    with naming(path):
        program = read_program(path)
    if (*program.inputs, *program.outputs) != (*graph.inputs, *graph.outputs):
        raise KvcastError(f"{path} does not fit bundle.json; export again")
    return program


FOLDER = "native"


def lower(
    programs: Mapping[str, Program],
    tensors: Mapping[str, NDArray[Any]],
    constants: Mapping[str, NDArray[Any]],
    precision: BundlePrecision,
    folder: Path,
    on_phase: OnPhase,
    blocks_of: BlocksOf = no_blocks,
) -> dict[str, Graph]:
    """Write `native/NAME.json` for each program and `native/weights.safetensors` under `folder`.

    `constants` are the programs' own; `blocks_of` has codes of the checkpoint, which are kept.
    """
    from safetensors.numpy import save_file

    (folder / FOLDER).mkdir()
    for name, program in programs.items():
        on_phase(f"exporting {name}")
        program.write(folder / FOLDER / f"{name}.json")
    on_phase("writing weights")
    save_file(
        _stored(programs, tensors, constants, precision, blocks_of), folder / FOLDER / WEIGHTS
    )
    return graphs_of(programs, f"{FOLDER}/")


def _stored(
    programs: Mapping[str, Program],
    tensors: Mapping[str, NDArray[Any]],
    constants: Mapping[str, NDArray[Any]],
    precision: BundlePrecision,
    blocks_of: BlocksOf,
) -> dict[str, NDArray[Any]]:
    roles = {name: roles_of(program) for name, program in programs.items()}
    convolved = {name for each in roles.values() for name in each.convolutions}
    chosen = kinds_by(roles, precision)
    parts: dict[str, NDArray[Any]] = {}
    for name in sorted(set(_names(programs))):
        array, of = constants[name] if name in constants else tensors[name], blocks_of
        if array.dtype.kind == "f":
            array = np.ascontiguousarray(array, np.float32)
        if name in convolved:  # [outputs, size * channels], the layout of its windows
            array = np.ascontiguousarray(np.moveaxis(array, 1, -1)).reshape(len(array), -1)
            of = no_blocks
        parts |= store_matrix(name, array, chosen.get(name, Kind.EXACT), of)
    return parts


def _names(programs: Mapping[str, Program]) -> Iterator[str]:
    for program in programs.values():
        for constant in program.constants():
            yield constant.name
            if constant.bias is not None:
                yield constant.bias


def read_stored(folder: Path, manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]) -> Stored:
    """Return a bundle's programs and constants; `shapes` are of the checkpoint's tensors."""
    paths = {name: folder / graph.file for name, graph in manifest.graphs.items()}
    file = safe_open(next(iter(paths.values())).parent / WEIGHTS, framework="numpy")
    names = {name: name for name in file.keys()}  # type: ignore[no-untyped-call] # noqa: SIM118
    return Stored(
        constants=constants_of(file.get_tensor, names, shapes),
        programs={name: read_program(path) for name, path in paths.items()},
    )


def constants_of(
    read: Callable[[str], NDArray[Any]],
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Callable[[], StoredValues]]:
    """Group a file's tensors, whose names programs know by `names`, into codes with scales."""
    known = {name.removesuffix(CODES) for name in names if not name.endswith((SCALES, LEAST))}
    return {
        name: partial(_dequantize, lambda part: read(names[part]), names, name, shapes.get(name))
        for name in known
    }


def _dequantize(
    read: Callable[[str], NDArray[Any]],
    there: Container[str],
    name: str,
    shape: tuple[int, ...] | None,
) -> StoredValues:
    if name in there:
        return StoredValues(_shaped(read(name), shape))
    codes, bits = read(name + CODES), 8
    steps, least = np.asarray(read(name + SCALES), np.float32), np.zeros(1, np.float32)
    if name + LEAST in there:
        codes, bits = unpack_nibbles(codes), 4
        least = np.asarray(read(name + LEAST), np.float32)[..., None]
    if steps.ndim < codes.ndim:
        steps = steps[..., None]  # one per output
    blocks = codes.reshape(*steps.shape, -1).astype(np.float32) * steps[..., None] + least
    return StoredValues(_shaped(blocks.reshape(codes.shape), shape), steps, bits)


def _shaped(values: NDArray[Any], shape: tuple[int, ...] | None) -> NDArray[Any]:
    """Undo the reordering of a convolution, [outputs, size * channels]."""
    if shape is None or values.shape == shape:
        return values
    outputs, channels, *sizes = shape
    return np.moveaxis(values.reshape(outputs, *sizes, channels), -1, 1)
