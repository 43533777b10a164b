"""Reads the constants of a package's weights, for comparing them with a checkpoint's.

In int8 matrices are PyTorch's own, of smoothed models, and are not read. Knows no model.
"""

import re
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
_ROUNDED = re.compile(r"_b?float16(?=\.(?:weight|bias)$)")


def stored(folder: Path, manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]) -> Stored:
    """Return a package's constants; `shapes` are of the checkpoint's tensors."""
    if manifest.quantize == "int8":
        return Stored()
    file = safe_open(folder / WEIGHTS, framework="pt")  # NumPy has no bfloat16
    names = {own_name(name): name for name in file.keys()}  # type: ignore[no-untyped-call] # noqa: SIM118

    def read(name: str) -> NDArray[Any]:
        tensor = file.get_tensor(name)  # type: ignore[no-untyped-call]
        array: NDArray[Any] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return array

    constants = constants_of(read, names, shapes)
    rounded = {own_name(name) for name in names.values() if _ROUNDED.search(name)}
    return Stored(
        constants={
            name: partial(_rounded, of) if name in rounded else of for name, of in constants.items()
        }
    )


def own_name(name: str) -> str:
    """Return a tensor's name in programs; those of fewer bits have a dtype in the file's."""
    return _ROUNDED.sub("", name.removeprefix(PREFIX))


def _rounded(read: Callable[[], StoredNumbers]) -> StoredNumbers:
    """Return numbers that have fewer bits than the checkpoint's."""
    return replace(read(), bits=16)
