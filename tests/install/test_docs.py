"""The documentation's Python and commands run as printed, in this process.

Each block runs in a fresh namespace, so a missing import fails.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import jsonschema
import pytest

from kit.recordings import CARDS, speech_folder
from kvcast.cli import main
from kvcast.spec.recipes import Recipe

ROOT = Path(__file__).parents[2]
PAGES = [
    (ROOT / "docs" / name).read_text("utf-8")
    for name in ("python.md", "structured-output.md", "verify.md")
]
BLOCKS = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
COMMANDS = re.search(r"```sh\n(.*?)\n```", PAGES[1], re.DOTALL)[1].splitlines()


def quick(block: str) -> bool:
    return 'load("demo", threads=2)' in block and ".live(" not in block


def test_there_are_blocks_to_run() -> None:
    assert len(BLOCKS) >= 3
    assert sum(map(quick, BLOCKS)) >= 2
    assert len(COMMANDS) >= 3


def test_the_comparison_of_programs_has_no_empty_cell() -> None:
    page = (ROOT / "docs" / "index.md").read_text("utf-8")
    section = page.partition("## Five tasks")[2].partition("\n## ")[0]
    head, _, *rows = [line.strip("|").split("|") for line in re.findall(r"^\|.*\|$", section, re.M)]
    assert len(rows) > 5
    assert all(len(row) == len(head) and all(map(str.strip, row)) for row in rows)


@pytest.mark.parametrize(
    "block",
    [
        # What asks for other bundles than the README's first command exports takes longer, and so
        # does live speech.
        pytest.param(block, id=str(i), marks=[] if quick(block) else pytest.mark.slow)
        for i, block in enumerate(BLOCKS)
    ],
)
def test_block_runs(block, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    exec(block, {"__name__": "__main__"})
    printed = capfd.readouterr()
    assert printed.err == ""
    assert printed.out.strip()


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_structured_output_matches_the_commands_grammar(command, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(command)
    assert program == "kvcast"
    assert main([*words, "--quiet"]) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    if "--json-schema" in words:
        schema = json.loads(words[words.index("--json-schema") + 1])
        jsonschema.validate(json.loads(printed.out), schema)
    elif "--regex" in words:
        assert re.fullmatch(words[words.index("--regex") + 1], printed.out.strip())
    else:
        assert re.fullmatch(r"[0-9]{1,3}( \+ [0-9]{1,3})*( \+)?", printed.out.strip())


PAGE = (Path(__file__).parents[2] / "docs" / "quantize.md").read_text("utf-8")
QUANTIZING = re.search(r"```\n(kvcast quantize .*?)\n```", PAGE, re.DOTALL)[1].splitlines()


@pytest.mark.slow
def test_a_recipe_is_found_followed_and_exported(tmp_path, capsys, monkeypatch):
    """Of a small model, in place of the packaged one, whose search takes minutes."""
    monkeypatch.chdir(tmp_path)
    model = speech_folder("moonshine", tmp_path / "small")
    for name, card in zip(("talk.wav", "other.wav"), CARDS, strict=False):
        shutil.copyfile(card, tmp_path / name)
    printed = []
    for command in QUANTIZING:
        program, *words = shlex.split(command)
        assert program == "kvcast"
        words = [str(model) if word == "demo" else word for word in words]
        quiet = [] if words[0] == "export" else ["--quiet"]  # which prints no list of files
        assert main([*words, *quiet]) == 0
        printed.append(capsys.readouterr().out)
    found, transcript, files = printed
    [flips] = re.findall(r"chosen +([\d.]+)%", found)
    assert float(flips) <= 1
    precisions = set(Recipe.read(tmp_path / "recipe.json").matrices.values())
    assert precisions & {"int8", "int4"}
    assert "</svg>" in (tmp_path / "frontier.svg").read_text("utf-8")
    assert "native/weights.safetensors" in files
    assert main(["transcribe", "other.wav", "--model", "bundle", "--quiet"]) == 0
    assert capsys.readouterr().out == transcript != ""
