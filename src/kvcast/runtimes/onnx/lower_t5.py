"""Lowers T5's programs to ONNX graphs in a bundle's folder.

Knows the programs' signatures and the manifest's vocabulary, but no checkpoints.
"""

from pathlib import Path

import onnx_ir as ir

from kvcast.bundle.manifest import Graph
from kvcast.models.programs.t5 import T5Programs
from kvcast.runtimes.lowering import signatures
from kvcast.runtimes.onnx.fusion import fuse
from kvcast.runtimes.onnx.lower_decoder import decode_graph, save_decode_graph
from kvcast.runtimes.onnx.lowering import FOLDER, export_graph, save_graph
from kvcast.runtimes.onnx.quantize import quantize_matrices, quantize_table
from kvcast.spec.phases import OnPhase

_TABLES = ("model.embedding.weight", "model.head.weight")


def lower(programs: T5Programs, quantize: str, folder: Path, on_phase: OnPhase) -> dict[str, Graph]:
    """Write `onnx/encode.onnx` and `onnx/decode.onnx` with their data files under `folder`.

    Args:
        programs: fp32 programs.
        quantize: "none", "int8" or "int4"; int4 leaves the encoder and the cross projections in
            int8, which is several times faster for many tokens.
        folder: an existing folder.
        on_phase: called as each phase begins.

    Returns:
        The manifest's entries for the graphs.

    Raises:
        KvcastError: ONNX Runtime does not support the head size.

    """
    on_phase("exporting")
    (folder / FOLDER).mkdir()
    program = signatures.t5(programs)
    decode = decode_graph(program["decode"], programs.dimensions.head_dim, rotary=False)
    encode = export_graph(program["encode"])
    for graph in (encode, decode):
        fuse(graph)
    if quantize != "none":
        on_phase("quantising")
        quantize_matrices(encode, bits=8, in_blocks=_is_activated)
        quantize_matrices(decode, {"int8": 8, "int4": 4}[quantize], in_blocks=_is_activated)
        for graph in (encode, decode):
            for table in _TABLES:
                if table in graph.graph.initializers:
                    quantize_table(graph, table)
    saved = save_decode_graph(decode, folder, programs.dimensions.decoder_layers)
    # Both stacks share the embedding.
    file = f"{FOLDER}/encode.onnx"
    return {"decode": saved, "encode": save_graph(encode, folder, file, {}, beside=saved.file)}


def _is_activated(product: ir.Node) -> bool:
    """Tell whether a product's input comes from an activation, which has some huge values."""
    source = product.inputs[0].producer() if product.inputs[0] is not None else None
    return source is not None and source.op_type in ("Relu", "Mul", "Gelu")
