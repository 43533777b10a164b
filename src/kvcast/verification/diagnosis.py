"""The first difference of two caches that should be equal: the layer, its tensor, the position."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcast.families.programs import ENCODED, CacheLayers
from kvcast.runtimes.base import Float32

_LEAST_SPREAD = 1e-6
_SCALE = np.dtype(np.float32)  # after the codes of a position


@dataclass(frozen=True)
class Place:
    tensor: str
    layer: int
    position: int | None = None  # the first that differs; None where tensors have none

    def __str__(self) -> str:
        at = "" if self.position is None else f" at position {self.position}"
        return f"layer {self.layer}'s {self.tensor}{at}"


@dataclass(frozen=True)
class _Tensor:
    place: Place
    layers: CacheLayers
    values: Any


def first_difference(
    layers: Sequence[CacheLayers],
    one: tuple[Any, int],
    other: tuple[Any, int],
    length: int,
    allowed: float,
) -> Place | None:
    """Return the first difference of a row of one cache from a row of another; None for none.

    Cross-attention caches come first, since layers read them; then layer after layer. Caches are
    `kvcast.runtimes.cache`'s with a row's index; None, too, if their memory layouts differ.
    `allowed` is in standard deviations of a tensor's values.
    """
    pairs = zip(_tensors(layers, *one), _tensors(layers, *other), strict=False)
    for mine, theirs in pairs:
        ours_hcd, wanted_hcd = (_dequantize(tensor, length) for tensor in (mine, theirs))
        if ours_hcd.shape != wanted_hcd.shape or not wanted_hcd.size:
            continue
        deviation = max(float(wanted_hcd.std()), _LEAST_SPREAD)
        with np.errstate(invalid="ignore"):
            is_off_c = ~(np.abs(ours_hcd - wanted_hcd) <= allowed * deviation).all(axis=(0, 2))
        if is_off_c.any():
            has_positions = mine.layers.kind not in ("ring", "inputs", "state")
            at = int(np.flatnonzero(is_off_c)[0]) if has_positions else None
            return Place(mine.place.tensor, mine.place.layer, at)
    return None


def _tensors(layers: Sequence[CacheLayers], cache: Any, row: int) -> Iterator[_Tensor]:
    """Yield a row's tensors: of its input, then of each layer."""
    memory = cache.memory
    if memory.slots.parts:
        slot = memory.slots.places[cache.input_of(row)]
        encoded = [run for run in layers if run.kind in ENCODED]
        for place, run, part in zip(*_named(encoded), memory.slots.parts, strict=False):
            yield _Tensor(place, run, part[slot])
    own = [run for run in layers if run.kind not in ENCODED]
    for place, run, cell in zip(*_named(own), memory.cells, strict=False):
        yield _Tensor(place, run, cell[memory.places[row]])


def _named(runs: Sequence[CacheLayers]) -> tuple[list[Place], list[CacheLayers]]:
    each = [run for run in runs for _ in range(run.layers)]
    pairs = [(i, run, part) for i, run in enumerate(each) for part in run.parts]
    names = [Place(f"cross {part}" if run.kind == "cross" else part, i) for i, run, part in pairs]
    return names, [run for _, run, _ in pairs]


def _dequantize(tensor: _Tensor, length: int) -> Float32:
    """Return the valid values [heads, positions, width] of a row."""
    values = tensor.values
    if hasattr(values, "detach"):  # PyTorch's, of whatever dtype
        values = values.detach().float().numpy()
    if values.ndim != len("hcd"):
        return np.empty((0, 0, 0), np.float32)
    if tensor.layers.kind in ("linear", "latent", "index"):
        values = values[:, :length]
    layers, part = tensor.layers, tensor.place.tensor.removeprefix("cross ")
    width = dict(zip(layers.parts, layers.sizes, strict=True))[part][-1]
    if values.dtype == np.int8:
        if values.shape[-1] != width + _SCALE.itemsize:
            return np.empty((0, 0, 0), np.float32)
        scales = np.ascontiguousarray(values[..., width:]).view(_SCALE)
        dequantized: Float32 = values[..., :width] * scales
        return dequantized
    return np.asarray(values, np.float32)
