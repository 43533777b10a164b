"""Compiles programs to one ExecuTorch file (.pte) in a bundle's folder, a method for each program.

Caches are arguments that methods write in place. The file keeps no state: the buffers belong to the
caller, so one loaded file serves any number of rows and sessions, and the caller resets, reorders
and forks. Each call processes one row. Matrix products run on XNNPACK. Knows no model.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Node
from typing_extensions import override

from kvcast.bundle.manifest import CacheLayers, Graph
from kvcast.lowering.executorch_operators import TABLE
from kvcast.lowering.executorch_quantize import quantize_matrices
from kvcast.lowering.replace import replace_operators
from kvcast.lowering.signatures import Signature
from kvcast.runtimes.executorch_quiet import quiet

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

FOLDER = "executorch"
FILE = f"{FOLDER}/model.pte"
CONSTANTS = f"{FOLDER}/constants.json"
# Logits that one call returns at most; memory is planned for that many.
_MOST_ASKED = 8

Argument = tuple[Any, Any]
"""An example and its dynamic shapes, as torch.export takes them."""
Results = Any


def new_positions(chunk: int) -> list[Argument]:
    """Tokens [1, s] for up to `chunk` new positions, lengths [1], and offsets that get logits."""
    return [
        (torch.zeros(1, 3, dtype=torch.int64), {1: Dim("new", max=chunk)}),
        (torch.zeros(1, dtype=torch.int32), None),
        (torch.tensor([0, 2]), {0: Dim("asked", max=_MOST_ASKED)}),
    ]


def facts_of(
    vocab: int,
    layers: Sequence[CacheLayers],
    chunk: int,
    special_tokens: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """Return the facts that any caller of `decode` needs; `layers` are the self caches."""
    each = [run for run in layers for _ in range(run.layers)]
    return {
        "vocab_size": vocab,
        "dtype": "float32",
        "layers": len(each),
        "kv_heads": each[0].heads,
        "head_dim": each[0].head_dim,
        # One for each layer; a ring has this many slots however long the text is.
        "capacities": [run.capacity for run in each],
        "rings": [int(run.kind == "ring") for run in each],
        "chunk": chunk,
        "most_asked": _MOST_ASKED,
        **{name: list(tokens) for name, tokens in special_tokens.items()},
    }


def caches(layers: Sequence[CacheLayers], open_size: Any) -> Argument:
    """Return keys and values of layers, with a dynamic capacity for all but rings.

    Args:
        layers: layout of the caches; rings have exactly their capacity.
        open_size: the dynamic capacity of the others.

    """
    examples, sizes = [], []
    for run in layers:
        shape = (run.heads, run.capacity, 1, run.head_dim)
        part = None if run.kind == "ring" else {1: open_size}
        for _ in range(run.layers):
            examples.append((torch.zeros(shape), torch.zeros(shape)))
            sizes.append((part, part))
    return examples, sizes


def cross_caches(run: CacheLayers, source: Any, dtype: torch.dtype) -> Argument:
    """Return keys [heads, d, t] and values [heads, t, d] of layers, laid out for fast products.

    Args:
        run: layout of the caches.
        source: the dynamic size t, or None if it is fixed.
        dtype: of keys and values.

    """
    positions, dim = run.capacity, run.head_dim
    sizes = (None, None) if source is None else ({2: source}, {1: source})
    # A tensor for each: torch.export would merge arguments that share one.
    examples = [
        tuple(
            torch.zeros(run.heads, *shape, dtype=dtype)
            for shape in ((dim, positions), (positions, dim))
        )
        for _ in range(run.layers)
    ]
    return examples, [sizes] * run.layers


def without_caches(results: Results) -> Results:
    """Return `decode`'s results without the caches, which it wrote in place."""
    return results[:-1]


def as_cross_caches(dtype: torch.dtype) -> Callable[[Results], Results]:
    """Return a function that lays out `encode`'s caches as `decode` takes them, in one list."""

    def finish(layers: Results) -> Results:
        return [
            part.to(dtype).contiguous()
            for key, value in layers
            for part in (key[0].transpose(1, 2), value[0])
        ]

    return finish


def export_method(
    signature: Signature,
    arguments: Sequence[Argument],
    finish: Callable[[Results], Results],
    quantize: str,
) -> ExportedProgram:
    """Export a program with kvcast's operators replaced by ExecuTorch's.

    Args:
        signature: the program's.
        arguments: of one row, with caches laid out as `executorch_operators` describes.
        finish: applied to the results.
        quantize: "none", "8da8w" or "8da4w".

    Raises:
        KvcastError: the program needs something for which ExecuTorch has no operator.

    """
    with quiet(), torch.no_grad():
        exported = torch.export.export(
            signature.program,
            signature.arguments,
            dynamic_shapes=signature.sizes,
            strict=False,
        )
        replaced = replace_operators(exported, TABLE)
        quantize_matrices(replaced, quantize)
        method = _Method(replaced, signature.inputs, finish)
        examples, sizes = zip(*arguments, strict=True)
        return torch.export.export(method, examples, dynamic_shapes=(sizes,), strict=False)


class _Method(nn.Module):
    """A program's graph, called with arguments of other shapes than it was exported with."""

    def __init__(
        self, graph: GraphModule, inputs: Sequence[str], finish: Callable[[Results], Results]
    ) -> None:
        super().__init__()
        _redirect_cache_sizes(graph, inputs)
        # Rebuilt, since the exported module would check shapes.
        self.program = GraphModule(graph, graph.graph)
        self.finish = finish

    def forward(self, *arguments: Any) -> Results:
        """Run the program; return what `finish` makes of its results."""
        return self.finish(self.program(*arguments))


def save_methods(
    methods: Mapping[str, ExportedProgram],
    program: Mapping[str, Signature],
    facts: Mapping[str, Any],
    folder: Path,
) -> dict[str, Graph]:
    """Write `executorch/model.pte` under an existing folder.

    Args:
        methods: exported methods by name.
        program: their signatures.
        facts: what a caller that reads only this file needs to know. Each becomes a method without
            arguments that returns numbers or a text; `executorch/constants.json` has them too.
        folder: the bundle's folder.

    Returns:
        The manifest's entries for the methods.

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
    """The products to give to XNNPACK: not those with a self cache, which it would copy whole."""

    @override
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        # Only self caches arrive as views.
        view = exir_ops.edge.aten.view_copy.default
        is_ours = all(factor.target is not view for factor in node.all_input_nodes)
        return is_ours and super().check_constraints(node, ep)


def _redirect_cache_sizes(module: GraphModule, inputs: Sequence[str]) -> None:
    """Redirect reads of a cache's sizes to the axes where the new layout has them.

    Only caches have four axes.
    """
    arguments = module.graph.find_nodes(op="placeholder")
    names = dict(zip(arguments, inputs, strict=True))
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int):
        source, axis = node.args
        if source in arguments and source.meta["val"].dim() == 4:
            # Positions are on another axis; rows are the first axis of every other argument.
            positions = 2 if names[source].startswith("cross_key_") else 1
            node.args = (source, positions) if axis == 2 else (arguments[0], axis)
    module.recompile()


def _drop_written_arguments(program: ExportedProgram) -> None:
    """Drop results that a method wrote in place, as they would be copies of whole caches."""
    graph, specs = program.graph_module.graph, program.graph_signature.output_specs
    kept = [i for i, spec in enumerate(specs) if spec.kind is not OutputKind.USER_INPUT_MUTATION]
    output = graph.output_node()
    output.args = (tuple(output.args[0][i] for i in kept),)
    specs[:] = [specs[i] for i in kept]
    graph.eliminate_dead_code()
    program.graph_module.recompile()
