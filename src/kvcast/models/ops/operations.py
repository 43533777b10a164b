"""What each op of a program is in PyTorch."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvcast.models.ops.attention import (
    cross_attention,
    encoder_attention,
    self_attention,
    shared_attention,
)
from kvcast.models.ops.encoders import (
    group_norm,
    relative_scores,
    source_attention,
    window_attention,
)
from kvcast.models.ops.experts import mixture_of_experts
from kvcast.models.ops.latents import latent_attention, select_positions
from kvcast.models.ops.states import (
    channel_convolution,
    delta_rule,
    gated_recurrence,
    selective_scan,
    short_convolution,
)

Operation = Callable[..., Any]

_DTYPES = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32}


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


_ACTIVATIONS: Mapping[str, Operation] = {
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": functional.relu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def _linear(
    x: Tensor,
    matrix: nn.Module,
    *,
    activation: str | None = None,
    gate: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    product: Tensor = matrix(x)
    if activation is not None:
        product = _ACTIVATIONS[activation](product)
    if gate is not None:
        first, second = product.chunk(2, dim=-1)
        product = _ACTIVATIONS[gate](first) * second
    return product if residual is None else residual + product


def _gate(gate: Tensor, up: Tensor, *, activation: str) -> Tensor:
    gated: Tensor = _ACTIVATIONS[activation](gate) * up
    return gated


def _conv1d(
    x: Tensor,
    matrix: nn.Module,
    stride: int,
    padding: int | list[int],
    *,
    activation: str | None = None,
) -> Tensor:
    if not isinstance(padding, int):
        x, padding = functional.pad(x, padding), 0
    bias = getattr(matrix, "bias", None)
    result = functional.conv1d(x, matrix.weight, bias, (stride,), (padding,))  # type: ignore[arg-type]
    return result if activation is None else _ACTIVATIONS[activation](result)


def _conv2d(
    x: Tensor, matrix: nn.Module, stride: int, padding: int, *, activation: str | None = None
) -> Tensor:
    first = x.permute(0, 3, 1, 2)
    result = functional.conv2d(first, matrix.weight, matrix.bias, (stride,) * 2, (padding,) * 2)  # type: ignore[arg-type]
    activated = result if activation is None else _ACTIVATIONS[activation](result)
    return activated.permute(0, 2, 3, 1)


def _moments(x: Tensor) -> Tensor:
    """Return mean, standard deviation and root mean square of lines, [..., 3]."""
    deviation = x.std(-1, unbiased=False)
    return torch.stack([x.mean(-1), deviation, x.square().mean(-1).sqrt()], -1)


def activated(operation: Operation) -> Operation:
    def activated(*arguments: Any, activation: str | None = None) -> Tensor:
        result: Tensor = operation(*arguments)
        return result if activation is None else _ACTIVATIONS[activation](result)

    return activated


OPERATIONS: Mapping[str, Operation] = {
    **_ACTIVATIONS,
    "linear": _linear,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "gated": _gate,
    "layer_norm": lambda x, weight, bias, epsilon: functional.layer_norm(
        x, weight.shape, weight, bias, epsilon
    ),
    "group_norm": group_norm,
    "rms_norm": lambda x, weight, epsilon: functional.rms_norm(x, weight.shape, weight, epsilon),
    "embedding": lambda table, ids: functional.embedding(ids, table),
    "index_select": torch.index_select,
    "self_attention": self_attention,
    "shared_attention": shared_attention,
    "latent_attention": latent_attention,
    "select_positions": select_positions,
    "cross_attention": cross_attention,
    "encoder_attention": encoder_attention,
    "source_attention": source_attention,
    "window_attention": window_attention,
    "moments": _moments,
    "softmax": lambda x: torch.softmax(x, -1),
    "short_convolution": activated(short_convolution),
    "delta_rule": delta_rule,
    "gated_recurrence": gated_recurrence,
    "channel_convolution": activated(channel_convolution),
    "relative_scores": relative_scores,
    "rewrite": Tensor.copy_,
    "selective_scan": selective_scan,
    "mixture_of_experts": mixture_of_experts,
    "asinh": torch.asinh,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "floor_divide": torch.floor_divide,
    "maximum": torch.maximum,
    "clamp": torch.clamp,
    "lt": torch.lt,
    "ge": torch.ge,
    "eq": torch.eq,
    "where": torch.where,
    "cat": torch.cat,
    "positions": lambda tokens, lengths: (
        lengths[:, None].long() + torch.arange(tokens.shape[1], device=tokens.device)
    ),
    "arange": lambda count, dtype, device: torch.arange(count, dtype=_DTYPES[dtype], device=device),
    "to": lambda x, dtype: x.to(_DTYPES[dtype]),
    "contiguous": Tensor.contiguous,
    "transpose": torch.transpose,
    "unsqueeze": torch.unsqueeze,
    "flatten": torch.flatten,
    "unflatten": Tensor.unflatten,
    "view": Tensor.view,
    "chunk": torch.chunk,
    "split": Tensor.split,
    "slice": lambda x, axis, first, last: x[(slice(None),) * axis + (slice(first, last),)],
    "getitem": operator.getitem,
    "size": Tensor.size,
}
"""What each operation of a program is in PyTorch; `arange` needs the device, too."""
