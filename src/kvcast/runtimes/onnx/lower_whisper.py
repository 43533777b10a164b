"""Lowers Whisper's programs to ONNX graphs in a bundle's folder.

Knows the programs' signatures and the manifest's vocabulary, but no checkpoints.
"""

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from kvcast.bundle.manifest import Graph
from kvcast.families.whisper import WhisperDimensions
from kvcast.runtimes.lowering.signatures import Signature, cache_names
from kvcast.runtimes.onnx.cross_cache import quantize_cross_caches
from kvcast.runtimes.onnx.lowering import FOLDER, check_heads, export_graph, save_graph
from kvcast.runtimes.onnx.quantize import quantize_matrices, quantize_table
from kvcast.spec.phases import OnPhase

_TIED_TABLE = "decoder.embedding.weight"


def lower(
    program: Mapping[str, Signature],
    dimensions: WhisperDimensions,
    quantize: str,
    folder: Path,
    on_phase: OnPhase,
) -> dict[str, Graph]:
    """Write `onnx/encode.onnx` and `onnx/decode.onnx` with their data files under `folder`.

    Args:
        program: `encode` and `decode`, in fp32.
        dimensions: the model's.
        quantize: "none", "int8" or "int4". The last two make the cross caches int8. int4 leaves
            the encoder and the cross projections in int8 too, which is several times faster for
            many tokens.
        folder: an existing folder.
        on_phase: called as each phase begins.

    Returns:
        The manifest's entries for the graphs.

    """
    check_heads(dimensions.head_dim, rotary=False)
    on_phase("exporting")
    (folder / FOLDER).mkdir()
    encode, decode = export_graph(program["encode"]), export_graph(program["decode"])
    layers = dimensions.decoder_layers
    aliases = dict(zip(cache_names("present", layers), cache_names("past", layers), strict=True))
    if quantize != "none":
        on_phase("quantising")
        quantize_matrices(encode, bits=8)
        quantize_matrices(decode, bits=8, only=_multiplies_source)
        quantize_matrices(decode, {"int8": 8, "int4": 4}[quantize])
        quantize_table(decode, _TIED_TABLE)
        aliases |= quantize_cross_caches(encode, decode)
    return {
        "encode": save_graph(encode, folder, f"{FOLDER}/encode.onnx", {}),
        "decode": save_graph(decode, folder, f"{FOLDER}/decode.onnx", aliases),
    }


def _multiplies_source(product: ir.Node) -> bool:
    """Tell whether a product's input is what `encode` gave, where that is no cache."""
    return product.inputs[0] is not None and (product.inputs[0].name or "").startswith("cross_")
