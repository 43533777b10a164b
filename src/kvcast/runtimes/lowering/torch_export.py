"""torch.export: each program's example arguments, and a runtime's operators in the exported graph.

Every size that callers vary is dynamic: rows, new positions, capacities. A family's record lists
the arguments (`kvcast.families.programs`).
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

from kvcast.families.programs import Argument, CacheArgument, ProgramSignature, Shape
from kvcast.families.table import family_with

# Sizes of the examples. Dynamic sizes all differ, so that torch.export does not unify any two.
_SIZES = {
    "rows": 4,
    "batch": 2,
    "new": 3,
    "asked": 2,
    "source": 5,
    "capacity": 9,
    "ring": 11,
    "inputs": 13,
    "n": 3,
}
# Smaller caches work as well, but torch.export treats sizes 0 and 1 as special cases.
_LEAST = {"capacity": 3, "ring": 3, "inputs": 3}
_DTYPES = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Signature:
    program: nn.Module
    arguments: tuple[Tensor, ...]
    sizes: tuple[Any, ...]  # dynamic shapes of each argument, as torch.export takes them
    inputs: Sequence[str]
    outputs: Sequence[str]  # names of the results; `present_...` are the caches after the call
    kinds: Sequence[str] = ()  # of self caches, each once: "linear", "ring"

    @property
    def open_sizes(self) -> list[dict[int, Any]]:
        return tree_leaves(self.sizes, is_leaf=lambda part: isinstance(part, dict))

    def export(self) -> ExportedProgram:
        with torch.no_grad():
            return torch.export.export(
                self.program, self.arguments, dynamic_shapes=self.sizes, strict=False
            )


def signatures_of(programs: Any) -> Mapping[str, Signature]:
    described = family_with(programs.dimensions).programs(programs.dimensions)
    return {name: signature_of(programs[name], program) for name, program in described.items()}


def signature_of(module: nn.Module, program: ProgramSignature) -> Signature:
    return Signature(
        program=module,
        arguments=tuple(part for argument in program.arguments for part in _examples(argument)),
        # One tuple, as the module's `forward` has one parameter.
        sizes=(tuple(part for argument in program.arguments for part in _dynamic(argument)),),
        inputs=program.inputs,
        outputs=list(program.outputs),
        kinds=program.kinds,
    )


def _examples(argument: Argument | CacheArgument) -> list[Tensor]:
    if isinstance(argument, CacheArgument):
        return [_zeros(shape) for shape in argument.shapes]
    dtype = _DTYPES[argument.dtype]
    if argument.example:
        return [torch.tensor(argument.example, dtype=dtype)]
    return [_zeros(argument.shape, dtype)]


def _zeros(shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
    sizes = [_SIZES[size] if isinstance(size, str) else size for size in shape]
    return torch.zeros(sizes, dtype=dtype)


def _dynamic(argument: Argument | CacheArgument) -> list[dict[int, Any]]:
    return [_named(shape) for shape in argument.shapes]


def _named(shape: Shape) -> dict[int, Any]:
    return {
        axis: Dim(size, min=_LEAST.get(size))
        for axis, size in enumerate(shape)
        if isinstance(size, str)
    }


Table = Mapping[OpOverload[..., Any], Callable[..., Any]]


def taking(record: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that passes an operator's arguments to `function` as one record."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return function(record(*arguments, **options))

    return call


def replace_operators(exported: torch.export.ExportedProgram, table: Table) -> GraphModule:
    module = exported.module(check_guards=False)
    if not isinstance(module, GraphModule):
        raise TypeError("torch.export gave no graph module")
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in table:
            _replace(module.graph, node, table[node.target])
    module.graph.lint()
    module.recompile()
    return module


def _replace(graph: Graph, node: Node, function: Callable[..., Any]) -> None:
    written = [
        value
        for value, argument in zip(node.args, node.target._schema.arguments, strict=False)  # type: ignore[union-attr]
        if isinstance(value, Node) and argument.alias_info and argument.alias_info.is_write
    ]
    with graph.inserting_before(node):
        call = graph.call_function(function, node.args, node.kwargs)
        results = [call]
        if written:
            results = [
                graph.call_function(operator.getitem, (call, i)) for i in range(1 + len(written))
            ]
    node.replace_all_uses_with(results[0])
    graph.erase_node(node)
    for buffer, result in zip(written, results[1:], strict=True):
        later = _users_after(call, buffer)
        buffer.replace_all_uses_with(result, delete_user_cb=later.__contains__)


def _users_after(call: Node, value: Node) -> set[Node]:
    """Return the users of `value` after `call`: only they read what it wrote."""
    users: set[Node] = set()
    node = call.next
    while node.op != "root":
        if node in value.users:
            users.add(node)
        node = node.next
    return users
