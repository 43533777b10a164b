"""The wheel ships the native library, and works where there is no compiler."""

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from install.wheels import ROOT, build_wheel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed"),
]
OPENS = ROOT / "tests/runtimes/native/open_installed.py"
LIBRARY = "kvcast/runtimes/native/lib/libkvcast.so"


def run(python: Path, *words: str | Path, cache: Path) -> "subprocess.CompletedProcess[str]":
    """Run a Python where no compiler is to be found."""
    environment = {"PATH": "/nonexistent", "KVCAST_CACHE": str(cache), "CXX": "false"}
    return subprocess.run(
        [python, *words], capture_output=True, text=True, check=False, env=environment, cwd=cache
    )


def test_a_wheel_with_the_library_opens_it_without_a_compiler(wheel, install, tmp_path):
    assert "-py3-none-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert LIBRARY in names
    assert "kvcast/runtimes/native/src/library.cpp" in names
    assert "kvcast/runtimes/native/src/kernels.hpp" in names
    python = install(tmp_path, "--no-deps")
    opened = run(python, OPENS, cache=tmp_path)
    assert (opened.returncode, opened.stderr) == (0, "")
    assert opened.stdout.split()[0].endswith(LIBRARY)
    # Cut off: the process that mapped it would be killed.
    [library] = (tmp_path / "venv").glob(f"lib/*/site-packages/{LIBRARY}")
    whole = library.read_bytes()
    library.write_bytes(whole[:300_000])
    opened = run(python, OPENS, cache=tmp_path)
    assert opened.returncode == 1
    assert f"{library} is damaged: install kvcast anew" in opened.stderr
    library.write_bytes(whole)
    # Other sources than it was made of: the library does not count, and there is no compiler.
    [changed] = (tmp_path / "venv").glob(
        "lib/*/site-packages/kvcast/runtimes/native/src/plain/plain.hpp"
    )
    changed.write_text(changed.read_text() + "\n")
    opened = run(python, OPENS, cache=tmp_path)
    assert opened.returncode == 1
    code = "import kvcast.runtimes.native.build as b; b.open_library()"
    assert "CXX=false does not run" in run(python, "-c", code, cache=tmp_path).stderr


def test_without_a_compiler_the_wheel_is_pure(tmp_path: Path) -> None:
    done = build_wheel(tmp_path, CXX="false")
    assert done.returncode == 0, done.stderr
    [file] = tmp_path.glob("*.whl")
    assert file.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(file) as archive:
        assert LIBRARY not in archive.namelist()
    done = build_wheel(tmp_path / "required", CXX="false", KVCAST_NATIVE="required")
    assert done.returncode != 0
    assert "CXX=false does not run" in done.stderr
