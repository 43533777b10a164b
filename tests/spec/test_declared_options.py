"""An option that is declared once arrives as a keyword, with its type, default, bounds and help."""

import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvcast.errors import UsageError
from kvcast.keywords import keywords_of
from kvcast.options import FILLED, Bounds, Choice, Group, Params

ROOT = Path(__file__).parents[2]
COLOURS = ["red", "green"]
PAINT = Group("paint")
WHERE = Group("where")


@dataclass(frozen=True, kw_only=True)
class Paint(Params):
    """How to paint."""

    coats: int = PAINT(2, least=1)("how often")
    share: float | None = PAINT(None, above=0, most=0.5)("of water")
    colour: str = PAINT("red", check=Choice(lambda: COLOURS), metavar="C")(
        lambda: f"one of {', '.join(COLOURS)}"
    )
    rooms: str | Sequence[str] = WHERE((), check=FILLED)("which")
    dry: bool = WHERE(True)("wait until dry")
    on_done: Callable[[], None] = print  # for Python alone


@dataclass(frozen=True, kw_only=True)
class Outside(Paint):
    """How to paint what gets wet."""

    primer: bool = Group("wet")(False)("begin with a primer")


class House:
    @keywords_of(Outside)
    def paint(self, wall: str, params: Outside) -> tuple[str, Outside]:
        """Paint a wall.

        Args:
            wall: which.
            params: as keywords.

        Raises:
            UsageError: there is no such wall.

        """
        return wall, params

    @keywords_of(Paint)
    def again(self, wall: str = "north", *, params: Paint) -> tuple[str, Paint]:
        """Paint it again."""
        return wall, params


@keywords_of(Paint)
def paint(wall: str, params: Paint) -> tuple[str, Paint]:
    return wall, params


NAMES = ["coats", "share", "colour", "rooms", "dry", "on_done"]


def test_a_signature_shows_the_fields_with_types_and_defaults():
    signature = inspect.signature(House.paint)
    assert str(signature).startswith("(self, wall: str, *, coats: int = 2, share: float | None = N")
    assert list(signature.parameters)[2:] == [*NAMES, "primer"]
    again = inspect.signature(House().again)
    assert list(again.parameters) == ["wall", *NAMES]
    assert again.parameters["wall"].default == "north"
    assert signature.return_annotation == tuple[str, Outside]


def test_help_has_a_line_for_each_option():
    assert (
        inspect.getdoc(House.paint)
        == """Paint a wall.

Args:
    wall: which.
    coats: how often (default: 2)
    share: of water (default: none)
    colour: one of red, green (default: red)
    rooms: which (default: none)
    dry: wait until dry (default: on)
    primer: begin with a primer (default: off)

Raises:
    UsageError: there is no such wall."""
    )
    assert inspect.getdoc(House.again) == "Paint it again."


def test_keywords_become_the_dataclass():
    assert House().paint("north", coats=3, primer=True) == ("north", Outside(coats=3, primer=True))
    assert House().paint(wall="north") == ("north", Outside())
    assert House().again(dry=False) == ("north", Paint(dry=False))
    assert House().again("south") == ("south", Paint())
    assert paint("east", on_done=len) == ("east", Paint(on_done=len))
    assert paint("east", rooms=["a", "b"]) == ("east", Paint(rooms=["a", "b"]))


@pytest.mark.parametrize("name", ["primer", "params", "coat"])
def test_a_keyword_that_is_not_declared_is_pythons_own_error(name: str):
    with pytest.raises(TypeError, match=name):
        paint("east", **{name: Paint()})


REFUSED = [
    ({"coats": 0}, "coats must be 1 or more, not 0"),
    ({"coats": 1.5}, "coats must be a whole number, not 1.5"),
    ({"coats": "3"}, "coats must be a whole number, not '3'"),
    ({"coats": None}, "coats must be a whole number, not None"),
    ({"share": 0}, "share must be above 0 and at most 0.5, not 0"),
    ({"share": 0.6}, "share must be above 0 and at most 0.5, not 0.6"),
    ({"share": float("nan")}, "share must be above 0 and at most 0.5, not nan"),
    ({"share": "half"}, "share must be a number, not 'half'"),
    ({"colour": "blue"}, "colour must be one of red, green, not 'blue'"),
    ({"rooms": ""}, "rooms is empty"),
    ({"rooms": ["hall", ""]}, "rooms is empty"),
    ({"rooms": "\udcff"}, "rooms is not valid UTF-8"),
    ({"rooms": [3]}, "rooms must be a string, not 3"),
    ({"rooms": 3}, "rooms must be a string, not 3"),
    ({"rooms": ["hall", True]}, "rooms must be a string, not True"),
    ({"coats": True}, "coats must be a whole number, not True"),
    ({"share": False}, "share must be a number, not False"),
    ({"dry": 1}, "dry must be True or False, not 1"),
    ({"dry": "yes"}, "dry must be True or False, not 'yes'"),
    ({"dry": None}, "dry must be True or False, not None"),
]


@pytest.mark.parametrize(("options", "says"), REFUSED)
def test_a_value_that_an_option_does_not_take_is_refused_in_one_line(
    options: dict[str, Any], says: str
):
    with pytest.raises(UsageError) as error:
        Paint(**options)
    assert str(error.value) == says
    with pytest.raises(UsageError, match="^" + says.split(" ")[0]):
        House().paint("north", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"coats": 1},
        {"coats": np.int64(4)},
        {"share": 0.5},
        {"share": np.float32(0.25)},
        {"share": None},
        {"rooms": "hall"},
        {"rooms": ("hall", "attic")},
    ],
)
def test_a_value_at_its_bounds_is_taken(options: dict[str, Any]):
    assert dataclasses.asdict(Paint(**options)).items() >= options.items()


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Bounds(), "a finite number"),
        (Bounds(least=1), "1 or more"),
        (Bounds(most=9), "at most 9"),
        (Bounds(least=0, most=1), "from 0 to 1"),
        (Bounds(above=0), "above 0"),
        (Bounds(above=0, most=1), "above 0 and at most 1"),
    ],
)
def test_bounds_in_words(bounds: Bounds, words: str):
    assert str(bounds) == words


def test_what_differs_from_the_defaults_is_known_by_group():
    assert Paint(coats=3, dry=False).changed("paint") == ["coats"]
    assert Paint(coats=3, dry=False).changed("where") == ["dry"]
    assert Paint().changed("paint") == []


def test_a_table_that_grows_is_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules[__name__], "COLOURS", [*COLOURS, "blue"])
    assert Paint(colour="blue").colour == "blue"
    assert [o.help for o in Paint.declared() if o.name == "colour"] == ["one of red, green, blue"]


def test_params_can_be_sent_to_another_process():
    params = Outside(coats=7, rooms=("hall",))
    assert pickle.loads(pickle.dumps(params)) == params


TYPED = """
from kvcast.keywords import keywords_of
from kvcast.options import Group, Params
from collections.abc import Callable, Sequence
from dataclasses import dataclass

A = Group("a")

@dataclass(frozen=True, kw_only=True)
class Paint(Params):
    coats: int = A(2, least=1)("b")
    rooms: str | Sequence[str] = A(())("b")

class House:
    @keywords_of(Paint)
    def paint(self, wall: str, params: Paint) -> int:
        return params.coats
    @keywords_of(Paint)
    def again(self, wall: str = "north", *, params: Paint) -> int:
        return params.coats

@keywords_of(Paint)
def paint(wall: str, params: Paint) -> int:
    return params.coats

@keywords_of(Paint)
def move(wall: str, to: str, params: Paint) -> int:
    return params.coats

house = House()
number: int = house.paint("a", coats=3, rooms=["b"]) + house.again(coats=1) + house.again("a")
number = paint("a", rooms="b") + move("a", "b", coats=3) + house.paint("a")
"""
MISTAKES = [
    'house.paint("a", coats="3")',
    'house.paint("a", coat=3)',
    "house.paint(3)",
    "house.paint()",
    'house.again("a", coats="3")',
    "house.again(coat=3)",
    "house.again(3)",
    'paint("a", rooms=3)',
    'paint("a", params=Paint())',
    "paint(coats=3)",
    'move("a", coats=3)',
    'text: str = house.paint("a")',
]


@pytest.mark.slow
def test_type_checkers_check_the_keywords(tmp_path: Path):
    file = tmp_path / "house.py"
    file.write_text(TYPED + "\n".join(MISTAKES) + "\n")
    # In the repository, with its settings, so that both share a cache.
    words = [sys.executable, "-m", "mypy", "--no-error-summary", str(file)]
    report = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    lines = {int(line.split(":")[1]) for line in report.splitlines() if ": error:" in line}
    first = TYPED.count("\n") + 1
    assert lines == set(range(first, first + len(MISTAKES)))
