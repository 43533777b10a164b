"""Compiles programs to one AOTInductor package, with their weights in a separate file.

Each program is exported with dynamic shapes wherever callers vary a size, kvcast's operators are
replaced by plain ones, and Inductor compiles the result to native code for this machine. Weights
stay out of the code: on loading, all programs receive the same tensors.
"""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass
from torch.export.pt2_archive._package import package_pt2
from torch.export.pt2_archive._package_weights import Weights
from torch.utils._pytree import tree_leaves

from kvcast.bundle.manifest import Graph
from kvcast.families.programs import CacheLayers
from kvcast.runtimes.aoti.inductor import (
    call_graph,
    compile_program,
    export,
    short_loops_on_one_thread,
    tracing,
)
from kvcast.runtimes.aoti.operators import multiply_by_onednn, reading, table
from kvcast.runtimes.aoti.packed import SHIMS
from kvcast.runtimes.aoti.precision import (
    PackedMatrices,
    Precision,
    cast_convolutions,
    graph_roles,
    reduce_matrices,
)
from kvcast.runtimes.aoti.target import write_sources
from kvcast.runtimes.lowering.torch_export import Signature, replace_operators
from kvcast.runtimes.native.matrices import EXPERTS, MATRIX
from kvcast.spec.runtimes import OnPhase, ignore_phase
from kvcast.spec.stored_matrices import BlocksOf, no_blocks

PACKAGE, WEIGHTS = "aoti/model.pt2", "aoti/weights.safetensors"
_SLOTS = "slots_"
# Typical sizes, because Inductor divides loops among threads by the sizes of the examples. All
# differ, because equal ones become one size.
_TYPICAL = {
    "rows": 4,
    "batch": 2,
    "new": 3,
    "asked": 5,
    "n": 6,
    "source": 96,
    "capacity": 480,
    "ring": 490,
    "inputs": 18,
    _SLOTS + "linear": 470,
    _SLOTS + "ring": 460,
}
_PREFILL = {"new": 256}
# The prefix that the compiled module puts before the names of a program's own submodules.
_PREFIX = "results.program."


class _Results(nn.Module):
    """A program with replaced operators; `slots` precede its own arguments."""

    def __init__(self, program: nn.Module, signature: Signature, dtype: torch.dtype) -> None:
        super().__init__()
        self.program = program
        self._kinds = signature.kinds
        self._dtypes = [
            dtype if name.startswith("cross_") else torch.float32
            for name in result_names(signature)
        ]

    def forward(self, *flat: Tensor) -> list[Tensor]:
        """Return the results as a flat list, without caches, which are written in place."""
        held = {kind: part.shape[0] for kind, part in zip(self._kinds, flat, strict=False)}
        with reading(held):
            results = tree_leaves(self.program(*flat[len(held) :]))
        return [part.to(dtype) for part, dtype in zip(results, self._dtypes, strict=False)]


def lower(
    signatures: Mapping[str, Signature],
    precision: Precision,
    folder: Path,
    *,
    device: str = "cpu",
    max_autotune: bool = False,
    on_phase: OnPhase = ignore_phase,
    blocks_of: BlocksOf = no_blocks,
) -> dict[str, Graph]:
    """Write a package, weights and sources under `folder`/aoti; return the manifest's graphs.

    Caches are inputs that are written in place. The inputs `slots_linear` and `slots_ring` come
    first; only their size matters: how many slots of such a cache to read. `prefill` is `decode`
    compiled for many tokens. `blocks_of` has the checkpoint's codes of a matrix, which int4 keeps.
    """
    (folder / PACKAGE).parent.mkdir()
    wanted = dict(signatures)
    traced = {}
    for name, signature in signatures.items():
        on_phase(f"exporting {name}")
        traced[name] = trace_program(signature, precision, device)
    if precision.has_prefill and device == "cpu":
        wanted["prefill"], traced["prefill"] = signatures["decode"], traced["decode"]
    packed = None
    if precision.quantize == "int4":
        roles = {name: graph_roles(traced[name], signatures[name].outputs) for name in signatures}
        packed = PackedMatrices(roles, precision.quantize, blocks_of)
    exported = {}
    for name, signature in wanted.items():
        if precision.quantize != "none" and precision.forms(name):
            on_phase(f"quantising {name}")
        exported[name] = export_program(traced[name], signature, precision, name, packed, device)
    weights: dict[str, Tensor] = {}
    for module, _ in exported.values():
        _add(weights, _weights(module))
    if packed is not None:
        _add(weights, {_PREFIX + name: tensor for name, tensor in packed.stored.items()})
    files: dict[str, list[str | Weights]] = {}
    sources: dict[str, list[str]] = {}
    for name, (module, arguments) in exported.items():
        on_phase(f"compiling {name}")
        # Where a separate prefill takes the long calls, decode only sees few tokens.
        is_step = name == "decode" and "prefill" in exported
        with short_loops_on_one_thread() if is_step else nullcontext():
            compiled, constants = compile_program(
                module,
                arguments,
                max_autotune=max_autotune,
                shims={} if packed is None else SHIMS,
            )
        sources[name] = compiled
        files[name] = [file for file in compiled if not file.endswith(".cpp")]
        weights |= {f"{name}/{constant}": tensor for constant, tensor in constants.items()}
    package_pt2(str(folder / PACKAGE), aoti_files=files)
    write_sources(folder, sources)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
    return {
        name: Graph(
            file=PACKAGE,
            inputs=(*(_SLOTS + kind for kind in signature.kinds), *signature.inputs),
            outputs=tuple(result_names(signature)),
        )
        for name, signature in wanted.items()
    }


def cache_layers(layers: Iterable[CacheLayers], precision: Precision) -> tuple[CacheLayers, ...]:
    return tuple(layer.of_dtype(precision.cache_dtype) for layer in layers)


def result_names(signature: Signature) -> list[str]:
    return [name for name in signature.outputs if not name.startswith("present_")]


def trace_program(
    signature: Signature, precision: Precision, device: str = "cpu"
) -> torch.export.ExportedProgram:
    """Export a program with kvcast's operators, the start of its every form."""
    given = _examples(signature, precision.torch_dtype, _TYPICAL)
    with tracing():
        return move_to_device_pass(export(signature.program, given, signature.sizes), device)


def export_program(
    traced: torch.export.ExportedProgram,
    signature: Signature,
    precision: Precision,
    name: str,
    packed: PackedMatrices | None = None,
    device: str = "cpu",
) -> tuple[torch.fx.GraphModule, tuple[Tensor, ...]]:
    """Return a module to compile and flat examples of its arguments: slots, then the program's own.

    `name` "prefill" is `decode` for many tokens; `packed` gets the matrices in int4.
    """
    typical = _TYPICAL | (_PREFILL if name == "prefill" else {})
    given = _examples(signature, precision.torch_dtype, typical)
    sizes = [*({0} for _ in signature.kinds), *signature.open_sizes]
    slots = [torch.zeros(typical[_SLOTS + kind], dtype=torch.int8) for kind in signature.kinds]
    arguments = tuple(part.to(device) for part in (*slots, *given))
    operators = dict(table(precision.torch_dtype, few=name == "decode", device=device))
    if packed is not None:  # which knows experts by kvcast's operator
        del operators[torch.ops.kvcast.mixture_of_experts.default]
    with tracing():
        replaced = replace_operators(traced, operators)
        _drop_assertions(replaced)
        if packed is None:
            reduce_matrices(replaced, precision, name)
        else:
            packed.pack(replaced)
            cast_convolutions(replaced, precision.torch_dtype)
        if device == "cpu":
            multiply_by_onednn(replaced)
        replaced.delete_all_unused_submodules()
        results = _Results(replaced, signature, precision.torch_dtype)
        module = call_graph(results, arguments, sizes, len(result_names(signature)))
    return module, arguments


def _examples(
    signature: Signature, dtype: torch.dtype, typical: Mapping[str, int]
) -> tuple[Tensor, ...]:
    given = []
    for name, part, open_here in zip(
        signature.inputs, signature.arguments, signature.open_sizes, strict=True
    ):
        shape = [
            typical[open_here[i].__name__] if i in open_here else size
            for i, size in enumerate(part.shape)
        ]
        is_reduced = name.startswith(("past_key_", "past_value_", "cross_"))
        given.append(torch.zeros(shape, dtype=dtype if is_reduced else part.dtype))
    return tuple(given)


def _drop_assertions(module: torch.fx.GraphModule) -> None:
    """Remove torch.export's assertions about sizes; the generated code works for all of them."""
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_scalar.default:
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _weights(module: torch.fx.GraphModule) -> dict[str, Tensor]:
    buffers = dict(module.named_buffers()).items()
    own = {name: part for name, part in buffers if not name.endswith((MATRIX, EXPERTS))}
    return dict(module.named_parameters()) | own


def _add(weights: dict[str, Tensor], others: Mapping[str, Tensor]) -> None:
    """Add in place; RuntimeError for two tensors of one name, as compiled code does not check."""
    for name, tensor in others.items():
        known = weights.setdefault(name, tensor)
        if known.dtype != tensor.dtype or not torch.equal(known, tensor):
            raise RuntimeError(f"two programs have different weights named {name}")
