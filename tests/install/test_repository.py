"""Extras, the layout of tests, workflows and forms of the repository."""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


CLIENTS = "test-clients"
"""An extra that is installed in a separate virtual environment."""


def included(extra: str) -> set[str]:
    asked = [Requirement(line) for line in EXTRAS[extra]]
    names = {name for line in asked if line.name == "kvcast" for name in line.extras}
    return {extra}.union(*map(included, names))


def test_the_tests_install_all_extras():
    assert included("test") == set(EXTRAS) - {CLIENTS}


@pytest.mark.soak  # the checks' own first command installs what `test` has
def test_all_extras_are_resolved_together():
    words = ("install", "--quiet", "--dry-run", "--constraint", ROOT / "requirements.lock")
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, f"{ROOT}[{','.join(included('test'))}]"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# Folders of tests without a package of the same name in src.
OTHERS = {
    "install": "the installed program, its documentation and this layout",
    "gpu": "what needs a CUDA device",
    "mutation": "damaged files of every format",
}


def files(tests: Path) -> Iterator[Path]:
    return tests.rglob("test_*.py")


def folders(tests: Path) -> set[str]:
    return {path.parent.relative_to(tests).as_posix() for path in files(tests)}


@pytest.mark.parametrize(
    ("tests", "source", "least"),
    [("tests", "src/kvcast", 10), ("benchmarks/tests", "benchmarks/src/kvcast_bench", 4)],
)
def test_folders_of_tests_mirror_folders_of_the_source(tests: str, source: str, least: int) -> None:
    present = folders(ROOT / tests)
    assert len(present) > least
    strangers = [name for name in present - OTHERS.keys() if not (ROOT / source / name).is_dir()]
    assert sorted(strangers) == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """Without packages pytest knows a file by its name alone, and collects the first."""
    names = [path.name for tests in ("tests", "benchmarks/tests") for path in files(ROOT / tests)]
    assert sorted(name for name, count in Counter(names).items() if count > 1) == []


FOLDER = Path(__file__).parents[2] / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))
FORMS = sorted((FOLDER / "ISSUE_TEMPLATE").glob("*.yml"))


def check(schema: str, *files: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    return subprocess.run([*words, *files], capture_output=True, text=True)


def test_workflows_and_forms_are_valid(tmp_path: Path) -> None:
    config = FOLDER / "ISSUE_TEMPLATE" / "config.yml"
    for schema, files in {
        "github-workflows": WORKFLOWS,
        "github-issue-forms": [form for form in FORMS if form != config],
        "github-issue-config": [config],
    }.items():
        assert files
        result = check(schema, *files)
        assert result.returncode == 0, result.stdout
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("on: push\njobs: {a: {steps: []}}\n")
    assert check("github-workflows", wrong).returncode == 1


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_rights_are_given_one_by_one(workflow: Path) -> None:
    text = workflow.read_text("utf-8")
    actions = re.findall(r"uses: (.*)", text)
    assert actions
    assert all(re.fullmatch(r"[\w/.-]+@[0-9a-f]{40} # v[\d.]+", action) for action in actions)
    assert re.search(r"^permissions: \{\}$", text, re.MULTILINE)
    # An expression in a command is code of whoever names a branch or a tag.
    assert not re.search(r"run: .*\$\{\{", text)


def test_bug_reports_ask_for_doctors_output() -> None:
    assert "kvcast doctor --json" in (FOLDER / "ISSUE_TEMPLATE" / "bug.yml").read_text("utf-8")
