"""Lowers a decoder-only program to an ONNX graph in a bundle's folder.

One graph serves prefill and step; rows, new positions and the capacities of linear caches and rings
are dynamic. Knows the program's signature and the manifest's vocabulary, but no checkpoints.
"""

from pathlib import Path

import onnx_ir as ir

from kvcast.bundle.manifest import Graph
from kvcast.models.programs.decoder import DecoderPrograms
from kvcast.runtimes.lowering import signatures
from kvcast.runtimes.lowering.calibration import run_random_tokens
from kvcast.runtimes.lowering.signatures import Signature, cache_names
from kvcast.runtimes.lowering.smoothing import smooth
from kvcast.runtimes.onnx.fusion import fuse, interleave_experts
from kvcast.runtimes.onnx.lowering import FOLDER, check_heads, export_graph, save_graph
from kvcast.runtimes.onnx.quantize import quantize_matrices, quantize_table
from kvcast.runtimes.onnx.self_cache import quantize_self_caches
from kvcast.spec.blocks import BlocksOf, no_blocks, of_eight_bits
from kvcast.spec.phases import OnPhase

_TABLES = ("decoder.embedding.weight", "decoder.head.weight")


def lower(
    programs: DecoderPrograms,
    quantize: str,
    cache: str,
    folder: Path,
    on_phase: OnPhase,
    blocks_of: BlocksOf = no_blocks,
) -> dict[str, Graph]:
    """Write `onnx/decode.onnx` with its data file under `folder`.

    Args:
        programs: fp32 programs.
        quantize: "none"; "int8", for which the programs' weights are smoothed in place without
            changing results; or "int4". Experts of a mixture stay in fp32.
        cache: dtype of keys and values, "fp32" or "int8".
        folder: an existing folder.
        on_phase: called as each phase begins.
        blocks_of: the codes that the checkpoint has for a matrix. int4 keeps them; int8 keeps those
            of 8 bits where it has blocks, which take more time than a scale for each output.

    Returns:
        The manifest's entry for the graph.

    """
    on_phase("exporting")
    (folder / FOLDER).mkdir()
    if quantize == "int8":
        smooth(programs)
    dimensions = programs.dimensions
    signature = signatures.decoder(programs)["decode"]
    decode = decode_graph(signature, dimensions.head_dim, rotary=True)
    fuse(decode)
    interleave_experts(decode)
    if quantize != "none":
        on_phase("quantising")
        kept = blocks_of if quantize == "int4" else of_eight_bits(blocks_of)
        bits = {"int8": 8, "int4": 4}[quantize]
        quantize_matrices(decode, bits, in_blocks=_is_gated, blocks_of=kept)
        for table in _TABLES:
            if table in decode.graph.initializers:
                quantize_table(decode, table, kept)
    if cache == "int8":
        quantize_self_caches(decode, run_random_tokens(programs))
    return {"decode": save_decode_graph(decode, folder, dimensions.layers)}


def _is_gated(product: ir.Node) -> bool:
    """Tell whether a product's input is a gate times its values, of which a few are huge."""
    source = product.inputs[0].producer() if product.inputs[0] is not None else None
    return source is not None and source.op_type == "Mul"


def decode_graph(signature: Signature, head_dim: int, *, rotary: bool) -> ir.Model:
    """Export a program of tokens, lengths, offsets and caches.

    Raises:
        KvcastError: heads are of a size that ONNX Runtime does not take.

    """
    check_heads(head_dim, rotary=rotary)
    return export_graph(signature)


def save_decode_graph(model: ir.Model, folder: Path, layers: int) -> Graph:
    """Write `onnx/decode.onnx` with its data; return the manifest's entry for it."""
    aliases = dict(zip(cache_names("present", layers), cache_names("past", layers), strict=True))
    return save_graph(model, folder, f"{FOLDER}/decode.onnx", aliases)
