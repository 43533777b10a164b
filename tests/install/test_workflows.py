"""The workflows and forms of the repository's host are valid, and run nothing that can change."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
