"""`kvcast quantize`: output and files of a scripted search, and refusals."""

import json
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from cli.fakes import schema
from kvcast.cli import main
from kvcast.quantizing import finding
from kvcast.quantizing.finding import CHOSEN, Found, Measured
from kvcast.quantizing.params import QuantizeParams
from kvcast.quantizing.search import Level, Timed
from kvcast.spec.recipes import Recipe

SCHEMA = schema("quantize")
MATRICES = {"a.weight": "fp32", "b.weight": "fp32"}
WHOLE = Recipe(model="<tiny>", sha256="0" * 64, matrices=MATRICES)
RECIPE = Recipe(
    model="<tiny>",
    sha256="0" * 64,
    matrices={**MATRICES, "b.weight": "int4"},
    self_cache="fp16",
    measured={"flips": 0.01},
)


def point(name: str, recipe: Recipe | None, flips: float, size: int) -> Measured:
    token = Timed(median=size / 1e9, least=size / 2e9, most=size / 5e8)
    return Measured(name=name, recipe=recipe, flips=flips, size=size, token=token)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, QuantizeParams]]:
    calls: list[tuple[str, QuantizeParams]] = []

    def find(model: str, params: QuantizeParams) -> Found:
        calls.append((model, params))
        return Found(
            recipe=RECIPE,
            points=[
                point("fp32", WHOLE, 0.0, 8_000_000),
                point(CHOSEN, RECIPE, 0.01, 3_500_000),
                point("int4", None, 0.05, 2_000_000),
            ],
            positions=200,
            alone={"a.weight": [Level(precision="int8", saving=0.2, cost=0.001)]},
            seconds={"a.weight": {"fp32": 1e-5, "int8": 3e-6}},
        )

    monkeypatch.setattr(finding, "find_recipe", find)
    return calls


def test_the_frontier_is_a_table(searches, capsys):
    assert main(["quantize", "tiny", "--budget", "0.02", "--on", "talk.wav"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "          flips  MB ms a token (least to most)",
        "    fp32  0.00% 8.0       8.00 (4.00 to 16.00)",
        "  chosen  1.00% 3.5       3.50  (1.75 to 7.00)",
        "    int4  5.00% 2.0       2.00  (1.00 to 4.00)",
        "matrices: 1 fp32, 1 int4; self caches fp16, cross caches fp32",
        "200 tokens compared",
    ]
    [(model, params)] = searches
    assert (model, params.budget, params.on, params.positions) == ("tiny", 0.02, "talk.wav", 512)


@pytest.mark.usefixtures("searches")
def test_files_and_a_document_are_written(tmp_path: Path, capsys):
    recipe, drawing = tmp_path / "recipe.json", tmp_path / "frontier.svg"
    files = ["--output", str(recipe), "--svg", str(drawing)]
    assert main(["quantize", "tiny", "--budget", "0.02", "--on", "a.wav", "--json", *files]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert Recipe.read(recipe) == Recipe.of(document["recipe"]) == RECIPE
    assert [each["bytes"] for each in document["points"]] == [8_000_000, 3_500_000, 2_000_000]
    image = ElementTree.fromstring(drawing.read_text("utf-8"))
    marks = {
        mark.find("{*}title").text: (float(mark.get("cx")), float(mark.get("cy")))
        for mark in image.iter("{http://www.w3.org/2000/svg}circle")
    }
    assert list(marks) == ["fp32: 8.0 MB, 0.00%", "chosen: 3.5 MB, 1.00%", "int4: 2.0 MB, 5.00%"]
    (whole, none), (chosen, some), (small, most) = marks.values()
    assert small < chosen < whole
    assert most < some < none  # upwards
    assert (whole - chosen) / (chosen - small) == pytest.approx(4.5 / 1.5, rel=0.01)
    assert image.find("{*}title").text == "<tiny>: flips and bytes"


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["--on", "a.wav", "--budget", "1%"], 2, "--budget: must be a number"),
        (["--on", "a.wav", "--budget", "1.5"], 2, "--budget: must be a number of at least 0"),
        (["--budget", "0.01"], 2, "--on is missing: name a recording, or a text"),
        (["--on", "a.wav", "-o", "recipe.txt"], 2, "--output must end in .json, not recipe.txt"),
        (["--on", "a.wav", "--svg", "."], 74, "cannot write .: Is a directory"),
        (["--on", "a.wav", "--saving", "money"], 2, "--saving: invalid choice: 'money'"),
        (["--on", "nothing.txt"], 66, "nothing.txt: there is no such file"),
    ],
)
def test_mistakes_are_one_line(words: list[str], code: int, problem: str, error_line):
    assert main(["quantize", "demo-t5", "--quiet", *words]) == code
    assert problem in error_line()


def test_a_bundle_is_no_checkpoint(tmp_path: Path, capsys):
    (tmp_path / "bundle.json").write_text("{}")
    assert main(["quantize", str(tmp_path), "--on", "a.wav"]) == 2
    assert "is a bundle: give the checkpoint that it was exported from" in capsys.readouterr().err


def test_a_recipe_that_is_not_there_is_missing(capsys):
    for command in (["generate", "hello", "--model", "demo-t5"], ["export", "demo-t5", "-o", "b"]):
        assert main([*command, "--quantize", "nothing.json"]) == 66
        assert "no recipe nothing.json: kvcast quantize writes one" in capsys.readouterr().err
    assert main(["generate", "hello", "--quantize", "int2"]) == 2
    assert "invalid choice: 'int2' (choose from" in (told := capsys.readouterr().err)
    assert "8da4w" in told
    assert "RECIPE.json" in told
