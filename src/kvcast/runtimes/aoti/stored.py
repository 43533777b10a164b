"""Reads the constants of a package's weights, for comparing them with a checkpoint's.

In int8 matrices are PyTorch's own, of smoothed models, and are not read. Knows no model.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import safe_open

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.native.stored import constants_of
from kvcast.runtimes.stored import Stored, StoredNumbers

WEIGHTS, PREFIX = "aoti/weights.safetensors", "results.program."


def stored(folder: Path, manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]) -> Stored:
    """Return a package's constants; `shapes` are of the checkpoint's tensors."""
    if manifest.quantize == "int8":
        return Stored()
    file = safe_open(folder / WEIGHTS, framework="pt")  # NumPy has no bfloat16
    names = {name.removeprefix(PREFIX): name for name in file.keys()}  # type: ignore[no-untyped-call] # noqa: SIM118

    def read(name: str) -> NDArray[Any]:
        tensor = file.get_tensor(name)  # type: ignore[no-untyped-call]
        array: NDArray[Any] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return array

    constants = constants_of(read, names, shapes)
    if manifest.dtype == "fp32":
        return Stored(constants=constants)
    return Stored(constants={name: partial(_rounded, of) for name, of in constants.items()})


def _rounded(read: Callable[[], StoredNumbers]) -> StoredNumbers:
    """Return numbers that were fp32 in the checkpoint, perhaps, and have fewer bits."""
    numbers = read()
    return numbers if numbers.steps is not None else replace(numbers, bits=16)
