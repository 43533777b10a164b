"""Packed matrices of AOTInductor packages, and the operators that multiply with them natively.

A compiled program holds a few words per matrix (`runtimes/native/src/operators.hpp`): the places of
its tiles and of kvcast's functions. The package's file holds codes and scales; when the package is
opened, kvcast's library packs them and fills the words in. Kernels run on the threads of the
program's own loops: two pools of threads would keep each other waiting.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kvcast.errors import KvcastError
from kvcast.runtimes.native.library import DESCRIPTION, Machine
from kvcast.runtimes.native.matrices import BIAS, OPERATORS, Tensors, packed_experts, packed_matrix

_WORDS = re.compile(r"(?P<name>.*_packed)\.(?P<kind>matrix|experts)_(?P<version>\d+)")


class PackedWeights:
    """Matrices whose memory programs read while this object lives."""

    def __init__(
        self, tensors: Mapping[str, Tensor], constants: Iterable[str], threads: int
    ) -> None:
        """Pack the matrices of `tensors` that are among programs' constants.

        Raises LibraryMissingError without kvcast's library, KvcastError for programs of another
        version, ValueError or KeyError for tensors that do not fit.
        """
        self.words: dict[str, Tensor] = {}
        self._kept: list[Any] = []
        matches = {name: match for name in constants if (match := _WORDS.fullmatch(name))}
        if not matches:
            return
        if {match["version"] for match in matches.values()} != {OPERATORS}:
            raise KvcastError("it was compiled for another version of kvcast")
        machine = Machine(threads)
        stored = {name: part.numpy() for name, part in tensors.items() if "_packed" in name}
        for constant, match in matches.items():
            words = _MAKERS[match["kind"]](self, machine, stored, match["name"])
            self.words[constant] = torch.from_numpy(words).view(1, -1)

    def _matrix(self, machine: Machine, tensors: Tensors, name: str) -> NDArray[Any]:
        bias = name + BIAS if name + BIAS in tensors else None
        matrix = packed_matrix(machine, tensors, name, bias)
        self._kept.append(matrix)
        return machine.describe(matrix.format, matrix.outputs, matrix.inputs, matrix.tiles)

    def _experts(self, machine: Machine, tensors: Tensors, name: str) -> NDArray[Any]:
        experts = packed_experts(machine, tensors, name)
        self._kept.append(experts)
        first, count = experts.matrices[0], len(experts.matrices)
        sizes = first.format, first.outputs, first.inputs
        return machine.describe(*sizes, experts.addresses, count)


_MAKERS: Mapping[str, Callable[[PackedWeights, Machine, Tensors, str], NDArray[Any]]] = {
    "matrix": PackedWeights._matrix,
    "experts": PackedWeights._experts,
}


# None for eager PyTorch: only an opened package has the memory they read.
torch.library.define(
    "kvcast::multiply_packed", "(Tensor hidden, Tensor matrix, int outputs) -> Tensor"
)
torch.library.define("kvcast::look_up_packed", "(Tensor ids, Tensor matrix, int inputs) -> Tensor")
torch.library.define(
    "kvcast::mix_packed",
    "(Tensor hidden, Tensor router_logits, Tensor gate_up, Tensor down, int each) -> Tensor",
)


@torch.library.register_fake("kvcast::multiply_packed")  # type: ignore[untyped-decorator]
def _(hidden: Tensor, matrix: Tensor, outputs: int) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(hidden.shape[0], outputs)


@torch.library.register_fake("kvcast::look_up_packed")  # type: ignore[untyped-decorator]
def _(ids: Tensor, matrix: Tensor, inputs: int) -> Tensor:  # noqa: ARG001
    return ids.new_empty(ids.shape[0], inputs, dtype=torch.float32)


@torch.library.register_fake("kvcast::mix_packed")  # type: ignore[untyped-decorator]
def _(
    hidden: Tensor,
    router_logits: Tensor,  # noqa: ARG001
    gate_up: Tensor,  # noqa: ARG001
    down: Tensor,  # noqa: ARG001
    each: int,  # noqa: ARG001
) -> Tensor:
    return hidden.new_empty(hidden.shape)


class MatrixWords(nn.Module):
    """The words of a matrix, zeros until a package is opened; 2-D, as Inductor inlines vectors."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.register_buffer(name, torch.zeros(1, DESCRIPTION, dtype=torch.int64))


def multiply(hidden: Tensor, matrix: Tensor, outputs: int) -> Tensor:
    product = torch.ops.kvcast.multiply_packed(hidden.flatten(0, -2), matrix, outputs)
    return product.view(*hidden.shape[:-1], outputs)  # type: ignore[no-any-return]


def look_up(ids: Tensor, matrix: Tensor, inputs: int) -> Tensor:
    rows = torch.ops.kvcast.look_up_packed(ids.flatten().long(), matrix, inputs)
    return rows.view(*ids.shape, inputs)  # type: ignore[no-any-return]


def mix(hidden: Tensor, logits: Tensor, gate_up: Tensor, down: Tensor, each: int) -> Tensor:
    return torch.ops.kvcast.mix_packed(hidden, logits, gate_up, down, each)  # type: ignore[no-any-return]


_SOURCE = (files("kvcast.runtimes.aoti") / "packed_calls.cpp").read_text(encoding="utf-8")
_CALLS = _SOURCE.partition("extern ")[2].strip()

SHIMS: Mapping[Any, Sequence[str]] = {
    torch.ops.kvcast.multiply_packed.default: [_CALLS],
    torch.ops.kvcast.look_up_packed.default: [],
    torch.ops.kvcast.mix_packed.default: [],
}
"""C++ that Inductor writes into a package with these operators, so that it calls them directly."""
