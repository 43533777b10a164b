"""Says where a bundle's program differs from the one that its family writes: operation and layer.

Knows no family. A bundle of another version may be written otherwise and compute the same, so only
arguments of the same operations are compared.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvcast.spec.program import (
    Constant,
    Node,
    Program,
    SelfAttention,
    SharedAttention,
    Step,
    leaves,
)

_NAMES: Mapping[str, tuple[str, ...]] = {
    "self_attention": SelfAttention._fields,
    "shared_attention": SharedAttention._fields,
}
_CACHE = re.compile(r"past_[a-z]+_(\d+)$")
_TENSOR = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def program_differences(written: Program, expected: Program) -> list[str] | None:
    """Return in words where arguments differ; None where the operations are others."""
    pairs = list(zip(written.steps, expected.steps, strict=False))
    if len(written.steps) != len(expected.steps) or any(
        one.operation != other.operation for one, other in pairs
    ):
        return None
    return [words for one, other in pairs for words in _differences(one, other)]


def layer_of(step: Step) -> int | None:
    """Return the layer that an operation belongs to, by the caches and tensors that it reads."""
    for leaf in leaves((step.arguments, step.keywords)):
        name, pattern = (
            (leaf.name, _CACHE) if isinstance(leaf, Node) else (getattr(leaf, "name", ""), _TENSOR)
        )
        if found := pattern.search(name):
            return int(found[1])
    return None


def _differences(written: Step, expected: Step) -> Iterator[str]:
    layer = layer_of(expected)
    place = expected.operation + ("" if layer is None else f" of layer {layer}")
    for name, is_, was in _arguments(written, expected):
        if not _same(is_, was):
            yield f"{place}: {name} is {_shown(is_)}, not {_shown(was)}"


def _arguments(written: Step, expected: Step) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each argument with both of its values."""
    known, count = (
        _NAMES.get(expected.operation, ()),
        max(len(written.arguments), len(expected.arguments)),
    )
    for i in range(count):
        name = known[i].replace("_", " ") if i < len(known) else f"argument {i}"
        is_, was = (
            step.arguments[i] if i < len(step.arguments) else None for step in (written, expected)
        )
        yield name, is_, was
    for name in sorted(written.keywords.keys() | expected.keywords.keys()):
        yield name, written.keywords.get(name), expected.keywords.get(name)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _shown(value: Any) -> str:
    return value.name if isinstance(value, Node | Constant) else str(value)
