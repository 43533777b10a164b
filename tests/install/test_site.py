"""The documentation's site: its pages, links, pictures and commands.

Links lead to files and headings that exist, in the repository and on the site alike, whose anchors
are made as GitHub makes them.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvcast
from kvcast.checkpoints.packaged import REQUIREMENTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
EVERY = [*PAGES, *sorted((DOCS / "history").glob("*.md")), *sorted(ROOT.glob("*.md"))]
OWN = "https://github.com/kvcast/kvcast/blob/main/"
DATES = {"index": 0, "concepts": 0, "native": 1, "onnx": 2, "aoti": 2}
"""How often the commands and the Python of each page that runs here rewrite a date."""


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*?)\s*$", prose(page), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def broken(page: Path, text: str) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.removeprefix(OWN).partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        start = ROOT if target.startswith(OWN) else page.parent
        file = (start / path).resolve() if path else page
        inside = DOCS if page.is_relative_to(DOCS) and start != ROOT else ROOT
        if (
            not file.is_file()
            or not file.is_relative_to(inside)
            or (anchor and anchor not in anchors(file))
        ):
            yield target


@pytest.mark.parametrize("page", EVERY, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page, prose(page))) == []


def test_a_broken_link_is_found() -> None:
    page = DOCS / "index.md"
    wrong = ["nowhere.md", "cli.md#nowhere", "aoti/nowhere.cpp", "../README.md", "aoti"]
    right = ["cli.md#kvcast-export", f"{OWN}ARCHITECTURE.md#how-to-add", "https://example.org/x"]
    text = " ".join(f"[x]({target})" for target in [*wrong, *right, f"{OWN}NOWHERE.md"])
    assert list(broken(page, text)) == [*wrong, f"{OWN}NOWHERE.md"]


def test_the_site_has_every_page_once() -> None:
    listed = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == [page.name for page in PAGES]


def test_the_reference_has_all_that_kvcast_offers() -> None:
    named = re.findall(r"^::: (\S+)$", (DOCS / "reference.md").read_text("utf-8"), re.MULTILINE)
    offered = {*kvcast.__all__} - {"__version__"}
    assert {name.rpartition(".")[2] for name in named} == offered
    for name in named:
        home, _, own = name.rpartition(".")
        assert getattr(importlib.import_module(home), own) is getattr(kvcast, own)


def test_pictures_are_what_is_computed() -> None:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "scripts" / "pictures.py")
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    files = {file.stem: file.read_text("utf-8") for file in pictures.FOLDER.glob("*.svg")}
    assert files == {name: pictures.drawn(name) for name in pictures.PICTURES}
    shown = (DOCS / "concepts.md").read_text("utf-8")
    assert all(f"(pictures/{name}.svg)" in shown for name in files)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    if (program := shutil.which("zensical")) is None:
        pytest.skip("kvcast[docs] is not installed")
    for name in ("docs", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "mkdocs.yml", tmp_path / "mkdocs.yml")
    done = subprocess.run(
        [program, "build", "--strict"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.parent.name for page in (tmp_path / "site").glob("*/index.html")}
    assert pages >= {page.stem for page in PAGES} - {"index"}
    reference = (tmp_path / "site/reference/index.html").read_text("utf-8")
    assert 'id="kvcast.loading.opening.load"' in reference


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)


def test_installations_name_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for page in DATES:
        for line in "\n".join(blocks(page, "sh")).splitlines():
            if line.startswith("pip "):
                if line == f"pip install {REQUIREMENTS['demo-chat']}":
                    continue
                named = re.fullmatch(r"pip install '\.\[([\w,]+)\]'", line)
                assert named, line
                assert {*named[1].split(",")} <= extras["optional-dependencies"].keys()


def commands(page: str) -> list[str]:
    """A page's commands, without installations and servers."""
    lines = "\n".join(blocks(page, "sh")).splitlines()
    return [line for line in lines if not line.startswith(("pip ", "kvcast serve "))]


def test_pages_have_commands_to_run() -> None:
    assert all(commands(page) for page in DATES)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `kvcast`, which runs these sources."""
    folder = tmp_path_factory.mktemp("programs")
    script = folder / "kvcast"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kvcast "$@"\n')
    script.chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", DATES)
def test_commands_run_as_they_are_printed(page: str, programs: Path, tmp_path: Path) -> None:
    if page == "aoti" and shutil.which("g++") is None:
        pytest.skip("there is no g++")
    for name in ("docs", "examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    paths = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": sys.executable,
    }
    printed = []
    for command in commands(page):
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, env=paths
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        printed.append(done.stdout)
    for block in blocks(page, "python"):
        words = [sys.executable, "-W", "error", "-c", block]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        printed.append(done.stdout)
    for expected in blocks(page, "text"):
        assert any(expected in text for text in printed)
    assert sum("2021-03-03" in text for text in printed) == DATES[page]
