"""Examples of each program's arguments, with their dynamic sizes and names, as exporters take them.

Every size that callers vary is dynamic: rows, new positions, capacities. A family's record says
what the arguments are (`kvcast.families.programs`). Knows no family and no runtime.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import tree_leaves

from kvcast.families.programs import Argument, CacheArgument, ProgramSignature, Shape
from kvcast.families.table import family_with

# Sizes of the examples. Dynamic sizes all differ, so that torch.export takes no two for one.
_SIZES = {
    "rows": 4,
    "batch": 2,
    "new": 3,
    "asked": 2,
    "source": 5,
    "capacity": 9,
    "ring": 11,
    "inputs": 13,
    "n": 3,
}
# Smaller caches work as well, but torch.export treats sizes 0 and 1 as special cases.
_LEAST = {"capacity": 3, "ring": 3, "inputs": 3}
_DTYPES = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A program and its signature.

    Attributes:
        program: the module to export, with kvcast's operators.
        arguments: example arguments, flat.
        sizes: dynamic shapes of each argument, as torch.export takes them.
        inputs: names of the arguments.
        outputs: names of the results; `present_...` are the caches after the call.
        kinds: the kinds of self caches that it attends to, each once: "linear", "ring".

    """

    program: nn.Module
    arguments: tuple[Tensor, ...]
    sizes: tuple[Any, ...]
    inputs: Sequence[str]
    outputs: Sequence[str]
    kinds: Sequence[str] = ()

    @property
    def open_sizes(self) -> list[dict[int, Any]]:
        """The dynamic sizes of each argument, by axis."""
        return tree_leaves(self.sizes, is_leaf=lambda part: isinstance(part, dict))

    def export(self) -> ExportedProgram:
        """Return the program's graph of operators, kvcast's among them."""
        with torch.no_grad():
            return torch.export.export(
                self.program, self.arguments, dynamic_shapes=self.sizes, strict=False
            )


def signatures_of(programs: Any) -> Mapping[str, Signature]:
    """Return the signature of each of a model's programs, by name."""
    described = family_with(programs.dimensions).programs(programs.dimensions)
    return {name: signature_of(programs[name], program) for name, program in described.items()}


def signature_of(module: nn.Module, program: ProgramSignature) -> Signature:
    """Return the signature of a module that is this program, and takes any number of tensors."""
    return Signature(
        program=module,
        arguments=tuple(part for argument in program.arguments for part in _examples(argument)),
        # One tuple, as the module's `forward` has one parameter.
        sizes=(tuple(part for argument in program.arguments for part in _dynamic(argument)),),
        inputs=program.inputs,
        outputs=list(program.outputs),
        kinds=program.kinds,
    )


def _examples(argument: Argument | CacheArgument) -> list[Tensor]:
    if isinstance(argument, CacheArgument):
        return [_zeros(shape) for shape in argument.shapes]
    dtype = _DTYPES[argument.dtype]
    if argument.example:
        return [torch.tensor(argument.example, dtype=dtype)]
    return [_zeros(argument.shape, dtype)]


def _zeros(shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
    sizes = [_SIZES[size] if isinstance(size, str) else size for size in shape]
    return torch.zeros(sizes, dtype=dtype)


def _dynamic(argument: Argument | CacheArgument) -> list[dict[int, Any]]:
    return [_named(shape) for shape in argument.shapes]


def _named(shape: Shape) -> dict[int, Any]:
    return {
        axis: Dim(size, min=_LEAST.get(size))
        for axis, size in enumerate(shape)
        if isinstance(size, str)
    }
