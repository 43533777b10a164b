"""Casts an exported program's matrices to bf16 or fp16, in products, lookups and convolutions.

Everything between products stays fp32: a product's input is cast for the kernel, and its result is
cast back. Quantised matrices are `aoti_packed`'s. Knows no model: matrices are found by the nodes
that read them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn.functional import conv1d, embedding, linear

_LINEAR = torch.ops.aten.linear.default
_EMBEDDING = torch.ops.aten.embedding.default
_CONVOLUTION = torch.ops.aten.conv1d.default
_WEIGHT_OF = {_LINEAR: 1, _EMBEDDING: 0}  # which argument it is
# Tables of fewer rows that serve lookups alone keep their precision.
_LARGE_TABLE = 4096


class _CastLinear(nn.Module):
    """A linear layer with weights in bf16 or fp16, and fp32 in and out."""

    weight: Tensor

    def __init__(self, matrix: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", matrix.weight.to(dtype))
        self.bias = matrix.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs], fp32."""
        product = linear(hidden.to(self.weight.dtype), self.weight).float()
        return product if self.bias is None else product + self.bias


class _CastConvolution(nn.Module):
    """As `_CastLinear`, for a convolution."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", weight.to(dtype))
        self.register_buffer("bias", bias)

    def forward(self, hidden: Tensor, *settings: Any) -> Tensor:
        """[b, inputs, t] to [b, outputs, t / stride], fp32; `settings` are those of `conv1d`."""
        given = hidden.to(self.weight.dtype)
        return conv1d(given, self.weight, None, *settings).float() + self.bias[:, None]


def _look_up(tokens: Tensor, weight: Tensor) -> Tensor:
    return embedding(tokens, weight).float()


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The precision of a compiled program.

    Attributes:
        dtype: of caches, attention and matrices that are not quantised: "fp32", "bf16" or "fp16".
        quantize: how matrices are quantised: "none", "int8" or "int4".

    """

    dtype: str = "fp32"
    quantize: str = "none"

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as a torch dtype."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.dtype]

    @property
    def cache_dtype(self) -> str:
        """The caches' dtype as the manifest spells it."""
        return str(self.torch_dtype).removeprefix("torch.")

    @property
    def has_prefill(self) -> bool:
        """Whether many tokens get a program of their own, over the same weights."""
        return self.dtype != "fp32"


def cast_matrices(module: GraphModule, dtype: torch.dtype) -> None:
    """Cast the weights of a program's products and lookups, in place."""
    for owner, products, lookups in list(_matrices(module)):
        matrix = _linear(module, owner, products)
        if not products and len(matrix.weight) < _LARGE_TABLE:
            continue
        # A name of its own: another program may read the same matrix in another dtype.
        cast = _cast_name(owner, dtype)
        module.set_submodule(cast, _CastLinear(matrix, dtype))
        for node in products:
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.call_module(cast, (node.args[0],)))
        for node in lookups:
            with module.graph.inserting_before(node):
                weight = module.graph.get_attr(f"{cast}.weight")
                found = module.graph.call_function(_look_up, (node.args[1], weight))
                node.replace_all_uses_with(found)
    module.graph.eliminate_dead_code()
    module.recompile()


def cast_convolutions(module: GraphModule, dtype: torch.dtype) -> None:
    """Cast the weights of a program's convolutions, in place."""
    for node in module.graph.find_nodes(op="call_function", target=_CONVOLUTION):
        hidden, weight, _, *settings = node.args
        owner = str(weight.target).removesuffix(".weight")
        held = module.get_submodule(owner)
        parts = held.get_parameter("weight").detach(), held.get_parameter("bias").detach()
        module.set_submodule(_cast_name(owner, dtype), _CastConvolution(*parts, dtype))
        with module.graph.inserting_before(node):
            call = module.graph.call_module(_cast_name(owner, dtype), (hidden, *settings))
            node.replace_all_uses_with(call)
    module.graph.eliminate_dead_code()
    module.recompile()


def _cast_name(owner: str, dtype: torch.dtype) -> str:
    return f"{owner}_{str(dtype).removeprefix('torch.')}"


def _matrices(module: GraphModule) -> Iterator[tuple[str, list[Node], list[Node]]]:
    """Yield the owner of each weight, the products with it, and the lookups in it."""
    users: dict[str, list[Node]] = {}
    for node in module.graph.nodes:
        place = _WEIGHT_OF.get(node.target)
        if place is not None and str(node.args[place].target).endswith(".weight"):
            owner = str(node.args[place].target).removesuffix(".weight")
            users.setdefault(owner, []).append(node)
    for owner, nodes in users.items():
        products = [node for node in nodes if node.target is _LINEAR]
        yield owner, products, [node for node in nodes if node.target is _EMBEDDING]


def _linear(module: GraphModule, owner: str, products: Sequence[Node]) -> nn.Linear:
    """Return the owner's weight as a linear layer, with the product's bias if there is one."""
    held = module.get_submodule(owner)
    weight = held.get_parameter("weight")
    outputs, inputs = weight.shape
    matrix = nn.Linear(inputs, outputs, bias=False, device="meta")
    matrix.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if any(len(product.args) > 2 for product in products):
        matrix.bias = held.get_parameter("bias")
    return matrix
