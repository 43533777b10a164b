"""Runs torch.export and Inductor: kvcast's settings, and patches that make compiling quick.

Both trace programs with symbolic sizes. The speed of Inductor's code is easy to lose:

- It divides loops among threads by the sizes of the examples, so these are as large as real ones.
- With a dynamic number of threads it gives all of them to every loop, so a program for steps weighs
  the amount of work first (`short_loops_on_one_thread`).
- It recomputes all that is not marked `kept`: the mask that layers share, a query that is compared
  with keys one by one, the input of int8 rounding. It also stores values that should stay in
  registers, such as a gate and its values before they are multiplied.
- It confuses the order of axes when one of size 1 has the same stride as another; with the wrong
  layout of a mask, a step's softmax was not vectorized.
"""

import functools
import gc
import inspect
import operator
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._guards import detect_fake_mode
from torch._inductor import aot_compile, config, sizevars
from torch._inductor.codegen import common, cpp
from torch._inductor.codegen.cpp import CppKernel
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

_OPTIONS = {
    "aot_inductor.package": True,
    "aot_inductor.package_constants_in_so": False,
    # Returns the constants to us; they stay out of the package, so nothing is pickled.
    "aot_inductor.package_constants_on_disk_format": "pickle_weights",
    # The caller decides on the number of threads; loops are divided for up to this many.
    "cpp.dynamic_threads": True,
    "cpp.threads": 16,
    "size_asserts": False,
    # GELU is read twice, for a token's range and for its rounding: this stores it once.
    "realize_opcount_threshold": 15,
    # A gate and its values, or a query and a key, both read one product. Applying the product's
    # scales twice is cheap; storing it in fp32 first took three times as long.
    "realize_reads_threshold": 8,
    # Both serve debuggers; they make files larger and reveal this machine's folders.
    "aot_inductor.enable_line_tables": False,
    "aot_inductor.enable_frame_pointer": False,
}
# Called first by every program. Inductor's own checks of sizes, strides and dtypes run only where
# AOTI_RUNTIME_CHECK_INPUTS is set, but g++ spent more time on them than on the program.
_NO_CHECKS = """
static void __check_inputs_outputs(AtenTensorHandle*, AtenTensorHandle*) {}
"""
# Whose internals `_quicker` replaces parts of.
_TORCH = "2.13."
# Made between two of Python's garbage collections.
_OBJECTS = 50_000
# Tuning without the reports meant for Inductor's developers.
TUNED = {
    "max_autotune": True,
    "autotune_num_choices_displayed": 0,
    "max_autotune_report_choices_stats": False,
}


def export(
    program: nn.Module, arguments: tuple[Any, ...], sizes: tuple[Any, ...]
) -> torch.export.ExportedProgram:
    return torch.export.export(
        program,
        arguments,
        dynamic_shapes=sizes,
        strict=False,
        prefer_deferred_runtime_asserts_over_guards=True,
    )


def call_graph(
    program: nn.Module,
    arguments: Sequence[Tensor],
    sizes: Sequence[Collection[int]],
    results: int,
) -> torch.fx.GraphModule:
    """Return a graph of one node, a call of `program`, for `compile_program` to trace.

    Inductor traces its input, so a graph of operators from torch.export would be traced twice; that
    took a seventh of an export. Dynamic sizes that are equal in the examples become one symbol.
    """
    env = ShapeEnv(prefer_deferred_runtime_asserts_over_guards=True)
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True, export=True)
    graph = torch.fx.Graph()
    inputs = []
    for i, (example, dynamic) in enumerate(zip(arguments, sizes, strict=True)):
        axes = [
            DimDynamic.DUCK if axis in dynamic else DimDynamic.STATIC
            for axis in range(example.dim())
        ]
        inputs.append(graph.placeholder(f"input_{i}"))
        inputs[-1].meta["val"] = mode.from_tensor(
            example,
            source=ConstantSource(f"input_{i}"),
            symbolic_context=StatelessSymbolicContext(dynamic_sizes=axes),
        )
    called = graph.call_module("results", tuple(inputs))
    graph.output(tuple(graph.call_function(operator.getitem, (called, i)) for i in range(results)))
    return torch.fx.GraphModule({"results": program}, graph)


def trace(
    module: nn.Module, arguments: Sequence[Any], *, decompositions: Any = None, **_: Any
) -> tuple[torch.fx.GraphModule, SimpleNamespace]:
    """Return a program's graph without mutations, apart from copies to its inputs at the end.

    Takes the place of AOTAutograd's `aot_export_module`, which took three times as long: it traces
    twice, and through a tensor subclass, for gradients. Raises RuntimeError for a program that only
    fits one value of a dynamic size.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    weights = parameters | buffers
    mode: Any = detect_fake_mode(arguments)

    def call(*flat: Tensor) -> tuple[Tensor, ...]:
        wrapped = [torch._to_functional_tensor(given) for given in flat]
        own = dict(zip(weights, wrapped, strict=False))
        torch._enable_functionalization(reapply_views=True)
        try:
            results = functional_call(module, own, tuple(wrapped[len(own) :]))
        finally:
            torch._disable_functionalization()  # type: ignore[no-untyped-call]
        for given, after in zip(flat, map(_plain, wrapped), strict=True):
            if after is not given:
                given.copy_(after)
        return tuple(map(_plain, results))

    with mode, enable_python_dispatcher():
        fakes = [mode.from_tensor(weight, static_shapes=True) for weight in weights.values()]
        graph = make_fx(call, decompositions)(*fakes, *arguments)
    if fixed := _fixed_sizes(mode.shape_env):
        raise RuntimeError(f"the program does not fit every size: {', '.join(fixed)}")
    graph.graph.eliminate_dead_code()
    graph.recompile()
    inputs = [node.name for node in graph.graph.find_nodes(op="placeholder")]
    owners = dict(zip(inputs, weights, strict=False))
    return graph, SimpleNamespace(
        user_inputs=inputs[len(weights) :],
        inputs_to_parameters={name: own for name, own in owners.items() if own in parameters},
        inputs_to_buffers={name: own for name, own in owners.items() if own in buffers},
        buffers_to_mutate={},
        user_inputs_to_mutate={},
        output_tokens=[],
    )


def _fixed_sizes(env: ShapeEnv) -> list[str]:
    """Name the sizes that tracing specialized to constants; bounds only decide between kernels."""
    equations = [guard.expr for guard in env.guards if getattr(guard.expr, "rel_op", "") == "=="]
    return [str(equation) for equation in equations if len(equation.free_symbols) == 1]


def _plain(functional: Tensor) -> Tensor:
    torch._functionalize_sync(functional)
    return torch._from_functional_tensor(functional)


def compile_program(
    module: torch.fx.GraphModule,
    arguments: tuple[Any, ...],
    *,
    max_autotune: bool = False,
    shims: Mapping[Any, Sequence[str]] = MappingProxyType({}),
) -> tuple[list[str], dict[str, Tensor]]:
    """Return the files that Inductor writes (native code, its sources, metadata) and its constants.

    The constants are weights repacked for a tuned product. `shims`: operators that the code calls
    directly, and the C++ that defines them.
    """
    quicker = _quicker() if torch.__version__.startswith(_TORCH) else nullcontext()
    options = _OPTIONS | (TUNED if max_autotune else {})
    options |= {"aot_inductor.custom_ops_to_c_shims": dict(shims)} if shims else {}
    with tracing(), quicker:
        produced = aot_compile(module, arguments, options=options)
    if not isinstance(produced, list):
        raise TypeError("AOTInductor gave no files")
    files: list[str] = []
    constants: dict[str, Tensor] = {}
    for part in produced:
        if isinstance(part, str):
            files.append(part)
        else:
            own = [name for name in part if name.startswith("constant")]
            constants |= {name: part.get_weight(name)[0] for name in own}
    return files, constants


@contextmanager
def tracing() -> Iterator[None]:
    """Trace without gradients, without warnings and with rare garbage collection.

    Graphs and symbolic sizes are millions of objects that live until the end.
    """
    thresholds = gc.get_threshold()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        gc.set_threshold(_OBJECTS, *thresholds[1:])
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)


@contextmanager
def short_loops_on_one_thread() -> Iterator[None]:
    """Compile so that a loop with little work stays on one thread.

    `cpp.dynamic_threads` makes all threads wait even around a loop over a single token, some twenty
    times a layer; it overrides Inductor's rule of the amount of work, which this restores.
    """
    decide = CppKernel.decide_parallel_depth

    def by_amount_of_work(*arguments: Any) -> Any:
        with config.patch({"cpp.dynamic_threads": False}):
            return decide(*arguments)  # type: ignore[no-untyped-call]

    with patch.object(CppKernel, "decide_parallel_depth", by_amount_of_work):
        yield


@contextmanager
def _quicker() -> Iterator[None]:
    """Replace the parts that make Inductor slow here and add nothing to its code but checks."""
    traced_once = patch("torch._inductor.compile_fx.aot_export_module", trace)
    with remembered_strides(), _unchecked(), traced_once:
        yield


@contextmanager
def _unchecked() -> Iterator[None]:
    def write(wrapper: CppWrapperCpu) -> None:
        wrapper.prefix.splice_aot(_NO_CHECKS)

    with patch.object(CppWrapperCpu, "generate_input_output_runtime_checks", write):
        yield


@contextmanager
def remembered_strides() -> Iterator[None]:
    """Make Inductor cache all strides it derived, so that equal layers are analysed once.

    Its own caches have 128 entries, fewer than a layer needs: each layer evicts the one before,
    and simplifying the same expressions again took a quarter of an export. The propagation of
    dtypes is a singleton that reinitializes at every access.
    """
    remembered = {
        name: functools.cache(inspect.unwrap(getattr(sizevars, name)))
        for name in ("stride_at", "simplify_index_in_vec_range", "stride_at_vec_range")
    }
    handler = functools.cache(DtypePropagationOpsHandler)
    with ExitStack() as patches:
        for name, function in remembered.items():
            patches.enter_context(patch.object(sizevars, name, function))
        imported = patch.object(cpp, "stride_at_vec_range", remembered["stride_at_vec_range"])
        patches.enter_context(imported)
        patches.enter_context(patch.object(common, "DtypePropagationOpsHandler", handler))
        yield
