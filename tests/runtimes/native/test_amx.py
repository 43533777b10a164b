"""AMX on a processor that has it, and how a set of instructions is chosen.

Without such a processor test_compilers.py and test_sanitizers.py hold the same kernels with AMX
emulated.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcast.errors import UsageError
from kvcast.runtimes.native import library
from kvcast.runtimes.native.compiler import SOURCES
from kvcast.runtimes.native.library import CHOICE, Format, Machine, chosen_isa
from runtimes.native.attention_calls import SelfCall, WholeCall, normal, stored
from runtimes.native.native_calls import Matrix, all_instructions, machine, multiply, rounded

AMX, AVX512 = "amx", "avx512_bf16"


@pytest.fixture(scope="module")
def amx() -> str:
    if AMX not in all_instructions():
        pytest.skip("this processor has no AMX, so its instructions were not run, only emulated")
    return AMX


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([Format.INT8, Format.INT8_BLOCK, Format.INT4_MIN]),
    st.integers(1, 400), st.integers(1, 200), st.integers(1, 1000), st.integers(1, 4),
)  # fmt: skip
def test_many_rows_are_those_of_avx512_bit_for_bit(
    amx: str, seed: int, format_: Format, rows: int, outputs: int, inputs: int, threads: int
) -> None:
    rng = np.random.default_rng(seed)
    matrix = Matrix(rng, format_, outputs, inputs, bias=True)
    x = rounded(rng.normal(size=(rows, inputs)).astype(np.float32))
    actual, expected = np.zeros((2, rows, outputs), np.float32)
    for name, out in ((amx, actual), (AVX512, expected)):
        runner = machine(threads, name)
        multiply(runner, matrix, matrix.packed(runner), x, out=out)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("head_dim", [64, 40, 128])
def test_an_encoders_attention_is_nearly_that_of_avx512(amx: str, head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    query, key, value = rng.normal(size=(3, 2, 1500, 3, head_dim)).astype(np.float32)
    call = WholeCall(query=query, key=key, value=value, lengths=None, exact=False)
    np.testing.assert_allclose(call.run(2, amx), call.run(2, AVX512), atol=1e-3)


@pytest.mark.parametrize("head_dim", [64, 40, 128, 208])
def test_a_prompts_attention_is_that_of_avx512_bit_for_bit(amx: str, head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    query, key, value = normal(rng, 3, 2, 300, 3, head_dim)
    pasts = [[stored(normal(rng, n, 3, head_dim), np.float16) for n in (0, 77)] for _ in range(2)]
    call = SelfCall(
        query=query, key=key, value=value, past_keys=pasts[0], past_values=pasts[1],
        key_number=np.float16, value_number=np.float16, capacity=400, prompt=True,
    )  # fmt: skip
    np.testing.assert_array_equal(call.run(2, amx)[0], call.run(1, AVX512)[0])


def test_the_fastest_set_is_used_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "instruction_sets", lambda: [AMX, AVX512, "avx2", "plain"])
    monkeypatch.delenv(CHOICE, raising=False)
    assert chosen_isa() == AMX
    for name in (AVX512, "avx2"):
        monkeypatch.setenv(CHOICE, name)
        assert chosen_isa() == name


def test_a_set_that_does_not_run_here_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    all_instructions()
    monkeypatch.setenv(CHOICE, "altivec")
    with pytest.raises(UsageError, match=r"KVCAST_INSTRUCTIONS is 'altivec': .* runs .*plain"):
        Machine(1)
    monkeypatch.setenv(CHOICE, "plain")
    Machine(1)


@pytest.mark.slow
@pytest.mark.parametrize("options", [("g++", "-O0"), ("clang++", "-O2")])
def test_the_real_instructions_compile(options: tuple[str, ...], tmp_path: Path) -> None:
    """The library's own compiler does so at every test; emulation leaves them out."""
    for source in (SOURCES / "amx").glob("*.cpp"):
        files = ["-c", source, "-o", tmp_path / "compiled.o"]
        try:
            subprocess.run([*options, "-std=c++17", "-w", f"-I{SOURCES}", *files], check=True)
        except FileNotFoundError:
            pytest.skip(f"{options[0]} is not installed")
