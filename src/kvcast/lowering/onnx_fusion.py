"""Fewer operators in a decoder-only graph, where a step's time goes into starting them.

Only forms that kvcast's own programs export are looked for. Changes no number: each replacement
computes what it replaces.
"""

import numpy as np
import onnx_ir as ir

from kvcast.lowering.onnx_quantize import CONTRIB


def fuse(model: ir.Model) -> None:
    """Change the graph in place."""
    for node in list(model.graph):
        if node.op_type == "GroupQueryAttention":
            _take_packed(model.graph, node)
        elif node.op_type == "SimplifiedLayerNormalization":
            _take_residual(model.graph, node)


def interleave_experts(model: ir.Model) -> None:
    """Let gates and ups take turns in experts' weights [e, 2 * i, x], as the kernel wants them."""
    for node in model.graph:
        if node.op_type == "MoE":
            weights = node.inputs[2]
            if weights is None or weights.const_value is None:
                raise TypeError("the experts' weights are no constant")
            gate_up_eix = weights.const_value.numpy()
            gate_eix, up_eix = np.split(gate_up_eix, 2, axis=1)
            turns = np.stack([gate_eix, up_eix], axis=2).reshape(gate_up_eix.shape)
            weights.const_value = ir.tensor(turns, name=weights.name)


def _take_packed(graph: ir.Graph, node: ir.Node) -> None:
    """Give attention the product itself instead of its three parts."""
    query, key, value = node.inputs[:3]
    split = query.producer() if query is not None else None
    if split is None or split.op_type != "Split" or tuple(split.outputs) != (query, key, value):
        return
    node.replace_input_with(0, split.inputs[0])
    node.replace_input_with(1, None)
    node.replace_input_with(2, None)
    graph.remove(split, safe=True)


def _take_residual(graph: ir.Graph, norm: ir.Node) -> None:
    """Norm and the addition before it in one operator, which gives the sum too."""
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
    """Tell whether a value is computed, and not a constant."""
    return value is not None and value.const_value is None
