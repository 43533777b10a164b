"""Shape inference: the shape of every op's result in a program, from the shapes of its inputs.

For counts and declarations without running a program; all sizes are known.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from kvcast.spec.program import Constant, Node, Step

Shape = tuple[int, ...]


def shape_of(step: Step, shapes: Mapping[str, Any], constants: Mapping[str, Shape]) -> Any:
    """KeyError for an op that has none here."""
    if step.operation in _LIKE_FIRST:
        return resolve(step.arguments[0], shapes, constants)
    given = [resolve(part, shapes, constants) for part in step.arguments]
    if step.operation == "linear" and "gate" in step.keywords:
        return (*given[0][:-1], given[1][0] // 2)
    return _RULES[step.operation](*given)


def resolve(given: Any, shapes: Mapping[str, Any], constants: Mapping[str, Shape]) -> Any:
    if isinstance(given, Node):
        return shapes[given.name]
    if isinstance(given, Constant):
        return constants[given.name]
    if isinstance(given, list | tuple):
        return [resolve(part, shapes, constants) for part in given]
    return given


def _broadcast(*given: Any) -> Shape:
    return np.broadcast_shapes(*(part for part in given if isinstance(part, tuple)))


def _unflatten(x: Shape, axis: int, sizes: list[int]) -> Shape:
    axis %= len(x)
    return *x[:axis], *_complete(x[axis], sizes), *x[axis + 1 :]


def _complete(count: int, sizes: list[int]) -> Shape:
    known = prod(size for size in sizes if size != -1)
    return tuple(count // known if size == -1 else size for size in sizes)


def _flatten(x: Shape, first: int = 0, last: int = -1) -> Shape:
    first, last = first % len(x), last % len(x)
    return *x[:first], prod(x[first : last + 1]), *x[last + 1 :]


def _with_axis(x: Shape, axis: int, size: int) -> Shape:
    axis %= len(x)
    return *x[:axis], size, *x[axis + 1 :]


def _transpose(x: Shape, first: int, second: int) -> Shape:
    axes = list(x)
    axes[first], axes[second] = axes[second], axes[first]
    return tuple(axes)


def _unsqueeze(x: Shape, axis: int) -> Shape:
    axis %= len(x) + 1
    return *x[:axis], 1, *x[axis:]


def _slice(x: Shape, axis: int, first: int, last: int) -> Shape:
    return _with_axis(x, axis, len(range(x[axis])[first:last]))


def _convolved(size: int, kernel: int, stride: int, padding: int) -> int:
    return (size + padding - kernel) // stride + 1


def _conv1d(x: Shape, matrix: Shape, stride: int, padding: int | list[int]) -> Shape:
    both = 2 * padding if isinstance(padding, int) else sum(padding)
    return x[0], matrix[0], _convolved(x[2], matrix[2], stride, both)


def _conv2d(x: Shape, matrix: Shape, stride: int, padding: int) -> Shape:
    sizes = (
        _convolved(size, kernel, stride, 2 * padding)
        for size, kernel in zip(x[1:3], matrix[2:], strict=True)
    )
    return x[0], *sizes, matrix[0]


def _channel_convolution(x: Shape, kernel: Shape, _: Shape, stride: int) -> Shape:
    return x[0], -(-x[1] // stride), -(-x[2] // stride), kernel[2]


def _with_state(x: Shape, *given: Any) -> Shape:
    """[rows, new, ...] and a state [rows, heads, k, v], third from the end, to all values."""
    state = given[-3]
    return *x[:-1], state[1] * state[3]


def _latent_attention(query: Shape, *given: Any) -> Shape:
    heads, values, _ = given[6]
    return *query[:-1], heads * values


_LIKE_FIRST = frozenset(
    {
        *("self_attention", "shared_attention", "cross_attention", "encoder_attention"),
        *("source_attention", "window_attention", "short_convolution", "gated_recurrence"),
        *("mixture_of_experts",),
        *("layer_norm", "rms_norm", "group_norm", "softmax", "gated", "rewrite", "positions"),
        *("gelu", "gelu_tanh", "relu", "silu", "sigmoid", "tanh", "asinh"),
        *("clamp", "to", "contiguous"),
    }
)
_RULES: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "floor_divide"), _broadcast),
    **dict.fromkeys(("lt", "ge", "eq", "where"), _broadcast),
    "linear": lambda x, matrix: (*x[:-1], matrix[0]),
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "channel_convolution": _channel_convolution,
    "embedding": lambda table, ids: (*ids, table[-1]),
    "index_select": lambda x, axis, index: _with_axis(x, axis, prod(index)),
    "relative_scores": lambda query, _, heads, __: (query[0], heads, query[1], query[1]),
    "latent_attention": _latent_attention,
    "select_positions": lambda query, *given: (*query[:-1], given[4]),
    "moments": lambda x: (*x[:-1], 3),
    "delta_rule": _with_state,
    "selective_scan": _with_state,
    "arange": lambda count: (count,),
    "cat": lambda parts, axis: _with_axis(parts[0], axis, sum(part[axis] for part in parts)),
    "transpose": _transpose,
    "unsqueeze": _unsqueeze,
    "flatten": _flatten,
    "unflatten": _unflatten,
    "view": lambda x, sizes: _complete(prod(x), sizes),
    "split": lambda x, sizes, axis: [_with_axis(x, axis, size) for size in sizes],
    "chunk": lambda x, count, axis: [_with_axis(x, axis, x[axis] // count)] * count,
    "slice": _slice,
    "getitem": lambda parts, i: parts[i],
    "size": lambda x, axis: x[axis],
}
