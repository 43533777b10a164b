"""Quantizes matrices for XNNPACK, as torchao layers, with an int8 scale per token."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.nn.functional import embedding

from kvcast.errors import KvcastError
from kvcast.runtimes.executorch.methods import quiet

with quiet():
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerAxis, PerGroup

_PRODUCT, _TABLE = torch.ops.aten.linear.default, torch.ops.aten.embedding.default
_GROUP = 32
# Smaller tables hold positions or segments, where there is little to save.
_LEAST_ROWS = 1024


def quantize_matrices(module: GraphModule, quantize: str) -> None:
    """Quantize products with constant matrices, and token embeddings (to int8), in place.

    "8da8w" is int8 with a scale per row, "8da4w" int4 with a scale per group of 32. Raises
    KvcastError where rows do not divide into such groups.
    """
    if quantize == "none":
        return
    for i, node in enumerate(list(module.graph.nodes)):
        if node.target in (_PRODUCT, _TABLE):
            _make_layer(module, node, f"quantized_{i}")
    module.graph.lint()
    module.recompile()
    products = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if quantize == "8da4w":
        _check_groups(products)
        weights = Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4,  # type: ignore[attr-defined]
            weight_granularity=PerGroup(_GROUP),
        )
    else:
        weights = Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int8, weight_granularity=PerAxis(0)
        )
    quantize_(module, weights)


def _check_groups(products: Sequence[nn.Linear]) -> None:
    for product in products:
        if product.in_features % _GROUP:
            raise KvcastError(
                f"8da4w needs rows that divide into groups of {_GROUP} weights and this model has "
                f"rows of {product.in_features}: use --quantize 8da8w"
            )


def for_many_tokens(quantize: str) -> str:
    """Return the scheme for many tokens, as in encoders, where int4 gains nothing."""
    return "8da8w" if quantize == "8da4w" else quantize


def cross_dtype(quantize: str) -> torch.dtype:
    """Return the dtype of cross caches: fp16 halves the bytes that each step reads."""
    return torch.float32 if quantize == "none" else torch.float16


class _Table(nn.Module):
    rows: torch.Tensor
    scales: torch.Tensor

    def __init__(self, rows_vx: torch.Tensor) -> None:
        super().__init__()
        scales_v1 = rows_vx.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
        self.register_buffer("rows", (rows_vx / scales_v1).round().to(torch.int8))
        self.register_buffer("scales", scales_v1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return embedding(tokens, self.rows).float() * embedding(tokens, self.scales)


def _make_layer(module: GraphModule, node: Node, name: str) -> None:
    values = [_constant(module, argument) for argument in node.args]
    if node.target is _TABLE:
        table, source = values[0], node.args[1]
        if table is None or len(table) < _LEAST_ROWS:
            return
        layer: nn.Module = _Table(table)
    else:
        matrix, source = values[1], node.args[0]
        if matrix is None:
            return
        bias = values[2] if len(values) > 2 else None
        outputs, inputs = matrix.shape
        product = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
        product.weight = nn.Parameter(matrix, requires_grad=False)
        if bias is not None:
            product.bias = nn.Parameter(bias, requires_grad=False)
        layer = product
    module.add_submodule(name, layer)
    with module.graph.inserting_before(node):
        call = module.graph.call_module(name, (source,))
    node.replace_all_uses_with(call)
    module.graph.erase_node(node)


def _constant(module: GraphModule, argument: Any) -> torch.Tensor | None:
    if not isinstance(argument, Node) or argument.op != "get_attr":
        return None
    path, _, name = str(argument.target).rpartition(".")
    value: torch.Tensor = getattr(module.get_submodule(path), name)
    return value.detach()
