"""The library's C++ under sanitizers, driven by programs of its own."""

import subprocess
from pathlib import Path

import pytest

from runtimes.native.drivers import compile_programs

pytestmark = pytest.mark.slow

DRIVER, ORACLES = "driver.cpp", ("oracle.cpp", "operations_oracle.cpp")
TRIALS = "12"


@pytest.mark.parametrize(
    ("sanitizers", "oracles"),
    [("address,undefined,float-cast-overflow", ORACLES), ("thread", ORACLES[1:])],
)
def test_nothing_is_found(sanitizers: str, oracles: tuple[str, ...], tmp_path: Path) -> None:
    options = ("-g1", "-O1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")
    driver, *others = compile_programs(("g++", *options), tmp_path, (DRIVER, *oracles))
    for seed in ("0", "1"):
        assert said(driver, seed) == ["done"]
        for oracle in others:
            assert said(oracle, seed, TRIALS)[0] == "plain"


def said(*command: str | Path) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()
