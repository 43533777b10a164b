"""Recipes: what their files hold, and every file that is none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvcast.errors import InputMissingError, InputOutputError, KvcastError, UsageError
from kvcast.spec.recipes import RECIPE, Recipe
from kvcast.spec.runtimes import RUNTIMES, PrecisionRequest

GIVEN = Recipe(
    model="tiny",
    sha256="0123456789abcdef" * 4,
    matrices={"b.weight": "int4", "a.weight": "int8", "c.weight": "fp32"},
    self_cache="fp16",
    cross_cache="int8",
    measured={"flips": 0.01, "on": "talk.wav"},
)


def written(folder: Path, content: bytes) -> Path:
    path = folder / "recipe.json"
    path.write_bytes(content)
    return path


def test_a_file_holds_all_of_a_recipe(tmp_path: Path):
    path = written(tmp_path, GIVEN.text().encode())
    read = Recipe.read(path)
    assert read == GIVEN
    assert read.measured == GIVEN.measured
    assert list(read.fields()["matrices"]) == ["a.weight", "b.weight", "c.weight"]
    assert read.text() == GIVEN.text()
    assert not read.exact
    assert replace(read, matrices={"a.weight": "fp32"}).exact


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 2}, "this kvcast reads kvcast-recipe 1"),
        ({"more": 1}, "it must be an object of format, version, model"),
        ({"model": {"name": "tiny"}}, "model must be an object of name, sha256"),
        ({"model": {"name": "", "sha256": "0" * 64}}, "the model's name must be a string of 1"),
        ({"model": {"name": "tiny", "sha256": "0" * 63}}, "must be 64 hexadecimal digits"),
        ({"matrices": {}}, "matrices must be an object of 1 to 20000 names"),
        ({"matrices": {"a" * 1001: "int8"}}, "a matrix's name must be a string of 1 to 1000"),
        ({"matrices": {"a": "int2"}}, "a matrix's precision must be one of fp32, int8, int4"),
        ({"matrices": {"a": ["int8"]}}, "a matrix's precision must be one of fp32, int8, int4"),
        ({"caches": {"self": "int4", "cross": "fp32"}}, "must be one of fp32, fp16, int8"),
        ({"caches": {"self": "fp32"}}, "caches must be an object of self, cross"),
        ({"measured": {"flips": [1]}}, "measured must have numbers and short strings alone"),
        ({"measured": {"flips": float("inf")}}, "measured must have numbers and short strings"),
        ({"measured": {str(i): 0 for i in range(101)}}, "at most 100 names"),
    ],
)
def test_another_file_is_one_line(change: dict, problem: str, tmp_path: Path):
    path = written(tmp_path, json.dumps(GIVEN.fields() | change).encode())
    with pytest.raises(KvcastError, match=problem) as caught:
        Recipe.read(path)
    assert str(caught.value).startswith(f"{path} is no recipe: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff{}", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[1]", "it must be an object of"),
        (b" " * (4 << 20) + b"{}", "it has more than 4194304 bytes"),
    ],
)
def test_so_is_a_file_without_an_object(content: bytes, problem: str, tmp_path: Path):
    with pytest.raises(KvcastError, match=problem):
        Recipe.read(written(tmp_path, content))


def test_a_file_that_cannot_be_read_has_its_exit_code(tmp_path: Path):
    with pytest.raises(InputMissingError, match=r"no recipe .*: kvcast quantize writes one"):
        Recipe.read(tmp_path / "nothing.json")
    with pytest.raises(InputOutputError, match="cannot read"):
        Recipe.read(tmp_path)


def test_a_runtime_follows_a_recipe_or_says_which_does(tmp_path: Path):
    path = str(written(tmp_path, GIVEN.text().encode()))
    native = RUNTIMES["native"]
    chosen = native.choose_precision(PrecisionRequest(quantize=path))
    assert (chosen.quantize, chosen.cache, chosen.cross) == (RECIPE, "fp16", "int8")
    assert chosen.recipe == GIVEN
    assert not chosen.exact
    assert native.choose_opening(PrecisionRequest(quantize=path)) == chosen
    with pytest.raises(UsageError, match=r"keeps self caches in fp16: drop --cache int8"):
        native.choose_precision(PrecisionRequest(quantize=path, cache="int8"))
    for name in set(RUNTIMES) - {"native"}:
        with pytest.raises(UsageError, match="follows no recipe: use --runtime native"):
            RUNTIMES[name].choose_precision(PrecisionRequest(quantize=path))


def test_a_recipe_of_fp32_alone_is_fp32(tmp_path: Path):
    whole = replace(GIVEN, matrices={"a.weight": "fp32"}, self_cache="fp32", cross_cache="fp32")
    path = str(written(tmp_path, whole.text().encode()))
    assert RUNTIMES["native"].choose_precision(PrecisionRequest(quantize=path)).exact
