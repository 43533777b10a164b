"""The library's C++ under sanitizers, driven by a program of its own (driver.cpp)."""

import subprocess
from pathlib import Path

import pytest

from native.drivers import compile_programs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_a_driver_finds_nothing(sanitizers: str, tmp_path: Path) -> None:
    options = ("-g1", "-O1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")
    [driver] = compile_programs(("g++", *options), tmp_path)
    for seed in range(2):
        done = subprocess.run([driver, str(seed)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
