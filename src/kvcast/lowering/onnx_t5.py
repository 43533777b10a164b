"""T5's programs to ONNX graphs in a bundle's folder.

Each program is exported once with every size that callers vary left open, its operators are
replaced by ONNX Runtime's, and its matrices are quantised. Knows the programs' signatures;
nothing of checkpoints, and of bundles only the manifest's vocabulary.
"""

from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor
from torch.export import Dim

from kvcast.bundle.manifest import CacheLayers, Graph
from kvcast.lowering.onnx import FOLDER, cache_names, export_graph, save_graph
from kvcast.lowering.onnx_fusion import fuse
from kvcast.lowering.onnx_quantize import quantize_matrices, quantize_table
from kvcast.programs.t5 import T5Programs
from kvcast.spec.t5 import T5Dimensions

_TABLE_BITS = 8
_TABLES = ("model.embedding.weight", "model.head.weight")


def lower(programs: T5Programs, quantize: str, folder: Path) -> dict[str, Graph]:
    """Write `onnx/encode.onnx` and `onnx/decode.onnx` with their data files under `folder`.

    Args:
        programs: fp32 programs.
        quantize: "none", "int8" or "int4"; int4 leaves the encoder and the cross projections in
            int8, because they multiply many tokens, where int8 is several times faster.
        folder: an existing folder.

    Returns:
        What the manifest says of the graphs.

    """
    (folder / FOLDER).mkdir()
    encode, decode = _encode_graph(programs), _decode_graph(programs)
    for graph in (encode, decode):
        fuse(graph)
    if quantize != "none":
        quantize_matrices(encode, bits=8, in_blocks=_is_activated)
        quantize_matrices(decode, {"int8": 8, "int4": 4}[quantize], in_blocks=_is_activated)
        for graph in (encode, decode):
            for table in _TABLES:
                if table in graph.graph.initializers:
                    quantize_table(graph, table, bits=_TABLE_BITS)
    layers = programs.dimensions.decoder_layers
    aliases = dict(zip(cache_names("present", layers), cache_names("past", layers), strict=True))
    files = {name: f"{FOLDER}/{name}.onnx" for name in ("decode", "encode")}
    return {
        "decode": save_graph(decode, folder, files["decode"], aliases),
        # The embedding is both stacks'.
        "encode": save_graph(encode, folder, files["encode"], {}, beside=files["decode"]),
    }


def cache_layers(dimensions: T5Dimensions) -> tuple[CacheLayers, ...]:
    """Describe the decoder's caches for the manifest."""
    capacities = {"linear": dimensions.target_positions, "cross": dimensions.source_positions}
    return tuple(
        CacheLayers(
            kind=kind,
            layers=dimensions.decoder_layers,
            heads=dimensions.heads,
            head_dim=dimensions.head_dim,
            capacity=capacity,
        )
        for kind, capacity in capacities.items()
    )


def _is_activated(product: ir.Node) -> bool:
    """Tell whether a product's input is no norm's and no attention's: some of those are huge."""
    source = product.inputs[0].producer() if product.inputs[0] is not None else None
    return source is not None and source.op_type in ("Relu", "Mul", "Gelu")


def _encode_graph(programs: T5Programs) -> ir.Model:
    layers = programs.dimensions.decoder_layers
    batch, size = Dim("batch"), Dim("source")
    arguments = (
        torch.zeros(2, 5, dtype=torch.int64),
        torch.tensor([5, 3], dtype=torch.int32),
    )
    return export_graph(
        programs.encode,
        arguments,
        ({0: batch, 1: size}, {0: batch}),
        ["source", "source_lengths"],
        cache_names("cross", layers),
    )


def _decode_graph(programs: T5Programs) -> ir.Model:
    dimensions = programs.dimensions
    layers = dimensions.decoder_layers
    rows, batch = Dim("rows"), Dim("batch")
    capacity, size = Dim("capacity"), Dim("source")

    def caches(first: int, positions: int) -> list[tuple[Tensor, Tensor]]:
        shape = (first, dimensions.heads, positions, dimensions.head_dim)
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(layers)]

    arguments = (
        torch.zeros(4, 3, dtype=torch.int64),
        torch.zeros(4, dtype=torch.int32),
        torch.tensor([0, 2]),
        caches(4, 9),
        caches(2, 5),
        torch.tensor([5, 3], dtype=torch.int32),
    )
    own, cross = {0: rows, 2: capacity}, {0: batch, 2: size}
    sizes = (
        {0: rows, 1: Dim("new")},
        {0: rows},
        {0: Dim("asked")},
        [(own, own)] * layers,
        [(cross, cross)] * layers,
        {0: batch},
    )
    past, crossed = cache_names("past", layers), cache_names("cross", layers)
    inputs = ["tokens", "lengths", "offsets", *past, *crossed, "source_lengths"]
    outputs = ["logits", *cache_names("present", layers)]
    return export_graph(programs.decode, arguments, sizes, inputs, outputs)
