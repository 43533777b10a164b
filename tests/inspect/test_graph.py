"""`kvcast inspect graph`: its tables, its JSON object and its picture show what was read."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from kit.dimensions import SMALL
from kit.models import bundle
from kvcast.bundle.manifest import read_bundle
from kvcast.cli import main
from kvcast.inspect.graph import BAR, parts_of
from kvcast.runtimes.copies import traffic_of
from kvcast.runtimes.traffic import CallSizes

SCHEMA = Path(__file__).parents[2] / "docs" / "graph.schema.json"
SVG = "{http://www.w3.org/2000/svg}"
SIZES = ["--length", "9", "--rows", "2", "--new", "1"]


@pytest.fixture
def folder() -> Path:
    return bundle(SMALL)


@pytest.fixture
def programs(folder: Path):
    return traffic_of(folder, read_bundle(folder), CallSizes(rows=2, length=9)).programs


def test_the_object_has_the_schemas_form_and_what_was_read(
    folder: Path, programs, capsys: pytest.CaptureFixture[str]
):
    assert main(["inspect", "graph", str(folder), *SIZES, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    jsonschema.validate(shown, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert shown["call"] == {"rows": 2, "length": 9, "new": 1, "source": SMALL.source_positions}
    assert shown["precision"] == {"quantize": "none", "dtype": "fp32", "cache": "fp32"}
    assert shown["copies"] == []
    for program, read in zip(shown["programs"], programs, strict=True):
        assert program["total"]["weights"] == read.weights
        assert program["total"]["read"] == sum(cache.read for cache in read.caches)
        assert [layer["operators"] for layer in program["layers"]] == [
            dict(layer.operators) for layer in read.layers
        ]


def test_bars_are_as_long_as_layers_read_and_write(
    folder: Path, programs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    target = tmp_path / "graph.svg"
    assert main(["inspect", "graph", str(folder), *SIZES, "--svg", str(target)]) == 0
    drawing = ElementTree.fromstring(target.read_text(encoding="utf-8"))
    bars = [
        (float(bar.attrib["width"]), bar.find(f"{SVG}title").text)
        for bar in drawing.iter(f"{SVG}rect")
        if bar.find(f"{SVG}title") is not None
    ]
    expected = []
    for program in programs:
        most = max(sum(parts_of(layer).values()) for layer in program.layers)
        for layer in program.layers:
            expected += [
                (BAR * count / most, f"{name}: {count} B")
                for name, count in parts_of(layer).items()
                if count
            ]
    assert [told for _, told in bars] == [told for _, told in expected]
    for (width, _), (wanted, _) in zip(bars, expected, strict=True):
        assert width == pytest.approx(wanted, abs=0.01)
    assert "No cache is copied." in capsys.readouterr().out


def test_layers_that_do_the_same_share_a_row(capsys: pytest.CaptureFixture[str], folder: Path):
    assert main(["inspect", "graph", str(folder)]) == 2  # of 32 positions
    problem = capsys.readouterr().err
    assert problem.startswith("kvcast: a cache of 64 positions and 1 new ones are more than")
    assert main(["inspect", "graph", str(folder), *SIZES]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^all +\d", shown, re.MULTILINE)
    assert "linear in place, cross read" in shown


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["--source", "3"], 2, "no source of various lengths: drop --source"),
        (["--quantize", "int8"], 2, "was exported with --quantize none"),
        (["--rows", "0"], 2, "must be a whole number from 1"),
    ],
)
def test_a_mistake_is_one_line(words, code: int, problem: str, folder: Path, error_line):
    assert main(["inspect", "graph", str(folder), "--length", "9", *words]) == code
    assert problem in error_line()
    assert main(["inspect", "graph", "nowhere/at/all"]) == 66
    assert "nowhere/at/all" in error_line()
