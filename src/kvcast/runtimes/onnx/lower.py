"""Lowers a model's programs to ONNX graphs in a bundle's folder.

Products of many tokens are int8 where others are int4: those of `encode`, and those of `decode`
with what it gave, which is several times faster. Programs that are neither stay in fp32, since they
run once a source. Knows no family and no checkpoints.
"""

from pathlib import Path

import onnx_ir as ir

from kvcast.bundle.manifest import Graph
from kvcast.errors import UsageError
from kvcast.families.base import PrecisionRoles
from kvcast.families.programs import cache_names
from kvcast.families.table import family_of
from kvcast.runtimes.lowering.calibration import run_random_tokens
from kvcast.runtimes.lowering.smoothing import smooth
from kvcast.runtimes.onnx.cross_cache import quantize_cross_caches
from kvcast.runtimes.onnx.fusion import fuse, interleave_experts
from kvcast.runtimes.onnx.lowering import FOLDER, check_heads, export_graph, save_graph
from kvcast.runtimes.onnx.quantize import quantize_matrices, quantize_table
from kvcast.runtimes.onnx.self_cache import quantize_self_caches
from kvcast.runtimes.target import LoweringJob
from kvcast.spec.blocks import BlocksOf, of_eight_bits

_BITS = {"int8": 8, "int4": 4}
_OPERATIONS = {"gate": ("Mul",), "activation": ("Relu", "Gelu")}


def lower(job: LoweringJob, folder: Path) -> dict[str, Graph]:
    """Write `onnx/NAME.onnx` with its data file under `folder` for each program.

    Args:
        job: the programs, in fp32. For int8 the weights of a family that is smoothed are changed in
            place, without changing results. int4 keeps the checkpoint's codes; int8 keeps those of
            8 bits where it has blocks, which take more time than a scale for each output. Experts
            of a mixture stay in fp32.
        folder: an existing folder.

    Returns:
        The manifest's entries for the graphs.

    Raises:
        UsageError: the family's self caches cannot be int8.
        KvcastError: heads are of a size that ONNX Runtime does not take.

    """
    family, precision = family_of(job.family), job.precision
    roles, dimensions = family.precision, job.programs.dimensions
    if precision.cache != "fp32" and not roles.int8_self_cache:
        raise UsageError(
            f"{family.title} keeps its self cache in fp32: drop --cache {precision.cache}"
        )
    check_heads(dimensions.head_dim, rotary=family.rotary(dimensions))
    job.on_phase("exporting")
    (folder / FOLDER).mkdir()
    if roles.smoothed and precision.quantize == "int8":
        smooth(job.programs)
    graphs = {name: export_graph(signature) for name, signature in job.signatures().items()}
    for graph in graphs.values() if roles.fused else ():
        fuse(graph)
        interleave_experts(graph)
    aliases = _self_aliases(graphs["decode"])
    if precision.quantize != "none":
        job.on_phase("quantising")
        aliases |= _quantize(graphs, roles, precision.quantize, job.blocks_of)
    if precision.cache == "int8":
        quantize_self_caches(graphs["decode"], run_random_tokens(job.programs))
    return _save(graphs, aliases, folder)


def _self_aliases(decode: ir.Model) -> dict[str, str]:
    """Return which result of `decode` is written into which argument's buffer."""
    layers = sum((value.name or "").startswith("past_key_") for value in decode.graph.inputs)
    return dict(zip(cache_names("present", layers), cache_names("past", layers), strict=True))


def _quantize(
    graphs: dict[str, ir.Model], roles: PrecisionRoles, quantize: str, blocks_of: BlocksOf
) -> dict[str, str]:
    """Quantise graphs in place; return the buffers that int8 cross caches are bound to."""
    kept = blocks_of if quantize == "int4" else of_eight_bits(blocks_of)
    operations = {name for outlier in roles.outliers for name in _OPERATIONS[outlier]}

    def in_blocks(product: ir.Node) -> bool:
        source = product.inputs[0].producer() if product.inputs[0] is not None else None
        return source is not None and source.op_type in operations

    encode, decode = graphs.get("encode"), graphs["decode"]
    if encode is not None:
        quantize_matrices(encode, bits=8, in_blocks=in_blocks)
        quantize_matrices(decode, bits=8, only=_multiplies_source)
    quantize_matrices(decode, _BITS[quantize], in_blocks=in_blocks, blocks_of=kept)
    for graph in (decode, encode):
        for table in roles.tables:
            if graph is not None and table in graph.graph.initializers:
                quantize_table(graph, table, kept)
    if encode is not None and roles.int8_cross_cache:
        return quantize_cross_caches(encode, decode)
    return {}


def _multiplies_source(product: ir.Node) -> bool:
    """Return whether a product's input is a result of `encode` that is no cache."""
    return product.inputs[0] is not None and (product.inputs[0].name or "").startswith("cross_")


def _save(graphs: dict[str, ir.Model], aliases: dict[str, str], folder: Path) -> dict[str, Graph]:
    decode = save_graph(graphs["decode"], folder, f"{FOLDER}/decode.onnx", aliases)
    others = {
        # Programs may share a table, as encoders and decoders do.
        name: save_graph(graph, folder, f"{FOLDER}/{name}.onnx", {}, beside=decode.file)
        for name, graph in graphs.items()
        if name != "decode"
    }
    return {"decode": decode, **others}
