"""Quantized matrices of AOTInductor packages, for kvcast's own kernels.

A package's file holds the codes and scales that kvcast's own bundles hold, the same for every
processor (`runtimes/native/matrices.py`); programs multiply with the matrices by operators
(`runtimes/aoti/packed.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kvcast.errors import KvcastError
from kvcast.runtimes.aoti import packed
from kvcast.runtimes.aoti.packed import MatrixWords
from kvcast.runtimes.aoti.precision import LARGE_TABLE
from kvcast.runtimes.native.matrices import BIAS, EXPERTS, MATRIX, Kind, Roles, kinds, store_matrix
from kvcast.spec.stored_matrices import BlocksOf

_LINEAR = torch.ops.aten.linear.default
_CONVOLUTION = torch.ops.aten.conv1d.default
_EMBEDDING = torch.ops.aten.embedding.default
_MIXTURE = torch.ops.kvcast.mixture_of_experts.default
_WEIGHT_OF = {_LINEAR: 1, _CONVOLUTION: 1, _EMBEDDING: 0}  # which argument it is
_ROUTED, _EXPERTS = 1, slice(2, 4)  # likewise of a mixture's
_LOGITS = "logits"


class PackedMatrices:
    """The quantized matrices of a package's programs."""

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
        hidden, logits, gate_up, down, each, *rest = node.args
        words = [self._words(module, weight, EXPERTS) for weight in (gate_up, down)]
        normalised = node.kwargs.get("normalised", rest[0] if rest else True)
        if rest[1:] or node.kwargs.keys() - {"normalised"}:
            raise KvcastError("AOTInductor has no quantised experts with biases: use native")
        form = packed.mix if normalised else packed.mix_shares_of_all
        return module.graph.call_function(form, (hidden, logits, *words, each))

    def _words(self, module: GraphModule, weight: Any, label: str) -> Node | None:
        """Return the node with a matrix's words; None if it is not packed."""
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
    readers: dict[Any, set[str]] = {target: set() for target in (*_WEIGHT_OF, _MIXTURE)}
    routers: set[str] = set()
    for node in module.graph.nodes:
        if node.target in _WEIGHT_OF:
            readers[node.target].add(_name(node.args[_WEIGHT_OF[node.target]]))
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
