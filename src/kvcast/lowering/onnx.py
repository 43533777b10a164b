"""A program to an ONNX graph, and a graph to a file in a bundle's folder.

Every size that callers vary is left open, and kvcast's operators are replaced by ONNX Runtime's.
Knows no model.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass

from kvcast.bundle.manifest import Graph
from kvcast.lowering.onnx_operators import OPSET, TABLE
from kvcast.lowering.replace import replace_operators

FOLDER = "onnx"


def cache_names(prefix: str, layers: int) -> list[str]:
    """Name every layer's key and value."""
    return [f"{prefix}_{part}_{i}" for i in range(layers) for part in ("key", "value")]


def export_graph(
    program: torch.nn.Module,
    arguments: tuple[Any, ...],
    sizes: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> ir.Model:
    """Export a program.

    Args:
        program: whose operators are to be replaced.
        arguments: examples, of which no two open sizes are equal.
        sizes: for each argument its open sizes, as torch.export has them.
        inputs: names for the flattened arguments.
        outputs: names for the flattened results.

    """
    with _quiet(), torch.no_grad():
        exported = torch.export.export(program, arguments, dynamic_shapes=sizes, strict=False)
        lowered = replace_operators(exported, TABLE)
        result = torch.onnx.export(
            lowered,
            arguments,
            dynamo=True,
            dynamic_shapes=sizes,
            opset_version=OPSET,
            input_names=inputs,
            output_names=outputs,
            verbose=False,
        )
    if result is None:
        raise RuntimeError("torch.onnx.export gave no program")
    model: ir.Model = result.model
    model.opset_imports["com.microsoft"] = 1
    return model


def save_graph(model: ir.Model, folder: Path, file: str, aliases: dict[str, str]) -> Graph:
    """Write `file` with its data beside it; return what the manifest says of it."""
    RemoveUnusedNodesPass()(model)
    for node in model.graph:
        # The exporter notes each node's Python stack, which would put paths into the bundle.
        node.metadata_props.clear()
    ir.save(model, folder / file, external_data=f"{Path(file).name}.data")
    return Graph(
        file=file,
        inputs=tuple(value.name or "" for value in model.graph.inputs),
        outputs=tuple(value.name or "" for value in model.graph.outputs),
        aliases=aliases,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's notes for its own developers from a user's terminal."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
