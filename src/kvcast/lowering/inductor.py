"""Runs torch.export and Inductor: the settings that kvcast compiles with, and what makes it quick.

Both trace programs with symbolic sizes. Knows no program.
"""

import functools
import gc
import inspect
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._inductor import aot_compile, config, sizevars
from torch._inductor.codegen import common, cpp
from torch._inductor.codegen.cpp import CppKernel
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler

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
# Made between two of Python's garbage collections.
_OBJECTS = 50_000
# Tuning without the reports meant for Inductor's developers.
_TUNED = {
    "max_autotune": True,
    "autotune_num_choices_displayed": 0,
    "max_autotune_report_choices_stats": False,
}


def export(
    program: nn.Module, arguments: tuple[Any, ...], sizes: tuple[Any, ...]
) -> torch.export.ExportedProgram:
    """Export a program with the dynamic shapes that `sizes` names, as torch.export takes them."""
    return torch.export.export(
        program,
        arguments,
        dynamic_shapes=sizes,
        strict=False,
        prefer_deferred_runtime_asserts_over_guards=True,
    )


def compile_program(
    module: torch.fx.GraphModule, arguments: tuple[Any, ...], *, max_autotune: bool = False
) -> tuple[list[str], dict[str, Tensor]]:
    """Return the files that Inductor writes (native code, its sources, metadata) and its constants.

    These are the constants that are not weights of the module: the group size of int4, or weights
    rearranged for a tuned product.
    """
    with tracing(), remembered_strides(), _unchecked():
        produced = aot_compile(
            module, arguments, options=_OPTIONS | (_TUNED if max_autotune else {})
        )
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
    """Trace without gradients, without notes for torch's developers and with rare collections.

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

    `cpp.dynamic_threads` makes all threads wait for one another even around a loop over a single
    token, some twenty times a layer. It overrides Inductor's own rule, which weighs the amount of
    work; this restores that rule.
    """
    decide = CppKernel.decide_parallel_depth

    def by_amount_of_work(*arguments: Any) -> Any:
        with config.patch({"cpp.dynamic_threads": False}):
            return decide(*arguments)  # type: ignore[no-untyped-call]

    with patch.object(CppKernel, "decide_parallel_depth", by_amount_of_work):
        yield


@contextmanager
def _unchecked() -> Iterator[None]:
    def write(wrapper: CppWrapperCpu) -> None:
        wrapper.prefix.splice_aot(_NO_CHECKS)

    with patch.object(CppWrapperCpu, "generate_input_output_runtime_checks", write):
        yield


@contextmanager
def remembered_strides() -> Iterator[None]:
    """Let Inductor remember all strides it derived, so that equal layers are analysed once.

    Its own caches have 128 entries, fewer than a layer needs: each layer evicts the one before,
    and simplifying the same expressions again took a quarter of an export. The propagation of
    dtypes is a singleton that sets itself up anew whenever it is asked for.
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
