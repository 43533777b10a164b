"""Saves graphs in a bundle's folder."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.external_data import convert_tensors_to_external
from onnx_ir.passes.common import RemoveUnusedNodesPass

from kvcast.bundle.manifest import Graph

_SMALL = 256  # tensors of up to this many bytes stay in the graph's own file


def save_graph(
    model: ir.Model, folder: Path, file: str, aliases: dict[str, str], beside: str | None = None
) -> Graph:
    """Write `file` with its data beside it; return the manifest's entry for it.

    `beside` names a graph saved earlier in the same folder. Tensors that both have under one name
    are not written again: both graphs read the same bytes, on disk and, being mapped, in memory.
    """
    RemoveUnusedNodesPass()(model)
    path = folder / file
    held = {} if beside is None else _external_tensors(ir.load(folder / beside))
    own: list[tuple[ir.Value, ir.TensorProtocol]] = []
    for name, value in model.graph.initializers.items():
        tensor, there = value.const_value, held.get(name)
        if tensor is None:
            continue
        if there is not None and np.array_equal(there.numpy(), tensor.numpy()):
            value.const_value = there
        elif tensor.nbytes > _SMALL:
            own.append((value, tensor))
    data = f"{path.name}.data"
    written = convert_tensors_to_external([tensor for _, tensor in own], path.parent, data)
    for (value, _), external in zip(own, written, strict=True):
        value.const_value = external
    ir.save(model, path)
    return Graph(
        file=file,
        inputs=tuple(value.name or "" for value in model.graph.inputs),
        outputs=tuple(value.name or "" for value in model.graph.outputs),
        aliases=aliases,
    )


def _external_tensors(model: ir.Model) -> dict[str, ir.ExternalTensor]:
    return {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if isinstance(value.const_value, ir.ExternalTensor)
    }
