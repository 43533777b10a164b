"""The library's C++ under sanitizers, driven by programs of its own."""

import subprocess
from pathlib import Path

import pytest

from kit.marks import slow, soak
from runtimes.native.drivers import compile_programs

DRIVER, ORACLES = "driver.cpp", ("oracle.cpp", "operations_oracle.cpp")


ADDRESSES = "address,undefined,float-cast-overflow"


@pytest.mark.parametrize(
    ("sanitizers", "level", "oracles", "seeds", "trials"),
    [
        # Compiling takes longest, and what is not optimised is compiled in half the time.
        slow(ADDRESSES, "-O0", ORACLES, "0", 2),
        soak(ADDRESSES, "-O1", ORACLES, "01", 12),
        soak("thread", "-O1", ORACLES[1:], "01", 12),
    ],
)
def test_nothing_is_found(
    sanitizers: str, level: str, oracles: tuple[str, ...], seeds: str, trials: int, tmp_path: Path
) -> None:
    options = ("-g1", level, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")
    driver, *others = compile_programs(("g++", *options), tmp_path, (DRIVER, *oracles))
    for seed in seeds:
        assert said(driver, seed) == ["done"]
        for oracle in others:
            assert said(oracle, seed, str(trials))[0] == "plain"


def said(*command: str | Path) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()
