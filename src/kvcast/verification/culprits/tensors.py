"""Describes how a bundle's constants and programs differ from the expected ones."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.target import StoredValues
from kvcast.spec.program import (
    Constant,
    Node,
    Program,
    SelfAttention,
    SharedAttention,
    Step,
    leaves,
)

Float32 = NDArray[np.float32]

_ROUNDING = {8: 0.75, 4: 4.0}
"""The most that a number differs from its code's, in steps, by the bits of a code.

Rounding takes half a step, and a scale in fp16 a sixteenth of one more. The search for codes of
4 bits may cut off the largest numbers of a block.
"""
_LEAST = 1e-7
"""What may differ where all codes of a block are zero."""
_LARGEST_HALF = 65504.0
_ANGLES = re.compile(r"(?:^|\.)(?:cosines|sines)(?:_\d+)?$")
_MOST = 3
"""As many places are named."""


def difference(name: str, stored: StoredValues, expected: NDArray[np.generic]) -> str:
    """Describe a constant's problem, without its name; empty if there is none.

    `name` is the one in programs; tables of rotary angles are reported by their base.
    """
    if stored.values.shape != expected.shape:
        return f"has shape {stored.values.shape}, not {expected.shape}"
    actual, wanted = (
        np.asarray(part, np.float32) for part in (stored.values, np.asarray(expected))
    )
    wrong = _wrong(stored, actual, wanted)
    count = int(wrong.sum())
    if not count:
        return ""
    if not np.isfinite(actual).all():
        return _not_finite(actual, wanted)
    if _ANGLES.search(name):
        return _angles(actual, wanted, np.arccos if "cosines" in name else np.arcsin)
    return (
        _other_places(actual, wanted, stored)
        or _other_scales(actual, wanted, stored, wrong)
        or _one_number(stored, actual, wanted, wrong)
        or f"{count:,} of {actual.size:,} numbers differ, by up to "
        f"{np.abs(actual - wanted).max():.3g}{_at(wrong)}"
    )


def _not_finite(actual: Float32, wanted: Float32) -> str:
    unfit = ~np.isfinite(actual)
    count, largest = int(unfit.sum()), float(np.abs(wanted[unfit]).max())
    what = "are not finite"
    if np.isfinite(largest) and largest > _LARGEST_HALF:
        what = f"overflow fp16, which holds {_LARGEST_HALF:,.0f}: they are up to {largest:.3g}"
    return f"{count:,} of {actual.size:,} numbers {what}{_at(unfit)}"


def _wrong(stored: StoredValues, actual: Float32, wanted: Float32) -> NDArray[np.bool_]:
    """Return where values differ by more than rounding."""
    if stored.steps is None:
        # Of fewer bits than the checkpoint's, they are rounded.
        allowed = np.abs(wanted) * (0.0 if stored.bits == 32 else 2.0**-7)
        allowed += 0.0 if stored.bits == 32 else _LEAST
        return np.asarray(~(np.abs(actual - wanted) <= allowed))
    off = _ROUNDING[stored.bits] + stored.clipped
    allowed = off * np.abs(_by_number(stored.steps, actual))
    return np.asarray(~(np.abs(actual - wanted) <= allowed + _LEAST))


def _by_number(steps: Float32, like: Float32) -> Float32:
    """Repeat the value of each block for its elements."""
    blocks = like.reshape(*steps.shape, -1)
    return np.broadcast_to(steps[..., None], blocks.shape).reshape(like.shape)


def _at(wrong: NDArray[np.bool_]) -> str:
    places = np.argwhere(wrong)[:_MOST].tolist()
    more = ", ..." if int(wrong.sum()) > _MOST else ""
    return f": at {', '.join(map(str, places))}{more}"


def _one_number(
    stored: StoredValues, actual: Float32, wanted: Float32, wrong: NDArray[np.bool_]
) -> str:
    if int(wrong.sum()) != 1:
        return ""
    place = np.argwhere(wrong)[0].tolist()
    is_, was = actual[wrong], wanted[wrong]
    if stored.steps is None:
        flipped = int((is_.view(np.uint32) ^ was.view(np.uint32))[0])
        bits = f"bit {flipped.bit_length() - 1} is flipped: " if flipped.bit_count() == 1 else ""
    else:
        step = float(_by_number(stored.steps, actual)[wrong][0])
        away = round(abs(float(is_[0] - was[0])) / step) if step else 0
        one = away and away & (away - 1) == 0
        bits = f"bit {away.bit_length() - 1} of its code is flipped: " if one else ""
    return f"one number, at {place}, is wrong: {bits}{is_[0]:.6g}, not {was[0]:.6g}"


def _other_places(actual: Float32, wanted: Float32, stored: StoredValues) -> str:
    if actual.ndim != 2 or stored.steps is not None:
        return ""
    for axis, title in ((0, "row"), (1, "column")):
        rows, should = (np.moveaxis(part, axis, 0) for part in (actual, wanted))
        taken = list(_taken(rows, should))
        if not taken:
            continue
        offsets = {(source - row) % len(rows) for row, source in taken}
        if len(offsets) == 1 and len(taken) > 2:
            (offset,) = offsets
            by = min(offset, len(rows) - offset)
            return f"{len(taken)} {title}s are shifted by {by}: each holds what another should"
        some = [f"{title} {row} holds what {title} {source} should" for row, source in taken]
        return ", ".join(some[:_MOST]) + (", ..." if len(some) > _MOST else "")
    return ""


def _taken(rows: Float32, should: Float32) -> Iterator[tuple[int, int]]:
    """Yield each row that equals another row, with its index; nothing if any equals none."""
    places = {row.tobytes(): i for i, row in enumerate(should)}
    pairs = []
    for i, row in enumerate(rows):
        if np.array_equal(row, should[i]):
            continue
        source = places.get(row.tobytes())
        if source is None:
            return
        pairs.append((i, source))
    yield from pairs


def _other_scales(
    actual: Float32, wanted: Float32, stored: StoredValues, wrong: NDArray[np.bool_]
) -> str:
    """Report outputs whose values are the expected ones times a factor."""
    if actual.ndim != 2:
        return ""
    factors: dict[int, float] = {}
    for row in np.flatnonzero(wrong.any(axis=1)).tolist():
        length = float(wanted[row] @ wanted[row])
        factor = float(actual[row] @ wanted[row]) / length if length else 0.0
        off = np.linalg.norm(actual[row] - factor * wanted[row])
        rounding = 0.02 if stored.steps is None or stored.bits == 8 else 0.2
        is_scaled = factor > 0 and abs(factor - 1) > rounding
        if not is_scaled or off > rounding * np.linalg.norm(actual[row]):
            return ""
        factors[row] = factor
    largest = np.abs(wanted).max(axis=1)
    named = []
    for row, factor in factors.items():
        near = np.abs(largest - factor * largest[row])
        near[row] = np.inf
        source = int(near.argmin())
        is_others = near[source] <= 0.01 * largest[source]
        of = f", that of output {source}" if is_others else ""
        named.append(f"output {row} has another scale{of} (times {factor:.3g})")
    return "; ".join(named[:_MOST]) + ("; ..." if len(named) > _MOST else "")


def _angles(actual: Float32, wanted: Float32, angle_of: np.ufunc) -> str:
    """Report the base of a table of cosines or sines [positions, pairs]."""
    is_, was = (_base(part, angle_of) for part in (actual, wanted))
    if is_ is None or was is None or is_ == was:
        return f"angles of rotary positions differ{_at(actual != wanted)}"
    return f"angles of rotary positions are of base {is_:g}, not {was:g}"


def _base(table: Float32, angle_of: np.ufunc) -> float | None:
    """Return the base of a table's angles, from position 1; None if there is none."""
    if len(table) < 2:
        return None
    angles = angle_of(table[1].clip(-1, 1).astype(np.float64))
    turning = int((angles > 0).sum())
    if turning < 2 or not angles[1] > 0:
        return None
    # Pair i of n turns by base ** (-i / n).
    base = float(angles[1] ** -turning)
    return float(f"{base:.3g}") if np.isfinite(base) and base > 1 else None


_NAMES: Mapping[str, tuple[str, ...]] = {
    "self_attention": SelfAttention._fields,
    "shared_attention": SharedAttention._fields,
}
_CACHE = re.compile(r"past_[a-z]+_(\d+)$")
_TENSOR = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def program_differences(stored: Program, expected: Program) -> list[str] | None:
    """Describe different arguments; None if the operations differ."""
    pairs = list(zip(stored.steps, expected.steps, strict=False))
    if len(stored.steps) != len(expected.steps) or any(
        one.operation != other.operation for one, other in pairs
    ):
        return None
    return [words for one, other in pairs for words in _differences(one, other)]


def layer_of(step: Step) -> int | None:
    """Return an operation's layer, by the tensors that it reads, or else by its caches."""
    given = [leaf for leaf in leaves((step.arguments, step.keywords)) if hasattr(leaf, "name")]
    for kind, pattern in ((Constant, _TENSOR), (Node, _CACHE)):
        for leaf in given:
            if isinstance(leaf, kind) and (found := pattern.search(leaf.name)):
                return int(found[1])
    return None


def _differences(stored: Step, expected: Step) -> Iterator[str]:
    layer = layer_of(expected)
    place = expected.operation + ("" if layer is None else f" of layer {layer}")
    for name, is_, was in _arguments(stored, expected):
        if not _same(is_, was):
            yield f"{place}: {name} is {_shown(is_)}, not {_shown(was)}"


def _arguments(stored: Step, expected: Step) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each argument, and both values."""
    known, count = (
        _NAMES.get(expected.operation, ()),
        max(len(stored.arguments), len(expected.arguments)),
    )
    for i in range(count):
        name = known[i].replace("_", " ") if i < len(known) else f"argument {i}"
        is_, was = (
            step.arguments[i] if i < len(step.arguments) else None for step in (stored, expected)
        )
        yield name, is_, was
    for name in sorted(stored.keywords.keys() | expected.keywords.keys()):
        yield name, stored.keywords.get(name), expected.keywords.get(name)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _shown(value: Any) -> str:
    return value.name if isinstance(value, Node | Constant) else str(value)
