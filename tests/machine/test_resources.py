"""Memory that is allocated on write; processors and their instructions."""

import mmap
import os
from pathlib import Path

import numpy as np
import psutil
import pytest

from kvcast.machine.resources import available_cores, growing_zeros, instruction_sets
from kvcast_bench.report import machine_facts

SHAPE = 60, 16, 3, 1024, 64


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="needs Linux")
def test_memory_is_allocated_on_write():
    def resident() -> int:
        return int(psutil.Process().memory_info().rss)

    before = resident()
    zeros = growing_zeros(SHAPE, np.float16)
    zeros[:, 0, :, :64] = 1
    assert zeros.nbytes > 350 << 20
    assert resident() - before < 16 << 20
    assert zeros.sum(dtype=np.float64) == 60 * 3 * 64 * 64


def test_small_arrays_are_zeros_too():
    zeros = growing_zeros((3, 0, 5), np.float32)
    assert (zeros.shape, zeros.dtype) == ((3, 0, 5), np.float32)
    assert not growing_zeros((3, 5), np.int8).any()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_has_a_copy():
    zeros = growing_zeros((20 << 20,), np.float32)
    zeros[0] = 1
    if (child := os.fork()) == 0:
        zeros[1] = 2
        os._exit(int(zeros[0] != 1))
    assert os.waitpid(child, 0)[1] == 0
    assert zeros[1] == 0


def test_too_large_arrays_raise_memory_error():
    with pytest.raises(MemoryError):
        growing_zeros((1 << 62,), np.int8)


def machine(folder: Path, siblings: list[str]) -> Path:
    for processor, text in enumerate(siblings):
        topology = folder / f"cpu{processor}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("allowed", "quota", "cores"),
    [
        ({0, 1, 2, 3}, "max 100000", 2),
        ({0, 2}, "max 100000", 1),
        ({0, 1, 2, 3}, "100000 100000", 1),
        ({0, 1, 2, 3}, "50000 100000", 1),
        ({1, 3}, "400000 100000", 1),
        ({0, 1}, "150000 100000", 1),
        ({0, 1}, "200000 100000", 2),
    ],
)
def test_hyper_threads_affinity_and_quota_all_count(allowed, quota, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed, raising=False)
    (tmp_path / "cpu.max").write_text(quota)
    folder = machine(tmp_path, ["0,2", "1,3", "0,2", "1,3"])
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert available_cores(folder, tmp_path / "cpu.max") == cores


def test_every_processor_counts_without_system_facts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert available_cores(tmp_path / "none", tmp_path / "none") == 3


def test_instruction_sets_are_read_from_the_system(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags\t\t: fpu avx2 sse4_2 vme amx_int8\n\nflags : sse2\n")
    assert instruction_sets(info) == ("amx_int8", "avx2", "sse4_2")
    assert instruction_sets(tmp_path / "nothing") == ()
    info.write_text("processor\t: 0\nFeatures\t: fp asimd i8mm\n")  # as on ARM
    assert instruction_sets(info) == ("asimd", "i8mm")


def test_facts_name_the_instructions_that_decide_the_speed():
    facts = machine_facts()
    assert facts["cpu"]
    assert set(facts["instructions"]) <= set(instruction_sets())
    assert facts["cores"] <= facts["processors"]
