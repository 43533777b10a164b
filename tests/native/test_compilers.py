"""Results are the same bits whichever compiler made the library, and on another architecture."""

import shutil
import subprocess
from pathlib import Path

import pytest

from native.drivers import compile_driver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of products and attention of random sizes, by instruction set."""
    return digests(compile_driver(("g++", "-O3"), tmp_path_factory.mktemp("gcc")))


def digests(*command: str | Path) -> dict[str, str]:
    done = subprocess.run([*command, "digests"], capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


def test_every_instruction_set_has_a_digest(expected: dict[str, str]) -> None:
    assert "plain" in expected
    assert len(set(expected.values())) == len(expected)


@pytest.mark.parametrize("command", [("g++", "-O1"), ("clang++", "-O3")], ids=" ".join)
def test_another_compiler_gives_the_same_bits(
    command: tuple[str, ...], expected: dict[str, str], tmp_path: Path
) -> None:
    assert digests(compile_driver(command, tmp_path)) == expected


@pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="qemu-user is not installed")
def test_arm_gives_the_same_bits(expected: dict[str, str], tmp_path: Path) -> None:
    driver = compile_driver(("aarch64-linux-gnu-g++", "-O2", "-static"), tmp_path)
    assert digests("qemu-aarch64", driver)["plain"] == expected["plain"]
