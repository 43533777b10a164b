"""The runtime of a model that is no bundle, if a user names none."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvcast.runtimes import target
from kvcast.runtimes.native import build, library
from kvcast.runtimes.target import default_runtime
from kvcast.spec.runtimes import RUNTIMES, PrecisionRequest


@pytest.fixture(autouse=True)
def nothing_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "lib")
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "cache"))


def test_a_precision_that_only_one_has_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcast.runtimes.native.build.is_there", lambda _: True)
    monkeypatch.setattr(library, "instruction_sets", lambda: ["avx2", "plain"])
    assert default_runtime(PrecisionRequest(cache="fp16")) == "native"
    assert default_runtime(PrecisionRequest(dtype="bf16")) == "native"  # which says what it has
    monkeypatch.setattr(
        target, "RUNTIMES", RUNTIMES | {"native": replace(RUNTIMES["native"], caches=("fp32",))}
    )
    assert default_runtime(PrecisionRequest(cache="int8")) == "onnx"


def test_without_a_compiler_it_is_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert default_runtime(PrecisionRequest()) == "onnx"


def test_a_compiler_that_fails_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\ntest "$1" = --version && echo 1.0\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    phases: list[str] = []
    for _ in range(2):
        assert default_runtime(PrecisionRequest(), phases.append) == "onnx"
    assert phases == ["compiling kernels"]


@pytest.mark.parametrize(
    ("sets", "onnx", "expected"),
    [(["avx2", "plain"], True, "native"), (["plain"], True, "onnx"), (["plain"], False, "native")],
)
def test_kernels_of_any_processor_run_where_nothing_is_faster(
    sets: list[str], onnx: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcast.runtimes.onnx.target._is_installed", lambda: onnx)
    monkeypatch.setattr("kvcast.runtimes.native.build.is_there", lambda _: True)
    monkeypatch.setattr(library, "instruction_sets", lambda: sets)
    assert default_runtime(PrecisionRequest()) == expected
