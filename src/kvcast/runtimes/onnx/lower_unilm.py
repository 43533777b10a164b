"""Lowers a UniLM's programs to ONNX graphs in a bundle's folder.

`decode.onnx` is that of a decoder-only model, with hidden states as a second result. The pooler,
if there is one, is a graph of its own, `pool.onnx`, so that no step computes it. Knows the
programs' signatures and the manifest's vocabulary, but no checkpoints.
"""

from pathlib import Path

from kvcast.bundle.manifest import Graph
from kvcast.models.programs.unilm import UnilmPrograms
from kvcast.runtimes.lowering import signatures
from kvcast.runtimes.lowering.calibration import run_random_tokens
from kvcast.runtimes.onnx.fusion import fuse
from kvcast.runtimes.onnx.lower_decoder import decode_graph, save_decode_graph
from kvcast.runtimes.onnx.lowering import FOLDER, export_graph, save_graph
from kvcast.runtimes.onnx.quantize import quantize_matrices, quantize_table
from kvcast.runtimes.onnx.self_cache import quantize_self_caches
from kvcast.spec.phases import OnPhase

_TIED_TABLE = "rows.model.embedding.weight"


def lower(
    programs: UnilmPrograms, quantize: str, cache: str, folder: Path, on_phase: OnPhase
) -> dict[str, Graph]:
    """Write `onnx/decode.onnx` and, if the model has a pooler, `onnx/pool.onnx` under `folder`.

    Args:
        programs: fp32 programs.
        quantize: "none", "int8" or "int4". The pooler stays in fp32, as it runs once per source.
        cache: dtype of keys and values, "fp32" or "int8".
        folder: an existing folder.
        on_phase: called as each phase begins.

    Returns:
        The manifest's entries for the graphs.

    """
    on_phase("exporting")
    (folder / FOLDER).mkdir()
    dimensions = programs.dimensions
    program = signatures.unilm(programs)
    rotary = dimensions.rotary is not None
    decode = decode_graph(program["decode"], dimensions.head_dim, rotary=rotary)
    fuse(decode)
    if quantize != "none":
        on_phase("quantising")
        quantize_matrices(decode, {"int8": 8, "int4": 4}[quantize])
        quantize_table(decode, _TIED_TABLE)
    if cache == "int8":
        quantize_self_caches(decode, run_random_tokens(programs))
    graphs = {"decode": save_decode_graph(decode, folder, dimensions.layers)}
    if dimensions.pooled:
        pool = export_graph(program["pool"])
        graphs["pool"] = save_graph(pool, folder, f"{FOLDER}/pool.onnx", {})
    return graphs
