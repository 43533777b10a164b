"""The instructions of the interpreter: their numbers, and the words that each takes.

Words are written in the order in which `src/program.cpp` reads them. An operand that lies in the
arena is an `Address`, whose word is known once the arena has been laid out.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias


class Operation(IntEnum):
    """Numbers as in program.cpp."""

    PRODUCT = 0
    ROUND = 1
    LAYER_NORM = 2
    RMS_NORM = 3
    GATED = 4
    EMBEDDING = 5
    ELEMENTS = 6
    GATHER = 7
    SELF_ATTENTION = 8
    CROSS_ATTENTION = 9
    WHOLE_ATTENTION = 10
    MIXTURE = 11
    STORE = 12
    ALIGNMENT_SCORES = 13
    STAND_OUT = 14
    TOKEN_PROBABILITIES = 15
    FIRST_FRAMES = 16


class Dtype(IntEnum):
    """Numbers as in elements.hpp; those of what caches hold as in kernels.hpp too."""

    F32 = 0
    F16 = 1
    I32 = 2
    I64 = 3
    BOOL = 4
    INT8 = 5  # in caches alone

    @property
    def size(self) -> int:
        """Bytes of one number."""
        return (4, 2, 4, 8, 1, 1)[self]


SCALE_BYTES = 4
"""What follows the codes of a position in an int8 cache: their scale, a float."""


class Element(IntEnum):
    """Elementwise operations; numbers as in elements.hpp."""

    COPY = 0
    ADD = 1
    SUB = 2
    MUL = 3
    DIV = 4
    MAXIMUM = 5
    MINIMUM = 6
    LT = 7
    GE = 8
    EQ = 9
    WHERE = 10
    TANH = 11
    GELU = 12
    GELU_TANH = 13
    SILU = 14
    RELU = 15


class Activation(IntEnum):
    """What follows a product; numbers as in products.hpp."""

    NONE = 0
    GELU = 1
    GELU_TANH = 2
    SILU = 3
    RELU = 4
    TANH = 5


@dataclass(eq=False)
class Storage:
    """Memory that values are views of.

    Attributes:
        size: bytes.
        address: where it lies, if it is not in the arena.

    """

    size: int
    address: int | None = None


@dataclass(frozen=True)
class Address:
    """A place in a storage, in bytes from its beginning."""

    storage: Storage
    offset: int = 0


Word: TypeAlias = int | float | Address


@dataclass
class Instruction:
    """One instruction; its words may still be changed."""

    operation: Operation
    words: list[Word] = field(default_factory=list)

    def storages(self) -> Iterable[Storage]:
        """Return what it reads and writes."""
        return (word.storage for word in self.words if isinstance(word, Address))


def bits(value: float) -> int:
    """Return a double's bits as a word."""
    word: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return word


def padded(values: Sequence[int], count: int, filler: int) -> list[int]:
    """Return values with filler in front, `count` in all."""
    return [filler] * (count - len(values)) + list(values)
