"""The wheel that a run builds once."""

import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock

from install.wheels import Install, build_wheel, environment


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "wheel"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            done = build_wheel(folder, KVCAST_NATIVE="required" if shutil.which("g++") else "none")
            assert done.returncode == 0, done.stderr
    [file] = folder.glob("*.whl")
    return file


@pytest.fixture(scope="session")
def install(wheel: Path) -> Install:
    return partial(environment, wheel)
