"""Opens models on kvcast's interpreter: bundles, and checkpoints directly.

A checkpoint needs no bundle: its family writes the programs, and its weights are packed from its
mapped files.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.checkpoints.base import Checkpoint, LazyTensors
from kvcast.checkpoints.safetensors import read_safetensors
from kvcast.errors import KvcastError
from kvcast.families.base import Family
from kvcast.families.programs import CacheLayers
from kvcast.runtimes.native.interpreter import WEIGHTS, Interpreter, read_program
from kvcast.runtimes.native.library import Machine
from kvcast.runtimes.native.weights import BundleWeights, CheckpointWeights, packed_constants
from kvcast.runtimes.opening import naming
from kvcast.spec.program import Program
from kvcast.spec.runtimes import BundlePrecision, OnPhase, ignore_phase

_DTYPES = {"fp32": "float32", "fp16": "float16", "int8": "int8"}


def open_bundle(
    folder: Path, manifest: Manifest, threads: int, instructions: str | None = None
) -> Interpreter:
    """Open a bundle's programs; KvcastError names the file that cannot be run.

    `instructions` is a set of the library's, by default the chosen.
    """
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
    """Open a checkpoint; the manifest equals its bundle's.

    `instructions` is a set of the library's, by default the chosen.
    """
    precision = checkpoint.opened_in(precision)
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
    )
    constants = packed_constants(machine, list(programs.values()), weights, on_phase)
    manifest = manifest_of(checkpoint, programs, precision)
    exact = precision.quantize == "none"
    place = Path(checkpoint.source)
    return manifest, Interpreter(machine, programs, constants, lambda _: place, exact=exact)


def manifest_of(
    checkpoint: Checkpoint, programs: Mapping[str, Program], precision: BundlePrecision
) -> Manifest:
    """Return the manifest that a checkpoint's bundle would have."""
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
    """Return the manifest's entries for programs in files of a folder."""
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
