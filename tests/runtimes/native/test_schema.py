"""The file that C++ and Python share: Python refuses what it cannot read or write by it."""

from pathlib import Path
from typing import Any

import pytest

from kvcast.runtimes.native import opcodes
from kvcast.runtimes.native.opcodes import LAYOUTS, PATH, STRUCTS, Operation, Schema


@pytest.mark.parametrize("rest", ["FIELD(int, rows)", "STRUCT(Pair)", "ENUM(Sign, VALUE(MINUS))"])
def test_what_is_no_macro_or_no_pair_is_refused(tmp_path: Path, rest: str):
    copy = tmp_path / "instructions.def"
    copy.write_text(PATH.read_text() + rest)
    with pytest.raises(ValueError, match=r"no (macro|pair)"):
        Schema.read(copy)


def test_swapped_numbers_are_refused_on_import(tmp_path: Path):
    copy = tmp_path / "instructions.def"
    copy.write_text(
        PATH.read_text().replace("VALUE(LT, 7) VALUE(GE, 8)", "VALUE(GE, 7) VALUE(LT, 8)")
    )
    with pytest.raises(ValueError, match="Element"):
        opcodes.check_members(opcodes.Element, Schema.read(copy).enums["Element"])


def test_swapped_instructions_are_refused_on_import(tmp_path: Path):
    text = PATH.read_text()
    for name, other in (("(LAYER_NORM", "(x"), ("(RMS_NORM", "(LAYER_NORM"), ("(x", "(RMS_NORM")):
        text = text.replace(name, other)
    (copy := tmp_path / "instructions.def").write_text(text)
    codes = {name: code for code, name in enumerate(Schema.read(copy).instructions)}
    with pytest.raises(ValueError, match="Operation"):
        opcodes.check_members(Operation, codes)


def test_words_are_in_the_order_of_the_file_however_they_are_given():
    assert LAYOUTS[Operation.DTW].words(out=4, weights=3, frames=2, rows=1) == [1, 2, 3, 4]
    assert STRUCTS["Flat"].words(stride=2, data=1) == [1, 2]


@pytest.mark.parametrize(
    "fields",
    [
        {"table": [1, 2, 3, 4], "ids": 5, "count": 6},
        {"table": [1, 2, 3, 4], "ids": 5, "count": 6, "out": [7, 8], "scale": 9},
        {"table": [1, 2, 3, 4], "ids": 5, "scale": 6, "out": [7, 8]},
        {"table": [1, 2, 3], "ids": 5, "count": 6, "out": [7, 8]},
    ],
)
def test_fields_that_an_instruction_does_not_have_are_refused(fields: dict[str, Any]):
    with pytest.raises((KeyError, ValueError)):
        LAYOUTS[Operation.EMBEDDING].words(**fields)
