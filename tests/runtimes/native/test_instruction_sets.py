"""Which instruction sets are offered: those of which the system says the same."""

import platform
import sys

import pytest

from kvcast.machine import resources
from kvcast.runtimes.native.compiler import SOURCES
from kvcast.runtimes.native.library import CHOICE, Machine, chosen_isa
from runtimes.native.native_calls import all_instructions

AVX2 = {"avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512vl"}
NEEDED: dict[str, set[str]] = {
    "amx": AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"},
    "avx512_bf16": AVX512 | {"avx512_vnni", "avx512_bf16"},
    "avx512_vnni": AVX512 | {"avx512_vnni"},
    "avx2_vnni": AVX2 | {"avx_vnni"},
    "avx2": AVX2,
    "plain": set(),
}
"""By set what /proc/cpuinfo says of a processor that runs it, fastest first."""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="Linux alone tells of x86"
)
def test_the_sets_are_those_of_which_the_system_tells() -> None:
    told, sets = set(resources.instruction_sets()), all_instructions()
    expected = [name for name in NEEDED if NEEDED[name] <= told]
    if "amx" not in sets:  # a system may know it and not grant it
        expected = [name for name in expected if name != "amx"]
    assert sets == expected


@pytest.mark.parametrize("name", [*NEEDED])
def test_a_set_that_runs_is_used_when_it_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in all_instructions():
        pytest.skip(f"this processor has no {name}")
    monkeypatch.setenv(CHOICE, name)
    assert chosen_isa() == name
    Machine(1)


def test_no_source_asks_the_compilers_library() -> None:
    """Which a linker for Windows is not given."""
    sources = [*SOURCES.rglob("*.cpp"), *SOURCES.rglob("*.hpp")]
    assert sources
    assert not [path.name for path in sources if "__builtin_cpu_supports(" in path.read_text()]
