"""Lowers a model's programs to ONNX graphs in a bundle's folder, and reads their weights back."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.external_data import convert_tensors_to_external
from onnx_ir.passes.common import RemoveUnusedNodesPass

from kvcast.bundle.manifest import Graph, Manifest, stays_inside
from kvcast.errors import KvcastError, UsageError
from kvcast.families.base import PrecisionRoles
from kvcast.families.programs import ProgramSignature
from kvcast.families.table import family_of
from kvcast.runtimes.lowering.activations import run_random_tokens, smooth
from kvcast.runtimes.onnx.cache_quantization import (
    Described,
    aliases_of,
    quantize_inputs,
    quantize_outputs,
    quantize_self_caches,
    scales_of,
)
from kvcast.runtimes.onnx.graph_writer import Matrix, fuse
from kvcast.runtimes.onnx.matrices import CODES, REST, SCALES, dequantize, exact, quantized
from kvcast.runtimes.onnx.operations import graph_of
from kvcast.runtimes.target import LoweringJob, Stored, StoredValues

FOLDER = "onnx"
# The head sizes of GroupQueryAttention: when rotating, it rounds half a head down to a multiple of
# 8.
_HEAD_MULTIPLE, _ROTARY_HEAD_MULTIPLE = 8, 16


def check_heads(head_dim: int, *, rotary: bool) -> None:
    """Raise KvcastError for head sizes that ONNX Runtime does not support."""
    multiple = _ROTARY_HEAD_MULTIPLE if rotary else _HEAD_MULTIPLE
    if head_dim % multiple:
        raise KvcastError(
            f"heads of {head_dim} numbers cannot run on ONNX Runtime, which takes multiples of "
            f"{multiple}{' where positions are rotary' if rotary else ''}: use --runtime eager"
        )


def lower(job: LoweringJob, folder: Path) -> dict[str, Graph]:
    """Write `onnx/NAME.onnx` with its data file under `folder`; return the manifest's graphs.

    Raises UsageError if self caches cannot be int8, KvcastError for unsupported head sizes.
    """
    family, precision = job.family, job.precision
    roles, dimensions = family.precision, job.dimensions
    if precision.cache != "fp32" and not roles.int8_self_cache:
        raise UsageError(
            f"{family.title} keeps its self cache in fp32: drop --cache {precision.cache}"
        )
    check_heads(dimensions.head_dim, rotary=family.rotary(dimensions))
    job.on_phase("quantising" if precision.quantize != "none" else "exporting")
    constants, matrices = _constants(job, roles)
    described = _described(job, roles)
    job.on_phase("exporting")
    graphs = {
        name: graph_of(program, signature, constants, matrices)
        for name, (program, signature) in described.items()
    }
    for graph in graphs.values() if roles.fused else ():
        fuse(graph)
    (folder / FOLDER).mkdir()
    aliases = _self_aliases(graphs["decode"]) | aliases_of(described["decode"][1])
    return _save(graphs, aliases, folder)


def _constants(
    job: LoweringJob, roles: PrecisionRoles
) -> tuple[dict[str, NDArray[Any]], dict[str, Matrix]]:
    programs, precision = job.write_programs(), job.precision
    constants, matrices = job.constants(), exact(programs)
    smoothed = roles.smoothed and precision.quantize == "int8"
    if smoothed or precision.cache == "int8":
        reference = job.reference()
        if smoothed:
            constants.update(smooth(programs["decode"], constants, reference))
        if precision.cache == "int8":
            constants |= scales_of(run_random_tokens(programs["decode"], reference).caches)
    if precision.quantize != "none":
        matrices |= quantized(
            programs, roles.outliers, constants, precision.quantize, job.blocks_of
        )
    return constants, matrices


def _described(job: LoweringJob, roles: PrecisionRoles) -> dict[str, Described]:
    signatures = job.program_signatures()
    described = {
        name: (program, signatures[name]) for name, program in job.write_programs().items()
    }
    if (
        job.precision.quantize != "none"
        and roles.int8_cross_cache
        and _has_cross_caches(signatures)
    ):
        described["encode"] = quantize_outputs(*described["encode"])
        described["decode"] = quantize_inputs(*described["decode"])
    if job.precision.cache == "int8":
        described["decode"] = quantize_self_caches(*described["decode"])
    return described


def _has_cross_caches(signatures: Mapping[str, ProgramSignature]) -> bool:
    return any(argument.name == "cross" for argument in signatures["decode"].arguments)


def _self_aliases(decode: ir.Model) -> dict[str, str]:
    """Map results of `decode` to the arguments whose buffers they share."""
    names = [value.name or "" for value in decode.graph.inputs]
    past = [name for name in names if name.startswith("past_")]
    return {name.replace("past_", "present_", 1): name for name in past}


def _save(
    graphs: Mapping[str, ir.Model], aliases: dict[str, str], folder: Path
) -> dict[str, Graph]:
    decode = save_graph(graphs["decode"], folder, f"{FOLDER}/decode.onnx", aliases)
    others = {
        # Programs may share a table, as encoders and decoders do.
        name: save_graph(graph, folder, f"{FOLDER}/{name}.onnx", {}, beside=decode.file)
        for name, graph in graphs.items()
        if name != "decode"
    }
    return {"decode": decode, **others}


_SMALL = 256  # tensors of up to this many bytes stay in the graph's own file


def save_graph(
    model: ir.Model, folder: Path, file: str, aliases: dict[str, str], beside: str | None = None
) -> Graph:
    """Write `file` with its external data; return the manifest's entry for it.

    It shares the bytes of equally named tensors of `beside`, a graph saved earlier in the folder.
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
    external_tensors = convert_tensors_to_external([tensor for _, tensor in own], path.parent, data)
    for (value, _), external in zip(own, external_tensors, strict=True):
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


_EXPERTS = 3  # axes of a matrix for each
_TRANSPOSED = ".transposed"  # ends the name of a weight [inputs, outputs]


def read_stored(folder: Path, manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]) -> Stored:
    """Return a bundle's constants, dequantized; none if smoothing made weights others.

    `shapes` are of the checkpoint's tensors.
    """
    if manifest.quantize == "int8" and family_of(manifest.family).precision.smoothed:
        return Stored()
    constants: dict[str, Callable[[], StoredValues]] = {}
    for graph in manifest.graphs.values():
        tensors = dict(_tensors_inside(folder / graph.file))
        for name, tensor in tensors.items():
            if name.endswith(CODES):
                own = name.removesuffix(CODES)
                constants[own] = partial(_read_quantized, tensors, own, shapes.get(own))
            elif len(tensor.shape) < _EXPERTS:
                own = name.removesuffix(_TRANSPOSED)
                constants[own] = partial(_read, tensor, transposed=own != name)
    return Stored(constants=constants)


def _tensors_inside(path: Path) -> Iterator[tuple[str, ir.TensorProtocol]]:
    for name, value in ir.load(path).graph.initializers.items():
        tensor = value.const_value
        outside = isinstance(tensor, ir.ExternalTensor) and not stays_inside(str(tensor.location))
        if tensor is not None and not outside:
            yield name, tensor


def _read_quantized(
    tensors: Mapping[str, ir.TensorProtocol], name: str, shape: tuple[int, ...] | None
) -> StoredValues:
    rest = tensors.get(name + REST)
    return dequantize(
        tensors[name + CODES].numpy(),
        tensors[name + SCALES].numpy(),
        None if rest is None else rest.numpy(),
        shape,
    )


def _read(tensor: ir.TensorProtocol, *, transposed: bool) -> StoredValues:
    values = tensor.numpy()
    return StoredValues(values.T if transposed else values)
