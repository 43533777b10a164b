"""The interpreter's opcodes and their operands, read from `src/instructions.def` as C++ does.

Enumerations here are compared with it on import. Imports no NumPy, for the build of a wheel. An
operand in the arena is an `Address`, whose word is known once the arena has been laid out.
"""

import itertools
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias


class Operation(IntEnum):
    PRODUCT = 0
    ROUND = 1
    LAYER_NORM = 2
    RMS_NORM = 3
    GATED = 4
    EMBEDDING = 5
    FILE_EMBEDDING = 6
    ELEMENTS = 7
    GATHER = 8
    SELF_ATTENTION = 9
    CROSS_ATTENTION = 10
    WHOLE_ATTENTION = 11
    MIXTURE = 12
    STORE = 13
    ALIGNMENT_SCORES = 14
    ATTENTION_BY_TOKEN = 15
    TOKEN_PROBABILITIES = 16
    DTW = 17
    SHORT_CONVOLUTION = 18
    REWRITE_STATES = 19
    GATED_RECURRENCE = 20
    CHANNEL_CONVOLUTION = 21
    RELATIVE_SCORES = 22
    ROTATE = 23
    GROUP_NORM = 24
    WINDOW_ATTENTION = 25
    SOFTMAX = 26
    HEAD_PRODUCTS = 27
    SELECT_POSITIONS = 28
    LATENT_ATTENTION = 29
    EXPANDED_ATTENTION = 30
    MOMENTS = 31


class Dtype(IntEnum):
    """Dtypes of arrays and caches: `Dtype` and `Number` of instructions.def."""

    F32 = 0
    F16 = 1
    I32 = 2
    I64 = 3
    BOOL = 4
    INT8 = 5  # in caches alone

    @property
    def size(self) -> int:
        return (4, 2, 4, 8, 1, 1)[self]


SCALE_BYTES = 4
"""Bytes of the scale, a float, after the codes of a position in an int8 cache."""


class Element(IntEnum):
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
    ASINH = 16


class Activation(IntEnum):
    NONE = 0
    GELU = 1
    GELU_TANH = 2
    SILU = 3
    RELU = 4
    TANH = 5
    SIGMOID = 6


@dataclass(eq=False)
class Storage:
    size: int
    address: int | None = None


@dataclass(frozen=True)
class Address:
    storage: Storage
    offset: int = 0


Word: TypeAlias = int | float | Address


Words: TypeAlias = Word | Sequence[Word]
"""One field: a word, or the words of a struct."""

_SIZES = {"Dims": 4, "Axes": 3, "Arrays": None}


def _size(type_: str) -> int | None:
    """Return the number of words of a field; None if it varies."""
    if type_ in SCHEMA.structs:
        return sum(_size(member) or 0 for _, member in SCHEMA.structs[type_])
    return _SIZES.get(type_, 1)


Fields: TypeAlias = tuple[tuple[str, str], ...]
"""Names and types in C++, in order."""


class Layout:
    def __init__(self, owner: str, fields: Fields) -> None:
        self._owner = owner
        names = [name for name, _ in fields]
        self._sizes = [_size(type_) for _, type_ in fields]
        self._values = itemgetter(*names)
        firsts = itertools.accumulate((size or 0 for size in self._sizes), initial=0)
        self.places = dict(zip(names, firsts, strict=False))

    def words(self, /, **fields: Words) -> list[Word]:
        """Return the words of all fields; raises KeyError or ValueError if one is wrong."""
        if len(fields) != len(self._sizes):
            raise ValueError(f"{self._owner} has the fields {', '.join(self.places)}")
        words: list[Word] = []
        for value, size in zip(self._values(fields), self._sizes, strict=True):
            if size == 1:
                words.append(value)
                continue
            words += value
            if size is not None and len(value) != size:
                raise ValueError(f"a field of {self._owner} has {len(value)} words and not {size}")
        return words


@dataclass
class Instruction:
    operation: Operation
    words: list[Word]

    def word(self, name: str) -> Word:
        return self.words[LAYOUTS[self.operation].places[name]]

    def replace(self, name: str, word: Word) -> None:
        self.words[LAYOUTS[self.operation].places[name]] = word

    def storages(self) -> list[Storage]:
        return [word.storage for word in self.words if isinstance(word, Address)]


def bits(value: float) -> int:
    word: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return word


def padded(values: Sequence[int], count: int, filler: int) -> list[int]:
    return [filler] * (count - len(values)) + list(values)


def check_members(enum: type[IntEnum], *shared: Mapping[str, int]) -> None:
    """Raise ValueError if an enumeration differs from the C++ one."""
    expected = {name: number for members in shared for name, number in members.items()}
    if {member.name: int(member) for member in enum} != expected:
        raise ValueError(f"{enum.__name__} is not as in instructions.def")


PATH = Path(__file__).parent / "src" / "instructions.def"

_COMMENT = re.compile(r"//[^\n]*")
_MACRO = re.compile(
    r"(?P<kind>ENUM|STRUCT|INSTRUCTION)\(\s*(?P<name>\w+)\s*,(?:\s*(?P<type>\w+)\s*,)?"
    r"(?P<parts>(?:\s*(?:VALUE|FIELD)\([^()]*\))+)\s*\)"
)
_PART = re.compile(r"\(\s*([^(),]*?)\s*,\s*([^(),]*?)\s*\)")


@dataclass(frozen=True, kw_only=True)
class Schema:
    enums: Mapping[str, Mapping[str, int]]
    structs: Mapping[str, Fields]
    instructions: Mapping[str, Fields]

    @classmethod
    def read(cls, path: Path) -> "Schema":
        """Read a file; raises ValueError for text outside of macros."""
        text = _COMMENT.sub("", path.read_text(encoding="utf-8"))
        if rest := _MACRO.sub("", text).strip():
            raise ValueError(f"{path} has a part that is no macro: {rest[:80]!r}")
        enums: dict[str, dict[str, int]] = {}
        structs: dict[str, Fields] = {}
        instructions: dict[str, Fields] = {}
        for macro in _MACRO.finditer(text):
            parts = _PART.findall(macro["parts"])
            if len(parts) != macro["parts"].count("("):
                raise ValueError(f"{path} has a part of {macro['name']} that is no pair")
            if macro["kind"] == "ENUM":
                enums[macro["name"]] = {name: int(number) for name, number in parts}
                continue
            fields = tuple((name, " ".join(type_.split())) for type_, name in parts)
            (structs if macro["kind"] == "STRUCT" else instructions)[macro["name"]] = fields
        return cls(enums=enums, structs=structs, instructions=instructions)

    @property
    def text(self) -> str:
        """The contents in the form of a library's `kvcast_schema`."""
        return "".join(self._definitions())

    def _definitions(self) -> Iterator[str]:
        for name, members in self.enums.items():
            yield f"{name}{{" + "".join(f"{key}={value};" for key, value in members.items()) + "}"
        for of in (self.structs, self.instructions):
            for name, fields in of.items():
                yield f"{name}{{" + "".join(f"{type_} {key};" for key, type_ in fields) + "}"


SCHEMA = Schema.read(PATH)


check_members(Operation, {name: code for code, name in enumerate(SCHEMA.instructions)})
check_members(Dtype, SCHEMA.enums["Dtype"], SCHEMA.enums["Number"])
check_members(Element, SCHEMA.enums["Element"])
check_members(Activation, SCHEMA.enums["Activation"])

STRUCTS = {name: Layout(name, fields) for name, fields in SCHEMA.structs.items()}
LAYOUTS = {code: Layout(code.name, SCHEMA.instructions[code.name]) for code in Operation}
