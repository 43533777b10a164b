"""All extras can be installed together, with the versions that the checks are run with."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


CLIENTS = "test-clients"
"""Of an environment of its own."""


def included(extra: str) -> set[str]:
    """Return an extra and those of kvcast that it asks for."""
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
