"""Compiles programs to one ExecuTorch file (.pte) in a bundle's folder, a method for each program.

Caches are the caller's arguments, written in place, so one loaded file serves any number of rows
and sessions. `alloc_graph_input=False` keeps the runtime from allocating them, and the results that
export adds for written arguments are dropped, because the runtime would copy whole caches into
them. Each call processes one row. GEMMs run on XNNPACK.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from kvcast.bundle.manifest import Graph
from kvcast.families.base import Family
from kvcast.families.programs import KEY_VALUE, CacheLayers
from kvcast.runtimes.executorch.methods import quiet
from kvcast.runtimes.executorch.operators import TABLE
from kvcast.runtimes.executorch.quantize import cross_dtype, for_many_tokens, quantize_matrices
from kvcast.runtimes.lowering.torch_export import Signature, replace_operators
from kvcast.runtimes.memory import recurrent_layers
from kvcast.spec.runtimes import OnPhase

with quiet():
    from executorch.backends.xnnpack.partition.config import (
        ALL_PARTITIONER_CONFIGS,
        BMMConfig,
        ViewCopyConfig,
    )
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import (
        EdgeCompileConfig,
        ExecutorchBackendConfig,
        to_edge_transform_and_lower,
    )
    from executorch.exir.dialects._ops import ops as exir_ops
    from executorch.exir.passes import MemoryPlanningPass
    from torch.export._remove_auto_functionalized_pass import (
        unsafe_remove_auto_functionalized_pass,
    )

FOLDER = "executorch"
FILE = f"{FOLDER}/model.pte"
CONSTANTS = f"{FOLDER}/constants.json"
# Maximum logits of one call; memory is planned for them.
_MOST_ASKED = 8
_CROSS_KEY, _CROSS_VALUE = "cross_key_", "cross_value_"


@dataclass(frozen=True, kw_only=True)
class MethodLayout:
    chunk: int
    self_layers: Sequence[CacheLayers]  # all but rings may have less capacity
    longest_source: int = 0  # tokens; 0 if sources have one length
    facts: Mapping[str, Any] = field(default_factory=dict)


def facts_of(
    vocab: int,
    layers: Sequence[CacheLayers],
    chunk: int,
    special_tokens: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """Return the facts that any caller of `decode` needs; `layers` are the self caches."""
    each = [run for run in layers for _ in range(run.layers)]
    attended = next(run for run in each if run.parts == KEY_VALUE)
    return {
        "vocab_size": vocab,
        "dtype": "float32",
        "layers": len(each),
        "kv_heads": attended.heads,
        "head_dim": attended.head_dim,
        # One per layer; a ring has this many slots however long the text is.
        "caches": [len(run.parts) for run in each],
        "capacities": [run.capacity for run in each],
        "rings": [int(run.kind != "linear") for run in each],
        "chunk": chunk,
        "most_asked": _MOST_ASKED,
        **{name: list(tokens) for name, tokens in special_tokens.items()},
    }


def export_method(
    signature: Signature, layout: MethodLayout, quantize: str, cross_dtype: torch.dtype
) -> ExportedProgram:
    """Export a program with kvcast's operators replaced by ExecuTorch's.

    Self caches are laid out as `executorch_operators` describes, cross keys as [heads, d, t] and
    cross values as [heads, t, d], for fast GEMMs. All else is of one row. Raises KvcastError for an
    operation that ExecuTorch lacks.
    """
    with quiet(), torch.no_grad():
        replaced = replace_operators(signature.export(), TABLE)
        quantize_matrices(replaced, quantize)
        method = _ExportedMethod(replaced, signature, cross_dtype)
        examples, sizes = _arguments(signature, layout, cross_dtype)
        return torch.export.export(method, examples, dynamic_shapes=(sizes,), strict=False)


def _arguments(
    signature: Signature, layout: MethodLayout, cross_dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    most = {"new": layout.chunk, "asked": _MOST_ASKED, "source": layout.longest_source}
    own = [run for run in layout.self_layers for _ in range(run.layers)]
    examples: list[Tensor] = []
    sizes: list[dict[int, Any] | None] = []
    for name, part, open_here in zip(
        signature.inputs, signature.arguments, signature.open_sizes, strict=True
    ):
        named = {axis: size.__name__ for axis, size in open_here.items()}
        bounded = {axis: Dim(n, max=most[n]) for axis, n in named.items() if n in most}
        if name.startswith("past_"):
            run = own[int(name.rpartition("_")[2])]
            example = torch.zeros(run.heads, run.capacity, 1, run.head_dim)
            bounded = {1: Dim("capacity", max=run.capacity)} if run.kind == "linear" else {}
        elif name.startswith(_CROSS_VALUE):
            example, bounded = part, {axis - 1: size for axis, size in bounded.items()}
        else:
            # Offsets alone have neither rows nor inputs on their first axis.
            example = part if name.startswith(_CROSS_KEY) or 0 in bounded else part[:1]
        examples.append(_laid_out(name, example, cross_dtype))
        sizes.append(bounded or None)
    return tuple(examples), tuple(sizes)


def _laid_out(name: str, part: Tensor, cross_dtype: torch.dtype) -> Tensor:
    """Return an argument or result in the method's layout; cross caches are one input's."""
    if name.startswith(_CROSS_KEY):
        return part[0].transpose(1, 2).to(cross_dtype).contiguous()
    return part[0].to(cross_dtype).contiguous() if name.startswith(_CROSS_VALUE) else part


class _ExportedMethod(nn.Module):
    """A program's graph, called with arguments in the methods' layouts."""

    def __init__(self, graph: GraphModule, signature: Signature, cross_dtype: torch.dtype) -> None:
        super().__init__()
        _redirect_cache_sizes(graph, signature.inputs)
        # Rebuilt, since the exported module would check shapes.
        self.program = GraphModule(graph, graph.graph)
        self._outputs = signature.outputs
        self._cross_dtype = cross_dtype

    def forward(self, *arguments: Tensor) -> list[Tensor]:
        results = zip(self._outputs, tree_leaves(self.program(*arguments)), strict=True)
        return [
            _laid_out(name, part, self._cross_dtype)
            for name, part in results
            if not name.startswith("present_")
        ]


def save_methods(
    methods: Mapping[str, ExportedProgram],
    program: Mapping[str, Signature],
    facts: Mapping[str, Any],
    folder: Path,
) -> dict[str, Graph]:
    """Write `executorch/model.pte` under an existing folder; return the manifest's entries.

    `facts` are for callers that read only this file. Each becomes a method without arguments that
    returns numbers or a string; `executorch/constants.json` has them too.
    """
    # Elsewhere a view is free; XNNPACK copies a whole cache to reshape it.
    others = [c for c in ALL_PARTITIONER_CONFIGS if c not in (BMMConfig, ViewCopyConfig)]
    with quiet(), torch.no_grad():
        manager = to_edge_transform_and_lower(
            dict(methods),
            partitioner=[XnnpackPartitioner([*others, _Products])],
            constant_methods=dict(facts),
            # The verifier does not know the `llama` operators.
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        for name in methods:
            _drop_written_arguments(manager.exported_program(name))
        # Arguments stay in the caller's memory; planned memory would mean copying them.
        planning = MemoryPlanningPass(alloc_graph_input=False)
        result = manager.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
    (folder / FOLDER).mkdir()
    with (folder / FILE).open("wb") as file:
        result.write_to_file(file)
    (folder / CONSTANTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return {
        name: Graph(
            file=FILE,
            inputs=tuple(program[name].inputs),
            outputs=tuple(x for x in program[name].outputs if not x.startswith("present_")),
        )
        for name in methods
    }


class _Products(BMMConfig):  # type: ignore[misc]
    @override
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        # Only self caches arrive as views.
        view = exir_ops.edge.aten.view_copy.default
        is_ours = all(factor.target is not view for factor in node.all_input_nodes)
        return is_ours and super().check_constraints(node, ep)


def _redirect_cache_sizes(module: GraphModule, inputs: Sequence[str]) -> None:
    """Redirect reads of a cache's sizes (only caches have four axes) to the new layout's axes."""
    arguments = module.graph.find_nodes(op="placeholder")
    names = dict(zip(arguments, inputs, strict=True))
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int):
        source, axis = node.args
        if source in arguments and source.meta["val"].dim() == 4:
            # Positions are on another axis; rows are the first axis of every other argument.
            positions = 2 if names[source].startswith(_CROSS_KEY) else 1
            node.args = (source, positions) if axis == 2 else (arguments[0], axis)
    module.recompile()


def _drop_written_arguments(program: ExportedProgram) -> None:
    """Drop results that a method wrote in place, as they would be copies of whole caches.

    From here on operators write in place, which keeps writes to caches that are not read again.
    """
    unsafe_remove_auto_functionalized_pass(program)
    graph, specs = program.graph_module.graph, program.graph_signature.output_specs
    kept = [i for i, spec in enumerate(specs) if spec.kind is not OutputKind.USER_INPUT_MUTATION]
    output = graph.output_node()
    output.args = (tuple(output.args[0][i] for i in kept),)
    specs[:] = [specs[i] for i in kept]
    graph.eliminate_dead_code()
    program.graph_module.recompile()


# Maximum new positions of one call. With a bias, attention is GEMMs over the whole capacity.
_CHUNK, _BIASED_CHUNK = 128, 16
# Memory is planned for the longest source, whose bias has an entry for each pair of positions.
_LONGEST_BIASED_SOURCE = 512


def lower(
    family: Family,
    signatures: Mapping[str, Signature],
    dimensions: Any,
    quantize: str,
    folder: Path,
    special_tokens: Mapping[str, Sequence[int]],
    on_phase: OnPhase,
) -> tuple[dict[str, Graph], tuple[CacheLayers, ...]]:
    """Write `executorch/model.pte`; return the manifest's entries and the layout of their caches.

    `quantize` is "none", "8da8w" or "8da4w", which leaves encoders and cross projections in int8.
    `special_tokens`, by role, are for callers that read only this file. Raises KvcastError for
    attention with a soft cap, and for a mixture of experts.
    """
    layers = tuple(_limited(layer, family) for layer in family.caches(dimensions))
    layout = _layout(family, dimensions, layers)
    methods = {}
    for name, signature in signatures.items():
        on_phase(f"exporting {name}")
        scheme = for_many_tokens(quantize) if name == "encode" else quantize
        methods[name] = export_method(signature, layout, scheme, cross_dtype(quantize))
    on_phase("compiling")
    facts = facts_of(dimensions.vocab_size, layout.self_layers, layout.chunk, special_tokens)
    return save_methods(methods, signatures, {**facts, **layout.facts}, folder), layers


def _limited(layer: CacheLayers, family: Family) -> CacheLayers:
    if layer.kind == "cross" and family.biased:
        return replace(layer, capacity=min(layer.capacity, _LONGEST_BIASED_SOURCE))
    return layer


def _layout(family: Family, dimensions: Any, layers: Sequence[CacheLayers]) -> MethodLayout:
    longest = family.positions(dimensions)
    # All positions of a prefix see each other, so it takes one call.
    most = longest if family.interface == "prefix" else _BIASED_CHUNK if family.biased else _CHUNK
    chunk = min(most, longest)
    facts = dict(family.facts(dimensions))
    if "source" in family.programs(dimensions)["decode"].sizes:
        facts["longest_source"] = max(layer.capacity for layer in layers if layer.kind == "cross")
    return MethodLayout(
        chunk=chunk,
        self_layers=[_with_chunk(layer, chunk) for layer in layers if layer.kind != "cross"],
        longest_source=facts.get("longest_source", 0),
        facts=facts,
    )


def _with_chunk(layer: CacheLayers, chunk: int) -> CacheLayers:
    # A chunk is written before it is read, so a ring has room for both (`kvcast.spec.ring`).
    if layer.kind == "ring":
        return replace(layer, capacity=layer.capacity + chunk - 1)
    if parts := recurrent_layers(layer, None):
        return replace(layer, capacity=parts[0].shape[1])
    return layer
