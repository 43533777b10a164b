"""A UniLM's programs to ONNX graphs in a bundle's folder.

`decode.onnx` is that of a decoder-only model, with hidden states as a second result; `pool.onnx`
is the pooler, where there is one: apart, so that no step computes it. What a cache's layers are is
`kvcast.lowering.onnx_decoder.cache_layers`'s to say, as for a decoder-only model. Knows the
programs' signatures; nothing of checkpoints, and of bundles only the manifest's vocabulary.
"""

from pathlib import Path

from kvcast.bundle.manifest import Graph
from kvcast.lowering import signatures
from kvcast.lowering.calibration import run_random_tokens
from kvcast.lowering.onnx import FOLDER, export_graph, save_graph
from kvcast.lowering.onnx_decoder import TABLE_BITS, cache_layers, decode_graph, save_decode_graph
from kvcast.lowering.onnx_fusion import fuse
from kvcast.lowering.onnx_quantize import quantize_matrices, quantize_table
from kvcast.lowering.onnx_self_cache import quantize_self_caches
from kvcast.programs.unilm import UnilmPrograms

_TIED_TABLE = "rows.model.embedding.weight"


def lower(
    programs: UnilmPrograms, quantize: str, folder: Path, cache: str = "fp32"
) -> dict[str, Graph]:
    """Write `onnx/decode.onnx` and, of a pooled model, `onnx/pool.onnx` under `folder`.

    Args:
        programs: fp32 programs.
        quantize: "none", "int8" or "int4". The pooler stays in fp32: it is read once a source.
        folder: an existing folder.
        cache: kind of numbers of keys and values, "fp32" or "int8".

    Returns:
        What the manifest says of the graphs.

    """
    (folder / FOLDER).mkdir()
    dimensions = programs.dimensions
    program = signatures.unilm(programs, cache_layers(dimensions))
    decode = decode_graph(program["decode"], dimensions.head_dim)
    fuse(decode)
    if quantize != "none":
        quantize_matrices(decode, {"int8": 8, "int4": 4}[quantize])
        quantize_table(decode, _TIED_TABLE, bits=TABLE_BITS)
    if cache == "int8":
        quantize_self_caches(decode, run_random_tokens(programs))
    graphs = {"decode": save_decode_graph(decode, folder, dimensions.layers)}
    if dimensions.pooled:
        pool = export_graph(program["pool"])
        graphs["pool"] = save_graph(pool, folder, f"{FOLDER}/pool.onnx", {})
    return graphs
