"""Reads what a bundle for kvcast's own kernels holds, for comparing it with a checkpoint.

Knows no model.
"""

from collections.abc import Callable, Container, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.native.matrices import CODES, LEAST, SCALES
from kvcast.runtimes.native.planning import WEIGHTS, read_program
from kvcast.runtimes.stored import Stored, StoredNumbers


def stored(folder: Path, manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]) -> Stored:
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
    """Return what a file's tensors are of constants: a matrix's codes and scales are one.

    Args:
        read: a tensor by the name that the file has for it.
        names: those of the file's by programs'.
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
        steps = steps[..., None]  # one an output
    blocks = codes.reshape(*steps.shape, -1).astype(np.float32) * steps[..., None] + least
    return StoredNumbers(_shaped(blocks.reshape(codes.shape), shape), steps, bits)


def _shaped(numbers: NDArray[Any], shape: tuple[int, ...] | None) -> NDArray[Any]:
    """Undo the order of a convolution's windows: [outputs, size * channels]."""
    if shape is None or numbers.shape == shape:
        return numbers
    outputs, channels, *sizes = shape
    return np.moveaxis(numbers.reshape(outputs, *sizes, channels), -1, 1)
