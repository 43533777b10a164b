"""Lowers the precision of an exported program's matrices, in products and embedding lookups.

Everything between products stays fp32: a product's input is cast, or rounded to int8, for the
kernel, and its result is cast back. A table's few outlier columns are scaled down, and their inputs
scaled up. A matrix that programs read in different dtypes has one name for each. Products that stay
fp32 go to oneDNN. int4 is packed: a file holds the codes and scales of kvcast's own bundles, with
which programs multiply by the operators of `packed`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn.functional import conv1d, embedding, linear
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.runtimes.aoti import packed
from kvcast.runtimes.aoti.operators import kept, mix_routed
from kvcast.runtimes.aoti.packed import MatrixWords
from kvcast.runtimes.native.matrices import BIAS, EXPERTS, MATRIX, Kind, Roles, kinds, store_matrix
from kvcast.spec.stored_matrices import BlocksOf

_LINEAR = torch.ops.aten.linear.default
_EMBEDDING = torch.ops.aten.embedding.default
_CONVOLUTION = torch.ops.aten.conv1d.default
_WEIGHT_OF = {_LINEAR: 1, _EMBEDDING: 0}  # which argument it is
# Tables of fewer rows that serve lookups alone keep their precision.
LARGE_TABLE = 4096
_LARGEST, _SMALLEST = 127, 1e-12
# Steps from a token's lowest value to its highest: fewer than int8's 255, as both ends are rounded.
_STEPS = 252

Form = Callable[[nn.Linear], nn.Module]


class _CastLinear(nn.Module):
    weight: Tensor

    def __init__(self, matrix: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", matrix.weight.to(dtype))
        self.bias = matrix.bias

    def forward(self, hidden: Tensor) -> Tensor:
        product = linear(hidden.to(self.weight.dtype), self.weight).float()
        return product if self.bias is None else product + self.bias


class _Int8Linear(nn.Module):
    """int8 weights with a scale per output, int8 activations with a scale and zero point per token.

    So a token's result does not depend on the batch. Activations are asymmetric (nearly all
    positive after a GELU); frequent zeros stay exact. Twice as fast as int8 weights with bf16
    activations (`aten._weight_int8pack_mm`), and fast for many tokens, too.
    """

    weight: Tensor
    scales: Tensor
    sums: Tensor

    def __init__(self, matrix: nn.Linear) -> None:
        super().__init__()
        scales_o = (matrix.weight.abs().amax(dim=1) / _LARGEST).clamp(min=_SMALLEST)
        weight_oi = (matrix.weight / scales_o[:, None]).round().to(torch.int8)
        self.register_buffer("weight", weight_oi)
        self.register_buffer("scales", scales_o)
        self.register_buffer("sums", weight_oi.sum(dim=1, dtype=torch.float32))
        self.bias = matrix.bias

    def forward(self, hidden: Tensor) -> Tensor:
        tokens_ni = kept(hidden.flatten(0, -2))
        low_n = tokens_ni.amin(dim=1, keepdim=True).clamp(max=0)
        high_n = tokens_ni.amax(dim=1, keepdim=True).clamp(min=0)
        # Also `kept`: otherwise loops recompute a token's scale for each of its values.
        scales_n = kept(((high_n - low_n) / _STEPS).clamp(min=_SMALLEST))
        # Minus the zero point.
        middle_n = kept((low_n / scales_n).round() + _STEPS // 2)
        rounded_ni = ((tokens_ni / scales_n).round() - middle_n).to(torch.int8)
        product = torch._int_mm(rounded_ni, self.weight.t()).float() + middle_n * self.sums
        scaled = product * scales_n * self.scales
        result = scaled if self.bias is None else scaled + self.bias
        return result.view(*hidden.shape[:-1], -1)


class _Int8Table(_Int8Linear):
    """As `_Int8Linear`, for tables that also serve lookups, with outlier columns scaled down.

    Nearly every row of Whisper's table has its largest value in one column, 30 times the usual
    magnitude, which would leave the others 3 bits. Columns above twice the median magnitude are
    divided down to that, and their inputs multiplied. Evening out further makes results worse: the
    inputs of those columns become too large.
    """

    columns: Tensor

    def __init__(self, matrix: nn.Linear) -> None:
        largest_i = matrix.weight.abs().amax(dim=0)
        columns_i = (largest_i / (2 * largest_i.median()).clamp(min=_SMALLEST)).clamp(min=1)
        inputs, outputs = matrix.in_features, matrix.out_features
        evened = nn.Linear(inputs, outputs, bias=False, device="meta")
        evened.weight = nn.Parameter(matrix.weight / columns_i, requires_grad=False)
        evened.bias = matrix.bias
        super().__init__(evened)
        self.register_buffer("columns", columns_i)

    @override
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden * self.columns)


class _CastConvolution(nn.Module):
    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", weight.to(dtype))
        self.register_buffer("bias", bias)

    def forward(self, hidden: Tensor, *settings: Any) -> Tensor:
        given = hidden.to(self.weight.dtype)
        return conv1d(given, self.weight, None, *settings).float() + self.bias[:, None]


def _look_up(tokens: Tensor, weight: Tensor) -> Tensor:
    return embedding(tokens, weight).float()


def _look_up_int8(tokens: Tensor, weight: Tensor, scales: Tensor, columns: Tensor) -> Tensor:
    return weight[tokens].float() * scales[tokens][..., None] * columns


@dataclass(frozen=True, kw_only=True)
class Precision:
    dtype: str = "fp32"  # of caches, attention and other matrices: "fp32", "bf16" or "fp16"
    quantize: str = "none"  # "none", "int8" or "int4"

    @property
    def torch_dtype(self) -> torch.dtype:
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.dtype]

    @property
    def cache_dtype(self) -> str:
        return str(self.torch_dtype).removeprefix("torch.")

    @property
    def has_prefill(self) -> bool:
        """Whether many tokens have a separate program over the same weights."""
        return self.dtype != "fp32"

    def forms(self, program: str) -> tuple[Form, Form] | None:
        """Return the forms of a program's matrices and of its tables; None: unchanged."""
        if program == "pool" or (self.quantize == "none" and self.dtype == "fp32"):
            return None
        if self.quantize == "int8":
            return _Int8Linear, _Int8Table
        return self._cast, self._cast

    def _cast(self, matrix: nn.Linear) -> nn.Module:
        return _CastLinear(matrix, self.torch_dtype)


def reduce_matrices(module: GraphModule, precision: Precision, program: str) -> None:
    forms = precision.forms(program)
    if forms is None:
        return
    for owner, products, lookups in list(_matrices(module)):
        matrix = _linear(module, owner, products)
        if not products and len(matrix.weight) < LARGE_TABLE:
            continue
        form = forms[bool(lookups)](matrix)
        # A separate name: another program may read the same matrix in another dtype.
        reduced = f"{owner}_{str(form.weight.dtype).removeprefix('torch.')}"
        module.set_submodule(reduced, form)
        for node in products:
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.call_module(reduced, (node.args[0],)))
        for node in lookups:
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(_look_up_in(module, reduced, node.args[1]))
    cast_convolutions(module, precision.torch_dtype)


def cast_convolutions(module: GraphModule, dtype: torch.dtype) -> None:
    for node in module.graph.find_nodes(op="call_function", target=_CONVOLUTION):
        _reduce_convolution(module, node, dtype)
    module.graph.eliminate_dead_code()
    module.recompile()


def _reduce_convolution(module: GraphModule, node: Node, dtype: torch.dtype) -> None:
    hidden, weight, _, *settings = node.args
    owner = str(weight.target).removesuffix(".weight")  # type: ignore[union-attr]
    held = module.get_submodule(owner)
    reduced = f"{owner}_{str(dtype).removeprefix('torch.')}"
    parts = held.get_parameter("weight").detach(), held.get_parameter("bias").detach()
    module.set_submodule(reduced, _CastConvolution(*parts, dtype))
    with module.graph.inserting_before(node):
        node.replace_all_uses_with(module.graph.call_module(reduced, (hidden, *settings)))


def _matrices(module: GraphModule) -> Iterator[tuple[str, list[Node], list[Node]]]:
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
    held = module.get_submodule(owner)
    weight = held.get_parameter("weight")
    outputs, inputs = weight.shape
    matrix = nn.Linear(inputs, outputs, bias=False, device="meta")
    matrix.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if any(len(product.args) > 2 for product in products):
        matrix.bias = held.get_parameter("bias")
    return matrix


def _look_up_in(module: GraphModule, owner: str, tokens: Any) -> Node:
    is_int8 = isinstance(module.get_submodule(owner), _Int8Table)
    names = ("weight", "scales", "columns") if is_int8 else ("weight",)
    parts = [module.graph.get_attr(f"{owner}.{name}") for name in names]
    function = _look_up_int8 if is_int8 else _look_up
    return module.graph.call_function(function, (tokens, *parts))


_MIXTURE = torch.ops.kvcast.mixture_of_experts.default
_MIXED = [argument.name for argument in _MIXTURE._schema.arguments]
_USUAL = {part.name: part.default_value for part in _MIXTURE._schema.arguments[5:]}
_ROUTING = {"normalised", "score", "choice_bias", "groups", "epsilon", "scale"}
_MATRIX_OF = {_LINEAR: 1, _CONVOLUTION: 1, _EMBEDDING: 0}  # which argument it is
_ROUTED, _EXPERTS = 1, slice(2, 4)  # likewise of a mixture's
_LOGITS = "logits"


class PackedMatrices:
    def __init__(self, programs: Mapping[str, Roles], quantize: str, blocks_of: BlocksOf) -> None:
        self._kinds = kinds(programs, quantize)
        self._blocks_of = blocks_of
        self.stored: dict[str, Tensor] = {}
        self._packed: set[str] = set()

    def pack(self, module: GraphModule) -> None:
        """Replace a program's products and lookups by operators over packed matrices, in place."""
        for node in list(module.graph.nodes):
            if node.target in _FORMS:
                with module.graph.inserting_before(node):
                    replacement = _FORMS[node.target](self, module, node)
                if replacement is not None:
                    node.replace_all_uses_with(replacement)
        module.graph.eliminate_dead_code()
        module.recompile()

    def product(self, module: GraphModule, node: Node) -> Node | None:
        hidden, weight, bias = (*node.args, None)[:3]
        words = self._words(module, weight, MATRIX)
        if words is None:
            return None
        outputs, _ = self._tensor(module, weight).shape
        if bias is not None:
            self.stored[_owner(weight) + BIAS] = self._tensor(module, bias)
        return module.graph.call_function(packed.multiply, (hidden, words, outputs))

    def lookup(self, module: GraphModule, node: Node) -> Node | None:
        weight, ids, *_ = node.args
        rows, width = self._tensor(module, weight).shape
        if rows >= LARGE_TABLE:
            self._kinds.setdefault(_name(weight), Kind.INT8_BLOCK)
        words = self._words(module, weight, MATRIX)
        if words is None:
            return None
        return module.graph.call_function(packed.look_up, (ids, words, width))

    def mixture(self, module: GraphModule, node: Node) -> Node:
        hidden, logits, gate_up, down, each = node.args[:5]
        words = [self._words(module, weight, EXPERTS) for weight in (gate_up, down)]
        named = {**dict(zip(_MIXED, node.args, strict=False)), **node.kwargs}
        given = {name: named.get(name, usual) for name, usual in _USUAL.items()}
        options = {name: value for name, value in given.items() if value != _USUAL[name]}
        routing = {name: options.pop(name) for name in _ROUTING & options.keys()}
        if options:
            raise KvcastError("AOTInductor has no quantised experts with biases: use native")
        form = mix_routed if routing else packed.mix
        return module.graph.call_function(form, (hidden, logits, *words, each), routing)

    def _words(self, module: GraphModule, weight: Any, label: str) -> Node | None:
        name, owner = _name(weight), _owner(weight)
        kind = self._kinds.get(name, Kind.EXACT)
        if kind is Kind.EXACT:
            return None
        if owner not in self._packed:
            self._packed.add(owner)
            matrix = self._tensor(module, weight).numpy()
            parts = store_matrix(name, matrix, kind, self._blocks_of)
            self.stored |= {
                owner + part.removeprefix(name): torch.from_numpy(array)
                for part, array in parts.items()
            }
        module.set_submodule(owner, MatrixWords(label.removeprefix(".")))
        return module.graph.get_attr(owner + label)

    @staticmethod
    def _tensor(module: GraphModule, node: Any) -> Tensor:
        return module.get_parameter(_name(node)).detach()


_FORMS: Mapping[Any, Callable[[PackedMatrices, GraphModule, Node], Node | None]] = {
    _LINEAR: PackedMatrices.product,
    _EMBEDDING: PackedMatrices.lookup,
    _MIXTURE: PackedMatrices.mixture,
}


def graph_roles(exported: torch.export.ExportedProgram, outputs: Sequence[str]) -> Roles:
    module = exported.module(check_guards=False)
    if not isinstance(module, GraphModule):
        raise TypeError("torch.export gave no graph module")
    readers: dict[Any, set[str]] = {target: set() for target in (*_MATRIX_OF, _MIXTURE)}
    routers: set[str] = set()
    for node in module.graph.nodes:
        if node.target in _MATRIX_OF:
            readers[node.target].add(_name(node.args[_MATRIX_OF[node.target]]))
        elif node.target is _MIXTURE:
            readers[_MIXTURE].update(map(_name, node.args[_EXPERTS]))
            routers.update(_multiplied(node.args[_ROUTED]))
    (output,) = module.graph.find_nodes(op="output")
    results = dict(zip(outputs, torch.utils._pytree.tree_leaves(output.args[0]), strict=True))
    return Roles(
        products=readers[_LINEAR] | readers[_MIXTURE],
        convolutions=readers[_CONVOLUTION],
        tables=readers[_EMBEDDING],
        heads=set(_multiplied(results[_LOGITS])) if _LOGITS in results else set(),
        routers=routers,
    )


def _multiplied(node: Node) -> Iterator[str]:
    """Yield the matrices whose products become a result with only scalar operations in between."""
    if node.target is _LINEAR:
        yield _name(node.args[1])
        return
    for given in node.all_input_nodes:
        yield from _multiplied(given)


def _name(node: Any) -> str:
    return str(node.target)


def _owner(weight: Any) -> str:
    return _name(weight).removesuffix(".weight") + "_packed"
