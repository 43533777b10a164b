"""Writes bundles for kvcast's own interpreter: a file of operations per program, and weights.

A family writes its programs itself. Matrices are quantized here; they are packed for the processor
when a bundle is opened.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.runtimes.native.interpreter import WEIGHTS, read_program
from kvcast.runtimes.native.matrices import (
    CODES,
    LEAST,
    SCALES,
    Kind,
    kinds_by,
    roles_of,
    store_matrix,
)
from kvcast.runtimes.native.opening import graphs_of
from kvcast.runtimes.target import Stored, StoredNumbers
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
        on_phase: called at the start of each phase.
        blocks_of: the checkpoint's codes of a matrix, which are kept.

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
) -> dict[str, Callable[[], StoredNumbers]]:
    """Group a file's tensors into constants: a matrix's codes and scales are one.

    Args:
        read: returns a tensor by its name in the file.
        names: file's names by programs' names.
        shapes: of the checkpoint's tensors.

    """
    known = {name.removesuffix(CODES) for name in names if not name.endswith((SCALES, LEAST))}
    return {
        name: partial(_numbers, lambda part: read(names[part]), names, name, shapes.get(name))
        for name in known
    }


def _numbers(
    read: Callable[[str], NDArray[Any]],
    there: Container[str],
    name: str,
    shape: tuple[int, ...] | None,
) -> StoredNumbers:
    """Return a constant, in a checkpoint's shape unless None."""
    if name in there:
        return StoredNumbers(_shaped(read(name), shape))
    codes, bits = read(name + CODES), 8
    steps, least = np.asarray(read(name + SCALES), np.float32), np.zeros(1, np.float32)
    if name + LEAST in there:
        codes, bits = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1), 4
        least = np.asarray(read(name + LEAST), np.float32)[..., None]
    if steps.ndim < codes.ndim:
        steps = steps[..., None]  # one per output
    blocks = codes.reshape(*steps.shape, -1).astype(np.float32) * steps[..., None] + least
    return StoredNumbers(_shaped(blocks.reshape(codes.shape), shape), steps, bits)


def _shaped(numbers: NDArray[Any], shape: tuple[int, ...] | None) -> NDArray[Any]:
    """Undo the order of a convolution's windows: [outputs, size * channels]."""
    if shape is None or numbers.shape == shape:
        return numbers
    outputs, channels, *sizes = shape
    return np.moveaxis(numbers.reshape(outputs, *sizes, channels), -1, 1)
