"""The commands of docs/quantize.md run as they are printed, with recordings of those names."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from kit.recordings import CARDS
from kvcast.cli import main
from kvcast.spec.recipes import Recipe

PAGE = (Path(__file__).parents[2] / "docs" / "quantize.md").read_text("utf-8")
COMMANDS = re.search(r"```\n(kvcast quantize .*?)\n```", PAGE, re.DOTALL)[1].splitlines()


@pytest.mark.slow
def test_a_recipe_is_found_followed_and_exported(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, card in zip(("talk.wav", "other.wav"), CARDS, strict=False):
        shutil.copyfile(card, tmp_path / name)
    printed = []
    for command in COMMANDS:
        program, *words = shlex.split(command)
        assert program == "kvcast"
        assert main([*words, "--quiet"]) == 0
        printed.append(capsys.readouterr().out)
    found, heard, files = printed
    [flips] = re.findall(r"chosen +([\d.]+)%", found)
    assert float(flips) <= 1
    precisions = set(Recipe.read(tmp_path / "recipe.json").matrices.values())
    assert precisions & {"int8", "int4"}
    assert "</svg>" in (tmp_path / "frontier.svg").read_text("utf-8")
    assert "native/weights.safetensors" in files
    assert main(["transcribe", "other.wav", "--model", "bundle", "--quiet"]) == 0
    assert capsys.readouterr().out == heard != ""
