"""The packed matrices of AOTInductor's packages: packed for the processor, and described.

A compiled program knows a matrix as a few words (`kvcast/runtimes/native/src/operators.hpp`). The
package's file holds codes and scales; when the package is opened, kvcast's library packs them, and
the words say where. Knows no program.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from kvcast.errors import KvcastError
from kvcast.runtimes.native.library import Machine
from kvcast.runtimes.native.matrices import BIAS, OPERATORS, Tensors, packed_experts, packed_matrix

_WORDS = re.compile(r"(?P<name>.*_packed)\.(?P<kind>matrix|experts)_(?P<version>\d+)")


class PackedWeights:
    """Matrices, whose memory programs read for as long as this is there.

    Attributes:
        words: of each matrix, by the name of the programs' constant.

    """

    def __init__(
        self, tensors: Mapping[str, Tensor], constants: Iterable[str], threads: int
    ) -> None:
        """Pack the matrices of `tensors` that are among programs' constants.

        Raises LibraryMissingError where kvcast's library cannot be had, KvcastError for programs
        that know another version of it, ValueError or KeyError for tensors that do not fit.
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
