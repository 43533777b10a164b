"""Mixtures of experts as graph nodes around ONNX Runtime's kernel.

The kernel's weights are the softmax over a token's highest logits. Other routing gives it the
logarithms of chosen scores as logits, and multiplies its result.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from kvcast.runtimes.onnx.graph_writer import CONTRIB, GraphWriter, dims
from kvcast.spec.program import Constant

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64
_NEVER = -1e30  # the logit of what is not chosen


def mixture_of_experts(
    write: GraphWriter,
    x: ir.Value,
    logits: ir.Value,
    gate_up: Constant,
    down: Constant,
    each: int,
    *,
    alpha: float = 0.0,
    limit: float = 0.0,
    gate_up_bias: Constant | None = None,
    down_bias: Constant | None = None,
    **routing: Any,
) -> ir.Value:
    # The kernel takes gate and up interleaved.
    gate_up_eix = write.array(gate_up.name)
    gate_eix, up_eix = np.split(gate_up_eix, 2, axis=1)
    interleaved = np.stack([gate_eix, up_eix], axis=2).reshape(gate_up_eix.shape)
    biases: list[ir.Value | None] = [None, None]
    if gate_up_bias is not None and down_bias is not None:
        halves = np.split(write.array(gate_up_bias.name), 2, axis=1)
        both = np.stack(halves, axis=2).reshape(len(gate_up_eix), -1)
        biases = [write.constant(gate_up_bias.name, both), write.constant(down_bias.name)]
    matrices = [write.constant(gate_up.name, interleaved), biases[0], write.constant(down.name)]
    clamped = {"swiglu_limit": limit} if limit else {}
    logits, factor = _routed(write, logits, each, **routing)
    mixed = write.node(
        "MoE",
        [x, logits, *matrices, biases[1]],
        _FLOAT,
        dims(x),
        CONTRIB,
        activation_type="swiglu",
        activation_alpha=alpha if limit else 1.0,
        activation_beta=1.0 if limit else 0.0,
        **clamped,
        k=each,
        normalize_routing_weights=1,
        swiglu_fusion=1,
    )
    return mixed if factor is None else write.node("Mul", [mixed, factor], _FLOAT, dims(x))


def _routed(
    write: GraphWriter,
    logits: ir.Value,
    each: int,
    *,
    normalised: bool = True,
    score: str = "softmax",
    choice_bias: Constant | None = None,
    groups: Sequence[int] | None = None,
    epsilon: float = 0.0,
    scale: float = 1.0,
) -> tuple[ir.Value, ir.Value | None]:
    """Return the kernel's logits, and what its result is multiplied by; None: 1."""
    is_softmax, is_usual = score == "softmax", choice_bias is None and groups is None
    factor = write.number(scale) if scale != 1 else None
    if is_softmax and normalised and is_usual:
        return logits, factor
    if is_softmax:
        scores = write.node("Softmax", [logits], _FLOAT, dims(logits), axis=-1)
    else:
        scores = write.node("Sigmoid", [logits], _FLOAT, dims(logits))
    ranks = scores
    if choice_bias is not None:
        ranks = write.arithmetic("Add", ranks, write.constant(choice_bias.name))
    if groups is not None:
        ranks = _of_best_groups(write, ranks, *groups)
    chosen = _best(write, ranks, each)[1]
    weights = _taken(write, scores, chosen)
    if is_softmax:
        given = logits if is_usual else _alone(write, chosen, _taken(write, logits, chosen), logits)
    else:
        logarithms = write.node("Log", [weights], _FLOAT, dims(weights))
        given = _alone(write, chosen, logarithms, logits)
    if is_softmax and normalised:
        return given, factor
    share = total = _sum(write, weights)
    if normalised:
        least = write.arithmetic("Add", total, write.number(epsilon))
        share = write.arithmetic("Div", total, least)
    return given, write.arithmetic("Mul", share, write.number(scale))


def _of_best_groups(
    write: GraphWriter, ranks: ir.Value, groups: int, per_token: int, best: int
) -> ir.Value:
    apart = write.reshaped(ranks, [0, groups, -1])
    scores = _sum(write, _best(write, apart, best)[0], keepdims=0)
    highest, chosen = _best(write, scores, per_token)
    nothing = write.arithmetic("Sub", highest, highest)
    added = _alone(write, chosen, nothing, scores)
    return write.reshaped(write.arithmetic("Add", apart, write.unsqueezed(added, 2)), [0, -1])


def _best(write: GraphWriter, x: ir.Value, count: int) -> Sequence[ir.Value]:
    """Return the highest along the last axis, and where they are; of equal ones the first."""
    shape = [*dims(x)[:-1], count]
    given = [x, write.integers(count)]
    return write.nodes("TopK", given, [(_FLOAT, shape), (_INT64, shape)], axis=-1)


def _taken(write: GraphWriter, x: ir.Value, places: ir.Value) -> ir.Value:
    return write.node("GatherElements", [x, places], _FLOAT, dims(places), axis=-1)


def _alone(write: GraphWriter, places: ir.Value, x: ir.Value, like: ir.Value) -> ir.Value:
    """Return x at its places in an array of a shape, and next to nothing elsewhere."""
    shape = write.node("Shape", [like], _INT64, [len(dims(like))])
    never = write.node("Expand", [write.number(_NEVER), shape], _FLOAT, dims(like))
    return write.node("ScatterElements", [never, places, x], _FLOAT, dims(like), axis=-1)


def _sum(write: GraphWriter, x: ir.Value, keepdims: int = 1) -> ir.Value:
    shape = [*dims(x)[:-1], *([1] if keepdims else [])]
    return write.node("ReduceSum", [x, write.integers(-1)], _FLOAT, shape, keepdims=keepdims)
