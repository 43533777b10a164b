"""Replaces kvcast's operators in an exported program with a runtime's own.

A lowering is a table from operators to functions of the same arguments. In the exported graph each
operator is one node. If an operator writes some of its arguments, its function returns their new
values after the result. So the new graph has no mutation: later readers of a cache, and the
program's outputs, read the new value. Knows no operator by name and no runtime.
"""

import operator
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

Table = Mapping[OpOverload[..., Any], Callable[..., Any]]


def taking(record: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of an operator's arguments, which `function` takes as one record."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return function(record(*arguments, **options))

    return call


def replace_operators(exported: torch.export.ExportedProgram, table: Table) -> GraphModule:
    """Return the program as a module in which `table`'s functions replace its operators."""
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
