"""The same bits whichever compiler made the library; instruction sets of other processors.

Those run under qemu, which has processors with and without each of the extensions. Each compiler
takes half a minute for the library and the emulator is slow, so the slow part has one of both, and
lets them optimise less than for a wheel, of which other tests run what this processor has.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from kit.marks import slow, soak
from runtimes.native.drivers import FLAGS, compile_object, compile_programs

PROGRAMS = ("driver.cpp", "oracle.cpp", "operations_oracle.cpp")

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-aarch64"), reason="qemu-user is not installed"
)
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the programs are for x86")


@pytest.fixture(scope="module", params=["-O1", soak("-O3")])
def level(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def programs(level: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return compile_programs(("g++", level), tmp_path_factory.mktemp("gcc"), PROGRAMS)


@pytest.fixture(scope="module")
def expected(programs: list[Path]) -> dict[str, str]:
    """Digests of products and attention of random sizes, by instruction set."""
    return digests(programs[0])


@pytest.fixture(scope="module")
def arm_programs(level: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    command = ("aarch64-linux-gnu-g++", level, "-static")
    return compile_programs(command, tmp_path_factory.mktemp("arm"), PROGRAMS)


@pytest.fixture(scope="module")
def arm_digests(arm_programs: list[Path]) -> dict[str, str]:
    return digests("qemu-aarch64", "-cpu", "max", arm_programs[0])


def digests(*command: str | Path) -> dict[str, str]:
    done = subprocess.run([*command, "digests"], capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


def held(*command: str | Path, trials: int) -> list[str]:
    """Hold the instruction sets that run against plain; returns their names."""
    words = [*command, "1", str(trials)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.slow
def test_every_instruction_set_has_a_digest(expected: dict[str, str]) -> None:
    assert "plain" in expected
    # It has AVX2's floats, and integers are exact in all sets.
    assert expected.get("avx2_vnni", expected.get("avx2")) == expected.get("avx2")
    others = [digest for name, digest in expected.items() if name != "avx2_vnni"]
    assert len(set(others)) == len(others)


@pytest.mark.parametrize("trials", [slow(8), soak(100)])
def test_every_instruction_set_agrees_with_plain(
    trials: int, programs: list[Path], expected: dict[str, str]
) -> None:
    for oracle in programs[1:]:
        assert held(oracle, trials=trials) == list(expected)


@pytest.mark.slow
@needs_x86
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_compile_where_nothing_is_emulated(program: str, tmp_path: Path) -> None:
    compile_object(("g++", "-O1", *FLAGS), Path(__file__).parent / program, tmp_path / "o")


@pytest.mark.soak
def test_another_compiler_that_optimises_less_gives_the_same_bits(
    expected: dict[str, str], tmp_path: Path
) -> None:
    [driver] = compile_programs(("clang++", "-O1"), tmp_path)
    assert digests(driver) == expected


@pytest.mark.slow
@needs_qemu
def test_arm_gives_the_same_bits(expected: dict[str, str], arm_digests: dict[str, str]) -> None:
    assert arm_digests["plain"] == expected["plain"]
    assert arm_digests["neon"] == arm_digests["neon_i8mm"]


@pytest.mark.soak
@needs_qemu
def test_another_compiler_gives_the_same_bits_on_arm(
    arm_digests: dict[str, str], tmp_path: Path
) -> None:
    command = ("clang++", "--target=aarch64-linux-gnu", "-O2", "-static")
    [driver] = compile_programs(command, tmp_path)
    assert digests("qemu-aarch64", "-cpu", "max", driver) == arm_digests


@needs_qemu
@pytest.mark.parametrize(
    ("processor", "sets", "trials"),
    [
        slow("max", ["plain", "neon", "neon_i8mm"], 1),
        soak("cortex-a72", ["plain"], 15),
        soak("neoverse-n1", ["plain", "neon"], 15),
        soak("max", ["plain", "neon", "neon_i8mm"], 15),
    ],
)
def test_an_arm_processor_takes_what_it_has_and_agrees_with_plain(
    arm_programs: list[Path], processor: str, sets: list[str], trials: int
) -> None:
    for oracle in arm_programs[1:]:
        assert held("qemu-aarch64", "-cpu", processor, oracle, trials=trials) == sets


@pytest.mark.slow
@needs_qemu
@needs_x86
def test_a_processor_without_avx_gives_the_same_bits(
    programs: list[Path], expected: dict[str, str]
) -> None:
    # qemu's AVX2 is no oracle: it reads what masked loads leave out.
    emulated = digests("qemu-x86_64", "-cpu", "Nehalem", programs[0])
    assert emulated == {"plain": expected["plain"]}


@pytest.mark.slow
@needs_qemu
@needs_x86
@pytest.mark.parametrize(
    ("processor", "sets"), [("Nehalem", ["plain"]), ("Haswell", ["plain", "avx2"])]
)
def test_an_x86_processor_takes_what_it_has(
    programs: list[Path], processor: str, sets: list[str]
) -> None:
    command = ["qemu-x86_64", "-cpu", processor, programs[0], "sets"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == sets
