"""Writes programs for kvcast's own interpreter: a file of operations for each, and their weights.

A family writes its programs itself. Matrices are quantised here; they are packed for the processor
when a bundle is opened. Knows no family.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from kvcast.bundle.manifest import Graph
from kvcast.runtimes.native.opening import graphs_of
from kvcast.runtimes.native.planning import WEIGHTS
from kvcast.runtimes.native.quantize import Kind, kinds_by, roles_of, stored
from kvcast.spec.program import Program
from kvcast.spec.runtimes import BundlePrecision, OnPhase
from kvcast.spec.stored_matrices import BlocksOf, no_blocks

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

    Args:
        programs: by the names that the runtime looks up.
        tensors: the checkpoint's, by name.
        constants: of the programs, beside the tensors.
        precision: of matrices.
        folder: an existing folder.
        on_phase: called as each phase begins.
        blocks_of: the codes that the checkpoint has for a matrix, which are kept.

    Returns:
        The manifest's entries for the programs.

    """
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
    """Return the tensors of programs' constants in the weights' file."""
    roles = {name: roles_of(program) for name, program in programs.items()}
    convolved = {name for each in roles.values() for name in each.convolutions}
    chosen = kinds_by(roles, precision)
    parts: dict[str, NDArray[Any]] = {}
    for name in sorted(set(_names(programs))):
        array, of = constants[name] if name in constants else tensors[name], blocks_of
        if array.dtype.kind == "f":
            array = np.ascontiguousarray(array, np.float32)
        if name in convolved:  # [outputs, size * channels], as its windows lie in memory
            array = np.ascontiguousarray(np.moveaxis(array, 1, -1)).reshape(len(array), -1)
            of = no_blocks
        parts |= stored(name, array, chosen.get(name, Kind.EXACT), of)
    return parts


def _names(programs: Mapping[str, Program]) -> Iterator[str]:
    for program in programs.values():
        for constant in program.constants():
            yield constant.name
            if constant.bias is not None:
                yield constant.bias
