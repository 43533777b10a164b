"""Recipes of packaged models: what is found, what follows them, and the frontier measured again."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvcast
from kit.recordings import SPOKEN
from kvcast.bundle.manifest import read_bundle
from kvcast.cli import main
from kvcast.errors import UsageError
from kvcast.quantizing.finding import CHOSEN, Found, find_recipe
from kvcast.quantizing.params import QuantizeParams
from kvcast.runtimes.native.plan_builder import Matrix
from kvcast.spec.recipes import Recipe

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure_recipe.py"
DATES = "3 March 2021\n\nthe 5th of May 1999\n12 June 2004\n"
# Of what is no date the model knows little, so that tokens change easily.
ODD = (
    "It was the best of times\n31 February 1 2 3\nxyzzy 77 plugh 1066\n12 hours past noon\n0 0 0\n"
)


@pytest.fixture(scope="module")
def dates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "dates.txt"
    path.write_text(DATES, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def found(dates: Path) -> Found:
    return find_recipe(
        "demo-t5", QuantizeParams(on=str(dates), budget=0.0, positions=32, threads=1)
    )


@pytest.fixture(scope="module")
def recipe(found: Found, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recipe's file, of fewer int4 matrices than all."""
    mixed = dict(found.recipe.matrices)
    for i, name in enumerate(sorted(mixed)):
        mixed[name] = ("int4", "int8", "fp32")[i % 3]
    path = tmp_path_factory.mktemp("recipes") / "recipe.json"
    given = replace(found.recipe, matrices=mixed, self_cache="fp16", cross_cache="int8")
    path.write_text(given.text())
    return path


def test_the_recipe_is_smaller_and_its_flips_are_in_the_budget(found: Found):
    points = {point.name: point for point in found.points}
    assert points["fp32"].flips == points[CHOSEN].flips == 0
    assert points[CHOSEN].recipe == found.recipe
    assert points[CHOSEN].size < points["int8"].size < points["fp32"].size / 3
    assert found.positions == 32
    assert found.recipe.measured["bytes"] == points[CHOSEN].size
    for name, by_precision in found.seconds.items():
        assert name in found.alone
        assert all(seconds > 0 for seconds in by_precision.values())


def test_parts_cost_more_with_fewer_bits(found: Found):
    costs = [[level.cost for level in levels] for levels in found.alone.values()]
    first, second = np.mean([each for each in costs if len(each) == 2], axis=0)
    assert 0 < first < second
    head = {level.precision: level for level in found.alone["embedding.weight"]}
    assert head["int4"].saving > head["int8"].saving > 0


def formats(model: Any) -> dict[str, int]:
    constants = model.runtime.interpreter.constants
    return {part.name: each.format for part, each in constants.items() if isinstance(each, Matrix)}


def tiles(model: Any) -> str:
    digest = hashlib.sha256()
    for part, packed in model.runtime.interpreter.constants.items():
        if isinstance(packed, Matrix):
            digest.update(part.name.encode() + packed.tiles.tobytes())
    return digest.hexdigest()


def test_a_checkpoint_follows_its_recipe_and_gives_the_same_bytes_twice(recipe: Path):
    models = [kvcast.load("demo-t5", quantize=str(recipe), threads=1) for _ in range(2)]
    by_format: dict[str, set[int]] = {}
    for name, precision in Recipe.read(recipe).matrices.items():
        by_format.setdefault(precision, set()).add(formats(models[0])[name])
    assert by_format == {"fp32": {0}, "int8": {1}, "int4": {3}}
    assert tiles(models[0]) == tiles(models[1])
    kinds = {layer.kind: layer.dtype for layer in [models[0].runtime._cross]}
    assert kinds == {"cross": "int8"}
    assert models[0].generate("3 March 2021").text == "2021-03-03"


def test_so_do_exports_and_they_say_what_the_checkpoint_says(recipe: Path, tmp_path: Path):
    bundles = [
        kvcast.export_bundle("demo-t5", tmp_path / name, quantize=str(recipe)) for name in "ab"
    ]
    weights = [(each / "native/weights.safetensors").read_bytes() for each in bundles]
    assert weights[0] == weights[1]
    assert (bundles[0] / "bundle.json").read_bytes() == (bundles[1] / "bundle.json").read_bytes()
    assert Recipe.of(read_bundle(bundles[0]).recipe) == Recipe.read(recipe)
    opened = kvcast.load(bundles[0], quantize=str(recipe), threads=1)
    direct = kvcast.load("demo-t5", quantize=str(recipe), threads=1)
    assert formats(opened) == formats(direct)
    assert opened.runtime._cross.dtype == direct.runtime._cross.dtype == "int8"
    assert opened.generate("the 5th of May 1999").text == "1999-05-05"
    other = tmp_path / "other.json"
    other.write_text(replace(Recipe.read(recipe), self_cache="int8").text())
    with pytest.raises(UsageError, match="was not exported with --quantize"):
        kvcast.load(bundles[0], quantize=str(other))


def test_a_recipe_of_another_model_is_refused(recipe: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"made for demo-t5, whose files .* those of demo-unilm"):
        kvcast.load("demo-unilm", quantize=str(recipe))
    with pytest.raises(UsageError, match="run kvcast quantize demo-unilm"):
        kvcast.export_bundle("demo-unilm", tmp_path / "bundle", quantize=str(recipe))


def measured_again(document: str, folder: Path) -> str:
    path = folder / "document.json"
    path.write_text(document, encoding="utf-8")
    done = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("model", "on", "positions"),
    [
        pytest.param("demo", SPOKEN, 96, marks=pytest.mark.soak),
        pytest.param("demo-t5", None, 128, marks=pytest.mark.slow),
        pytest.param("demo-unilm", None, 128, marks=pytest.mark.slow),
    ],
)
def test_the_frontier_is_what_another_program_measures(
    model: str,
    on: Path | None,
    positions: int,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    odd = tmp_path / "odd.txt"
    odd.write_text(ODD, encoding="utf-8")
    words = ["--budget", "0.03", "--positions", str(positions), "--json", "--quiet"]
    assert main(["quantize", model, "--on", str(on or odd), *words]) == 0
    document = capsys.readouterr().out
    points = {point["name"]: point for point in json.loads(document)["points"]}
    assert points[CHOSEN]["flips"] <= 0.03
    assert points[CHOSEN]["bytes"] < points["fp32"]["bytes"] / 2
    recipes = [point for point in points.values() if point["recipe"] is not None]
    flips = [point["flips"] for point in recipes]  # the largest recipe first
    assert flips == sorted(flips)
    assert flips[-1] > 0
    assert f"0 of {len(points)} points differ" in measured_again(document, tmp_path)


@pytest.mark.slow
def test_a_wrong_share_of_flips_is_found(dates: Path, capsys, tmp_path: Path):
    words = ["--budget", "0", "--positions", "16", "--json", "--quiet"]
    assert main(["quantize", "demo-t5", "--on", str(dates), *words]) == 0
    document = json.loads(capsys.readouterr().out)
    document["points"][0]["flips"] += 1 / document["positions"]
    with pytest.raises(AssertionError, match=r"1 of .* points differ"):
        measured_again(json.dumps(document), tmp_path)
