"""Joins operations that the interpreter does in one instruction: products with their epilogues.

Knows operations by their names and no model.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvcast.spec.program import Node, Step, leaves

_ACTIVATIONS = frozenset({"gelu", "gelu_tanh", "silu", "relu", "tanh"})
_PRODUCTS = frozenset({"linear", "conv1d"})

Sizes = Mapping[str, tuple[Any, ...]]


def fused(steps: Sequence[Step], sizes: Sizes, outputs: Iterable[str]) -> list[Step]:
    """Return steps that compute the same in fewer instructions.

    Args:
        steps: in order.
        sizes: of each array, by the name of its step or input; some may be symbols.
        outputs: names that must stay.

    """
    for rule in (_activation, _residual, _gate, _gated_product):
        steps = _applied(rule, steps, sizes, frozenset(outputs))
    return _without_unread(steps, frozenset(outputs))


_Rule = Callable[[Step, Mapping[str, Step], Sizes], tuple[Step, Sequence[str]] | None]
"""Returns the replacement of a step, and the steps that only it reads: they go."""


def _applied(
    rule: _Rule, steps: Sequence[Step], sizes: Sizes, outputs: frozenset[str]
) -> list[Step]:
    readers = _readers(steps)
    by_name = {step.name: step for step in steps}
    kept: dict[str, Step] = {}
    for step in steps:
        fusion = rule(step, by_name, sizes)
        kept[step.name] = step
        if fusion is None:
            continue
        joined, absorbed = fusion
        gone = frozenset(absorbed)
        if all(readers[name] <= gone | {step.name} and name not in outputs for name in gone):
            for name in absorbed:
                kept.pop(name, None)
            kept[step.name] = by_name[step.name] = joined
    return list(kept.values())


def _activation(
    step: Step, by_name: Mapping[str, Step], _: Sizes
) -> tuple[Step, Sequence[str]] | None:
    """Let a product end with its activation."""
    if step.operation not in _ACTIVATIONS:
        return None
    product = _step(step.arguments[0], by_name)
    if product is None or product.operation not in _PRODUCTS or product.keywords:
        return None
    return replace(product, name=step.name, keywords={"activation": step.operation}), [product.name]


def _residual(
    step: Step, by_name: Mapping[str, Step], sizes: Sizes
) -> tuple[Step, Sequence[str]] | None:
    """Let a product add its results to a residual."""
    if step.operation != "add" or len(step.arguments) != 2:
        return None
    for other, added in (step.arguments, step.arguments[::-1]):
        product = _step(added, by_name)
        if product is None or product.operation != "linear" or "residual" in product.keywords:
            continue
        if not isinstance(other, Node) or sizes[other.name] != sizes[product.name]:
            continue
        if other.name == product.name:  # twice itself
            continue
        keywords = {**product.keywords, "residual": other}
        return replace(product, name=step.name, keywords=keywords), [product.name]
    return None


def _gate(step: Step, by_name: Mapping[str, Step], _: Sizes) -> tuple[Step, Sequence[str]] | None:
    """Multiply an activated half by the other in one instruction."""
    if step.operation != "mul":
        return None
    for gate, up in (step.arguments, step.arguments[::-1]):
        activated, other = _step(gate, by_name), _step(up, by_name)
        if activated is None or activated.operation not in _ACTIVATIONS:
            continue
        if other is None or other.operation != "getitem":
            continue
        keywords = {"activation": activated.operation}
        joined = Step(step.name, "gated", [activated.arguments[0], up], keywords)
        return joined, [activated.name]
    return None


def _gated_product(
    step: Step, by_name: Mapping[str, Step], _: Sizes
) -> tuple[Step, Sequence[str]] | None:
    """Let a product whose results are a gate and the gated half end with the gating."""
    if step.operation != "gated":
        return None
    halves = [_step(half, by_name) for half in step.arguments]
    if [half and (half.operation, half.arguments[1]) for half in halves] != [
        ("getitem", 0),
        ("getitem", 1),
    ]:
        return None
    both = [_step(half.arguments[0], by_name) for half in halves if half]
    chunk = both[0]
    if chunk is None or chunk is not both[1] or chunk.operation != "chunk":
        return None
    product = _step(chunk.arguments[0], by_name)
    along_outputs = list(chunk.arguments[1:]) == [2, -1]
    if product is None or product.operation != "linear" or product.keywords or not along_outputs:
        return None
    joined = replace(product, name=step.name, keywords={"gate": step.keywords["activation"]})
    return joined, [*(half.name for half in halves if half), chunk.name, product.name]


def _step(given: Any, by_name: Mapping[str, Step]) -> Step | None:
    return by_name.get(given.name) if isinstance(given, Node) else None


def _readers(steps: Sequence[Step]) -> Mapping[str, set[str]]:
    """Return the names of the steps that read each."""
    readers: dict[str, set[str]] = defaultdict(set)
    for step in steps:
        for leaf in leaves((step.arguments, step.keywords)):
            if isinstance(leaf, Node):
                readers[leaf.name].add(step.name)
    return readers


def _without_unread(steps: Sequence[Step], outputs: frozenset[str]) -> list[Step]:
    """Leave out sizes and views that nothing reads any more."""
    kept = list(steps)
    while True:
        readers = _readers(kept)
        read = [
            step
            for step in kept
            if readers[step.name] or step.name in outputs or step.operation == "self_attention"
        ]
        if len(read) == len(kept):
            return kept
        kept = read
