"""Bytes that ONNX Runtime's operators write in a step, from its profile of two lengths.

What grows with the length by as much as a cache is a cache that goes elsewhere. Knows no graph.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from kvcast.verification.foreign.base import Movement

_COPYING = (
    *("Concat", "Expand", "Transpose", "Gather", "GatherND", "GatherElements", "Slice", "Split"),
    *("Tile", "Where", "Cast", "Pad", "ScatterND", "ScatterElements"),
)
"""Operators that only move numbers; the result of a `Reshape` lies where its input does."""
_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
}


def movements(
    profile: Callable[[int], Path],
    lengths: tuple[int, int],
    least: int,
    also: Collection[str] = (),
) -> Sequence[Movement]:
    """Return what operators that only move numbers write, where it is as much as a cache.

    Args:
        profile: runs a step over so many positions; returns the profile's file.
        lengths: two different numbers of positions.
        least: bytes a position, from which on a result is as large as a cache's tensor.
        also: further operators, whose results contain caches.

    """
    few, many = (_written(profile(length)) for length in lengths)
    found: dict[str, list[tuple[int, int]]] = {}
    for name, (operator, more) in many.items():
        if operator not in (*_COPYING, *also) or name not in few:
            continue
        slope = (more - few[name][1]) // (lengths[1] - lengths[0])
        if slope >= least:
            found.setdefault(operator, []).append((more - slope * lengths[1], slope))
    return [
        Movement(
            operator=operator,
            count=len(each),
            fixed=sum(fixed for fixed, _ in each),
            per_position=sum(slope for _, slope in each),
        )
        for operator, each in sorted(found.items())
    ]


def _written(path: Path) -> Mapping[str, tuple[str, int]]:
    """Return each operator's kind and the bytes of its results, by the node's name."""
    written: dict[str, tuple[str, int]] = {}
    for event in json.loads(path.read_text(encoding="utf-8")):
        name, about = str(event.get("name", "")), event.get("args") or {}
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            results = about.get("output_type_shape") or []
            written[name] = about.get("op_name", ""), sum(map(_bytes, results))
    return written


def _bytes(result: Mapping[str, Any]) -> int:
    """Return the bytes of one result, as {"float": [1, 2]} describes it."""
    return sum(_BYTES.get(dtype, 0) * prod(shape) for dtype, shape in result.items())
