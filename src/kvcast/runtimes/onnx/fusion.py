"""Fuses operators of a decoder-only graph, since a step spends its time on starting them.

A decoder-only layer becomes ten operators: one GroupQueryAttention, fed by one packed product,
rotates, writes and attends; norms take the additions before them. Results do not change: each
replacement computes the same. Knows no model, only patterns of kvcast's own programs.
"""

import onnx_ir as ir

from kvcast.runtimes.onnx.writing import CONTRIB


def fuse(model: ir.Model) -> None:
    """Change the graph in place."""
    for node in list(model.graph):
        if node.op_type == "GroupQueryAttention":
            _take_packed(model.graph, node)
        elif node.op_type == "SimplifiedLayerNormalization":
            _take_residual(model.graph, node)


def _take_packed(graph: ir.Graph, node: ir.Node) -> None:
    """Pass attention the packed product instead of query, key and value."""
    query, key, value = node.inputs[:3]
    split = query.producer() if query is not None else None
    if split is None or split.op_type != "Split" or tuple(split.outputs) != (query, key, value):
        return
    node.replace_input_with(0, split.inputs[0])
    node.replace_input_with(1, None)
    node.replace_input_with(2, None)
    graph.remove(split, safe=True)


def _take_residual(graph: ir.Graph, norm: ir.Node) -> None:
    """Fuse a norm with the addition before it; the fused operator also returns the sum."""
    total = norm.inputs[0]
    add = total.producer() if total is not None else None
    if total is None or add is None or add.op_type != "Add":
        return
    if not all(_is_hidden(value) for value in add.inputs):
        return
    fused = ir.node(
        "SkipSimplifiedLayerNormalization",
        [*add.inputs, norm.inputs[1]],
        {"epsilon": norm.attributes["epsilon"].as_float()},
        domain=CONTRIB,
        num_outputs=4,
    )
    graph.insert_before(norm, fused)
    for old, new in ((norm.outputs[0], fused.outputs[0]), (total, fused.outputs[3])):
        new.name, new.shape, new.type = old.name, old.shape, old.type
        ir.convenience.replace_all_uses_with(old, new)
        old.name = None
    for spare in fused.outputs[1:3]:
        spare.name = ""
    graph.remove([norm, add], safe=True)


def _is_hidden(value: ir.Value | None) -> bool:
    """Tell whether a value is computed rather than constant."""
    return value is not None and value.const_value is None
