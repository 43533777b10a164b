"""Exports a program to an ONNX graph, and saves a graph in a bundle's folder.

Every size that callers vary stays dynamic, and kvcast's operators are replaced by ONNX Runtime's.
Knows no model.
"""

import functools
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.external_data import convert_tensors_to_external
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch.onnx._internal.exporter._registration import ONNXRegistry

from kvcast.bundle.manifest import Graph
from kvcast.errors import KvcastError
from kvcast.runtimes.lowering.replace import replace_in_place
from kvcast.runtimes.lowering.signatures import Signature
from kvcast.runtimes.onnx.operators import OPSET, TABLE

FOLDER = "onnx"
# What GroupQueryAttention takes; as it rotates, it rounds half a head down to a multiple of 8.
_HEAD_MULTIPLE, _ROTARY_HEAD_MULTIPLE = 8, 16
_from_torchlib = ONNXRegistry.from_torchlib
_TRANSPOSED = ".transposed"  # ends the name of a weight that the exporter transposed
_SMALL = 256  # tensors of up to this many bytes stay in the graph's own file


def check_heads(head_dim: int, *, rotary: bool) -> None:
    """Raise KvcastError for heads, rotated or not, of a size that ONNX Runtime does not take."""
    multiple = _ROTARY_HEAD_MULTIPLE if rotary else _HEAD_MULTIPLE
    if head_dim % multiple:
        raise KvcastError(
            f"heads of {head_dim} numbers cannot run on ONNX Runtime, which takes multiples of "
            f"{multiple}{' where positions are rotary' if rotary else ''}: use --runtime eager"
        )


def export_graph(signature: Signature) -> ir.Model:
    """Export a program with its operators replaced; constants keep their weights' names."""
    arguments, sizes = signature.arguments, signature.sizes
    with _quiet(), _one_registry(), torch.no_grad():
        exported = signature.export()
        replace_in_place(exported, TABLE)
        result = torch.onnx.export(
            exported,
            arguments,
            dynamo=True,
            dynamic_shapes=sizes,
            opset_version=OPSET,
            input_names=signature.inputs,
            output_names=signature.outputs,
            verbose=False,
            optimize=False,
        )
        if result is None:
            raise RuntimeError("torch.onnx.export gave no program")
        transposed = _transposed(result.model.graph)
        result.optimize()
    model: ir.Model = result.model
    for value in list(model.graph.initializers.values()):
        if value.name in transposed:
            value.name = transposed[value.name] + _TRANSPOSED
    model.opset_imports["com.microsoft"] = 1
    return model


def _transposed(graph: ir.Graph) -> dict[str, str]:
    """Return the weights of whose transposes values are the names: constants once folded."""
    return {
        node.outputs[0].name or "": node.inputs[0].name or ""
        for node in graph
        if node.op_type == "Transpose"
        and node.inputs[0] is not None
        and node.inputs[0].is_initializer()
    }


def weight_of(constant: ir.Value) -> str:
    """Return the program's name of the weight that a graph's constant is, perhaps transposed."""
    return (constant.name or "").removesuffix(_TRANSPOSED)


def save_graph(
    model: ir.Model, folder: Path, file: str, aliases: dict[str, str], beside: str | None = None
) -> Graph:
    """Write `file` with its data beside it; return the manifest's entry for it.

    `beside` names a graph saved earlier in the same folder. Tensors that both have under one name
    are not written again: both graphs read the same bytes, on disk and, being mapped, in memory.
    """
    RemoveUnusedNodesPass()(model)
    for node in model.graph:
        # The exporter records each node's Python stack, which would put paths into the bundle.
        node.metadata_props.clear()
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


@contextmanager
def _one_registry() -> Iterator[None]:
    """Let all exports of a process share the exporter's table of functions, which none changes.

    torch.onnx.export makes it anew each time, which takes a quarter of a small program's export.
    """
    with patch.object(ONNXRegistry, "from_torchlib", staticmethod(_registry)):
        yield


@functools.cache
def _registry(opset_version: int) -> ONNXRegistry:
    return _from_torchlib(opset_version=opset_version)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide logs and warnings that are meant for the exporter's developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
