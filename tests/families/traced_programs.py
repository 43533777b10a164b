"""Programs as torch.export traces them from PyTorch's modules, with epilogues joined to products.

The reference for the programs that families write: nodes that depend on constants alone are folded,
and a table names the operation of each operator.
"""

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch.fx import GraphModule
from torch.fx import Node as FxNode

import kvcast.models.ops.attention
import kvcast.models.ops.experts  # noqa: F401 - registers the operators
from kvcast.runtimes.lowering.signatures import Signature
from kvcast.spec.program import Constant, Node, Program, Step, leaves

_DTYPES = {torch.float32: "float32", torch.int32: "int32", torch.int64: "int64"}

aten, kvcast_ops = torch.ops.aten, torch.ops.kvcast

Call = tuple[str, Sequence[Any], Mapping[str, Any]]
"""An operation's name, arguments and keywords; arguments are still the exported graph's."""


def _same(name: str) -> Callable[..., Call]:
    return lambda *arguments, **keywords: (name, arguments, keywords)


def _gelu(x: Any, *, approximate: str = "none") -> Call:
    return "gelu" if approximate == "none" else "gelu_tanh", (x,), {}


def _arange(count: Any, *, dtype: Any = torch.int64, **_: Any) -> Call:
    return "arange", (count,), {"dtype": _DTYPES[dtype]}


# Every operator that programs have. Those of nn have sizes among their arguments that are known.
_TABLE: Mapping[Any, Callable[..., Call]] = {
    aten.linear.default: lambda x, weight, bias=None: ("linear", (x, (weight, bias)), {}),
    aten.conv1d.default: lambda x, weight, bias, stride, padding: (
        "conv1d",
        (x, (weight, bias), stride[0], padding[0]),
        {},
    ),
    aten.layer_norm.default: lambda x, _, gain, bias, epsilon, *__: (
        "layer_norm",
        (x, gain, bias, epsilon),
        {},
    ),
    aten.rms_norm.default: lambda x, _, gain, epsilon: ("rms_norm", (x, gain, epsilon), {}),
    aten.embedding.default: _same("embedding"),
    aten.index_select.default: _same("index_select"),
    aten.gelu.default: _gelu,
    aten.silu.default: _same("silu"),
    aten.relu.default: _same("relu"),
    aten.tanh.default: _same("tanh"),
    aten.add.Tensor: _same("add"),
    aten.sub.Tensor: _same("sub"),
    aten.mul.Tensor: _same("mul"),
    aten.div.Tensor: _same("div"),
    aten.maximum.default: _same("maximum"),
    aten.clamp.default: _same("clamp"),
    aten.lt.Tensor: _same("lt"),
    aten.ge.Tensor: _same("ge"),
    aten.eq.Scalar: _same("eq"),
    aten.where.ScalarSelf: _same("where"),
    aten.where.Scalar: _same("where"),
    aten.arange.default: _arange,
    aten.cat.default: _same("cat"),
    aten.to.dtype: lambda x, dtype: ("to", (x, _DTYPES[dtype]), {}),
    aten.contiguous.default: _same("contiguous"),
    aten.transpose.int: _same("transpose"),
    aten.unsqueeze.default: _same("unsqueeze"),
    aten.unflatten.int: _same("unflatten"),
    aten.flatten.using_ints: _same("flatten"),
    aten.view.default: _same("view"),
    aten.slice.Tensor: _same("slice"),
    aten.split_with_sizes.default: _same("split"),
    aten.chunk.default: _same("chunk"),
    aten.sym_size.int: _same("size"),
    operator.getitem: _same("getitem"),
    kvcast_ops.self_attention.default: _same("self_attention"),
    kvcast_ops.cross_attention.default: _same("cross_attention"),
    kvcast_ops.encoder_attention.default: _same("encoder_attention"),
    kvcast_ops.mixture_of_experts.default: _same("mixture_of_experts"),
}
_DROPPED = {aten._assert_tensor_metadata.default}


def traced(name: str, signature: Signature) -> tuple[Program, dict[str, NDArray[Any]]]:
    """Return a program, without caches among its outputs, and its constants as they are."""
    with torch.no_grad():
        exported = torch.export.export(
            signature.program, signature.arguments, dynamic_shapes=signature.sizes, strict=False
        )
    module = exported.module(check_guards=False)
    if not isinstance(module, GraphModule):
        raise TypeError("torch.export gave no graph module")
    translation = _Translation(name, module, signature)
    return translation.program(), translation.constants


class _Translation:
    """An exported graph, operator by operator."""

    def __init__(self, name: str, module: GraphModule, signature: Signature) -> None:
        self._name = name
        self._module = module
        self._signature = signature
        self._shared = signature.program.state_dict().keys()
        self.constants: dict[str, NDArray[Any]] = {}
        self._folded: dict[FxNode, torch.Tensor] = {}
        self._names: dict[FxNode, str] = {}
        self._steps: list[Step] = []

    def program(self) -> Program:
        inputs = iter(self._signature.inputs)
        outputs: dict[str, str] = {}
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._names[node] = next(inputs)
            elif node.op == "get_attr":
                self._folded[node] = _attribute(self._module, node.target)
            elif node.op == "call_function":
                self._add(node)
            elif node.op == "output":
                results, _ = torch.utils._pytree.tree_flatten(node.args[0])
                outputs = {
                    name: self._names[result]
                    for name, result in zip(self._signature.outputs, results, strict=True)
                    if not name.startswith("present_")
                }
        steps = fused(self._steps, self._sizes(), outputs.values())
        return Program(inputs=list(self._signature.inputs), outputs=outputs, steps=steps)

    def _add(self, node: FxNode) -> None:
        if node.target in _DROPPED:
            return
        arguments = [*node.args, *node.kwargs.values()]
        given = list(torch.utils._pytree.tree_leaves(arguments))
        read = [leaf for leaf in given if isinstance(leaf, FxNode)]
        if read and all(leaf in self._folded for leaf in read):
            self._fold(node)
            return
        name, call, keywords = _TABLE[node.target](*node.args, **node.kwargs)
        self._names[node] = node.name
        step = Step(
            node.name,
            name,
            [self._argument(item) for item in call],
            {key: self._argument(item) for key, item in keywords.items()},
        )
        self._steps.append(step)

    def _fold(self, node: FxNode) -> None:
        arguments, keywords = torch.fx.node.map_arg(
            (node.args, node.kwargs), self._folded.__getitem__
        )
        with torch.no_grad():
            self._folded[node] = node.target(*arguments, **keywords)  # type: ignore[operator]

    def _argument(self, given: Any) -> Any:
        if isinstance(given, FxNode):
            if given in self._folded:
                return Constant(self._constant(given))
            return Node(self._names[given])
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], FxNode):
            weight, bias = given  # a matrix and its bias
            return Constant(self._constant(weight), None if bias is None else self._constant(bias))
        if isinstance(given, list | tuple):
            return [self._argument(item) for item in given]
        return given

    def _constant(self, node: FxNode) -> str:
        name = str(node.target) if node.op == "get_attr" else node.name
        if name not in self._shared:  # export names each program's own constants alike: numpy_t
            name = f"{self._name}.{name}"
        self.constants[name] = self._folded[node].detach().contiguous().numpy()
        return name

    def _sizes(self) -> dict[str, tuple[Any, ...]]:
        sizes = {}
        for node, name in self._names.items():
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                sizes[name] = tuple(value.shape)
        return sizes


def _attribute(module: torch.nn.Module, path: str) -> torch.Tensor:
    owner: Any = module
    for part in path.split("."):
        owner = getattr(owner, part)
    return owner  # type: ignore[no-any-return]


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
