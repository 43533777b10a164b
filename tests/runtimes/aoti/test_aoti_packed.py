"""int4 matrices of AOTInductor's packages: they give what kvcast's own runtime gives."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError, LibraryMissingError
from kvcast.runtimes.aoti import lowering as aoti
from kvcast.runtimes.aoti import packed as aoti_packed
from kvcast.runtimes.aoti.runtime import CompiledProgram, open_programs
from kvcast.runtimes.lowering.torch_export import Signature
from kvcast.runtimes.native import build, library
from kvcast.runtimes.native import bundles as native
from kvcast.runtimes.native.interpreter import WEIGHTS, planned
from kvcast.runtimes.native.library import Machine, aligned
from kvcast.runtimes.native.weights import BundleWeights, packed_constants
from kvcast.runtimes.target import TARGETS, BuildOptions
from kvcast.spec.runtimes import BundlePrecision, ignore_phase
from runtimes.aoti.small_package import (
    OUTPUTS,
    TOKENS,
    WIDTH,
    compiled_products,
    own_codes,
    signature,
    written,
)


@dataclass(frozen=True)
class Case:
    signature: Signature
    folder: Path

    def open(self, threads: int = 1) -> CompiledProgram:
        return open_programs(self.folder, self.manifest, threads)["decode"]

    @property
    def manifest(self) -> Manifest:
        return Manifest.from_json((self.folder / "bundle.json").read_text())


@pytest.fixture(scope="module")
def case() -> Case:
    return Case(signature(), compiled_products())


def given(rows: int) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(rows)
    ids = random.integers(0, TOKENS, rows)
    hidden = random.integers(-40, 40, (rows, WIDTH)).astype(np.float32) / 8
    return torch.from_numpy(ids), torch.from_numpy(hidden)


def on_own_kernels(case: Case, folder: Path, inputs: tuple[Tensor, Tensor]) -> list[Any]:
    """What kvcast's own runtime gives, with the same program and weights."""
    tensors = {name: part.numpy() for name, part in case.signature.program.state_dict().items()}
    program = written()
    precision = BundlePrecision(quantize="int4")
    native.lower({"decode": program}, tensors, {}, precision, folder, ignore_phase, own_codes)
    machine = Machine(2)
    weights = BundleWeights(folder / "native" / WEIGHTS)
    constants = packed_constants(machine, [program], weights)
    ids, hidden = (part.numpy() for part in inputs)
    sizes = {"rows": WIDTH, "ups": OUTPUTS, "logits": TOKENS}
    outputs = {name: np.empty((len(ids), size), np.float32) for name, size in sizes.items()}
    plan = planned(program, constants, {"ids": ids, "hidden": hidden}, outputs)
    arena = aligned(plan.arena)
    plan.words[plan.in_arena] += arena.ctypes.data
    machine.run(plan.words)
    return list(outputs.values())


@pytest.mark.parametrize("rows", [1, 37])
def test_a_package_gives_what_kvcasts_own_runtime_gives_bit_for_bit(case, rows, tmp_path):
    wanted = on_own_kernels(case, tmp_path, given(rows))
    for threads in (1, 3):
        results = case.open(threads)(given(rows), {})
        for mine, own in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(mine.numpy(), own)


def test_rows_of_a_table_are_the_checkpoints_own(case):
    ids, hidden = given(20)
    rows, *_ = case.open()((ids, hidden), {})
    np.testing.assert_array_equal(rows.numpy(), own_codes("table.weight").dequantize()[ids])


def test_hidden_rows_may_lie_apart_and_there_may_be_none(case):
    program = case.open()
    ids, hidden = given(9)
    apart = torch.full((9, WIDTH + 7), torch.nan)[:, :WIDTH].copy_(hidden)
    for mine, own in zip(program((ids, apart), {}), program((ids, hidden), {}), strict=True):
        torch.testing.assert_close(mine, own, rtol=0, atol=0)
    assert [part.shape[0] for part in program((ids[:0], hidden[:0]), {})] == [0, 0, 0]


def test_a_token_past_the_table_is_refused(case):
    ids, hidden = given(4)
    ids[2] = TOKENS
    with pytest.raises(KvcastError, match=r"model\.pt2 cannot be run here"):
        case.open()((ids, hidden), {})


def changed(case: Case, folder: Path, change: Callable[[dict[str, Any]], None]) -> Case:
    shutil.copytree(case.folder, folder)
    tensors = load_file(folder / aoti.WEIGHTS)
    change(tensors)
    save_file(tensors, folder / aoti.WEIGHTS)
    return Case(case.signature, folder)


def cut(tensors: dict[str, Any]) -> None:
    """Leave the outputs of a tile away, of all that belongs to a matrix."""
    for name in [name for name in tensors if ".up_packed" in name]:
        tensors[name] = np.ascontiguousarray(tensors[name][:64])


def test_a_matrix_of_other_sizes_than_the_program_was_compiled_for_is_refused(case, tmp_path):
    other = changed(case, tmp_path / "cut", cut)
    with pytest.raises(KvcastError, match=r"model\.pt2 cannot be run here"):
        other.open()(given(3), {})


@pytest.mark.parametrize("part", [".codes", ".scales", ".bias"])
def test_codes_without_what_belongs_to_them_are_refused(case, part, tmp_path):
    def drop(tensors: dict[str, Any]) -> None:
        (name,) = (name for name in tensors if name.endswith(f".up_packed{part}"))
        tensors[name] = tensors[name][:-1]

    other = changed(case, tmp_path / "changed", drop)
    with pytest.raises(KvcastError, match=r"model\.pt2 cannot be loaded here"):
        other.open()


def test_a_package_for_another_version_of_the_operators_is_refused(case, monkeypatch):
    monkeypatch.setattr(aoti_packed, "OPERATORS", "2")
    with pytest.raises(KvcastError, match=r"for another version of kvcast.*export it again"):
        case.open()


@pytest.fixture
def no_library(monkeypatch, tmp_path) -> Iterator[None]:
    """No library, no compiler, and nobody who remembers one."""
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "none")
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    library._library.cache_clear()
    yield
    library._library.cache_clear()


@pytest.mark.usefixtures("no_library")
def test_without_the_library_one_line_says_what_to_do(case):
    line = (
        r"model\.pt2 needs kvcast's kernels: .*: install g\+\+ or clang\+\+, or use --runtime onnx"
    )
    with pytest.raises(LibraryMissingError, match=line) as refused:
        case.open()
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("quantize", ["int4", "int8", "none"])
def test_only_int4_exports_need_the_library(quantize, monkeypatch):
    monkeypatch.setattr("kvcast.runtimes.aoti.target.find_compiler", lambda: "g++")
    precision = BundlePrecision(quantize=quantize)
    refused = pytest.raises(LibraryMissingError, match="install g")
    with refused if quantize == "int4" else nullcontext():
        TARGETS["aoti"].check_build(precision, BuildOptions())
