"""Edits exported ONNX graphs: adds constants and replaces nodes.

Knows no operator.
"""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

CONTRIB = "com.microsoft"


def constant(graph: ir.Graph, name: str, array: NDArray[np.generic]) -> ir.Value:
    """Add an initializer, or return the one that has this name and content.

    Raises ValueError if one has the name alone.
    """
    held = graph.initializers.get(name)
    if held is not None and held.const_value is not None:
        if not np.array_equal(held.const_value.numpy(), array):
            raise ValueError(f"the graph has another constant {name}")
        return held
    value = ir.Value(
        name=name,
        const_value=ir.tensor(array, name=name),
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
    )
    graph.register_initializer(value)
    return value


def put_in_place(graph: ir.Graph, first: ir.Node, last: ir.Node, *replacements: ir.Node) -> None:
    """Put nodes where `first` is, the result of their last for that of `last`; remove these two."""
    old, new = last.outputs[0], replacements[-1].outputs[0]
    new.name, new.shape, new.type = old.name, old.shape, old.type
    graph.insert_before(first, replacements[:-1])
    graph.insert_before(last, replacements[-1])
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = None
    doomed = [last] if first is last else [last, first]
    graph.remove(doomed, safe=True)
