"""Compiles modules with AOTInductor and counts a step's operations in the generated C++.

A step is a call whose conditional takes the branch that reads: the branch that computes is left
out.
"""

import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Counts:
    """Counts of a step's operations on tensors of a size or larger.

    Attributes:
        projections: GEMMs with results of that size.
        copies: loops that write that many values.
        flags: flags that the host reads before it chooses a branch.

    """

    projections: int
    copies: int
    flags: int


@dataclass(frozen=True)
class Compiled:
    """A program, and the C++ of its calls and of its loops."""

    call: Callable[..., Any]
    wrapper: str
    kernels: str


def compiled(module: nn.Module, arguments: Sequence[Tensor], package: Path) -> Compiled:
    """Export a module and compile it into `package`."""
    # torch's internal warnings.
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        program = torch.export.export(module.eval(), tuple(arguments), strict=False)
        torch._inductor.aoti_compile_and_package(program, package_path=str(package))
        call = torch._inductor.aoti_load_package(str(package))
    with zipfile.ZipFile(package) as archive:
        sources = {
            kind: archive.read(name).decode()
            for name in archive.namelist()
            for kind in ("wrapper", "kernel")
            if name.endswith(f".{kind}.cpp")
        }
    return Compiled(call, sources["wrapper"], sources.get("kernel", ""))


def counts(program: Compiled, size: int) -> Counts:
    """Count the operations of a step that produce `size` values or more."""
    body = program.wrapper[program.wrapper.index("::run_impl(") :]
    body = re.sub(r"// subgraph: false_graph_\d+\n.*?\n    \}", "", body, flags=re.DOTALL)
    shapes = dict(re.findall(r"int64_t (int_array_\d+)\[\] = \{([^}]*)\}", body))
    made = {
        name: prod(int(part) for part in re.findall(r"(\d+)L", shapes.get(shape, "")))
        for shape, name in re.findall(
            r"empty_strided\w*\(\d+, (int_array_\d+),[^;]*&(\w+)_handle\)", body
        )
    }
    products = re.findall(r"mm_out\((\w+),", body)
    copies_by_name = {
        name: loops_of(text, size)
        for name, text in re.findall(
            r'extern "C"\s+void\s+(\w+)\((.*?)(?=extern "C"|\Z)', program.kernels, re.DOTALL
        )
    }
    called = re.findall(r"\b(cpp_fused\w*)\(", body)
    return Counts(
        projections=sum(made.get(name, 0) >= size for name in products),
        copies=sum(copies_by_name.get(name, 0) for name in called),
        flags=len(re.findall(r"aoti_torch_item_bool\(", body)),
    )


def loops_of(kernel: str, size: int) -> int:
    """Return how many of a kernel's loop nests run over `size` values or more."""
    nests: list[int] = []
    outer: list[int] = []
    for indent, bound in re.findall(
        r"^( *)for\(int64_t x\d+=[^;]*; x\d+<static_cast<int64_t>\((\d+)L\)", kernel, re.MULTILINE
    ):
        depth = len(indent)
        if not outer or depth <= outer[0]:
            nests.append(1)
            outer = [depth]
        nests[-1] *= int(bound)
    return sum(each >= size for each in nests)
