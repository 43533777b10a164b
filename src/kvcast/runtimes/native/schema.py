"""Reads `src/instructions.def`: the numbers, structs and instructions that C++ and Python share.

The file consists of macros, which C++ expands. Knows no instruction by name.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

PATH = Path(__file__).parent / "src" / "instructions.def"

Fields: TypeAlias = tuple[tuple[str, str], ...]
"""Names and types in C++, in order."""

_COMMENT = re.compile(r"//[^\n]*")
_MACRO = re.compile(
    r"(?P<kind>ENUM|STRUCT|INSTRUCTION)\(\s*(?P<name>\w+)\s*,(?:\s*(?P<type>\w+)\s*,)?"
    r"(?P<parts>(?:\s*(?:VALUE|FIELD)\([^()]*\))+)\s*\)"
)
_PART = re.compile(r"\(\s*([^(),]*?)\s*,\s*([^(),]*?)\s*\)")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The contents of the file.

    Attributes:
        enums: of each its members' numbers.
        structs: of each its fields.
        instructions: of each its fields; codes are places in this order.

    """

    enums: Mapping[str, Mapping[str, int]]
    structs: Mapping[str, Fields]
    instructions: Mapping[str, Fields]

    @classmethod
    def read(cls, path: Path) -> "Schema":
        """Read a file; raises ValueError for text that is none of the macros."""
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
