"""Reads a plan's words back: its instructions, with their fields by name.

`src/instructions.def` says what each word is. Knows no instruction by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvcast.runtimes.native.building import NOTHING, Plan
from kvcast.runtimes.native.instructions import Operation
from kvcast.runtimes.native.schema import SCHEMA

_ARRAYS = "Arrays"
_LISTS = {"Dims": 4, "Axes": 3}


@dataclass(frozen=True)
class Listed:
    """An instruction: fields are numbers, addresses, lists of numbers, or a struct's fields.

    An address is None where nothing is there, and in the arena; a float is a double's bits.
    """

    operation: Operation
    fields: Mapping[str, Any]

    def addresses(self) -> Iterator[tuple[str, int]]:
        """Yield the names of pointers and their addresses; of a struct's, `field.member`."""
        for name, value in self.fields.items():
            yield from _addresses(name, value)


def listed(plan: Plan) -> Iterator[Listed]:
    """Yield the instructions of a plan."""
    words: list[int] = plan.words.tolist()
    arena = set(plan.in_arena.tolist())
    first = 0
    while first < len(words):
        operation, count = Operation(words[first]), words[first + 1]
        reader = _Reader(words, first + 2, arena)
        fields = {name: reader.field(kind) for name, kind in SCHEMA.instructions[operation.name]}
        first += 2 + count
        if reader.at != first:
            raise AssertionError(f"{operation.name} has other words than instructions.def says")
        yield Listed(operation, fields)


class _Reader:
    def __init__(self, words: list[int], at: int, arena: set[int]) -> None:
        self.at = at
        self._words = words
        self._arena = arena

    def field(self, kind: str) -> Any:
        if kind in SCHEMA.structs:
            return {name: self.field(member) for name, member in SCHEMA.structs[kind]}
        if kind == _ARRAYS:
            return [self.field("Array") for _ in range(self._word())]
        if kind in _LISTS:
            return [self._word() for _ in range(_LISTS[kind])]
        if not kind.endswith("*"):
            return self._word()
        there = self.at not in self._arena
        address = self._word()
        return Place(address) if there and address != NOTHING else None

    def _word(self) -> int:
        self.at += 1
        return self._words[self.at - 1]


class Place(int):
    """Where something outside of the arena lies."""


def _addresses(name: str, value: Any) -> Iterator[tuple[str, int]]:
    match value:
        case Place():
            yield name, value
        case Mapping():
            for member, part in value.items():
                yield from _addresses(f"{name}.{member}", part)
        case list():
            for part in value:
                yield from _addresses(name, part)
