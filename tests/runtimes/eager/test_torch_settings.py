"""Memory that a process with PyTorch has freed serves it again, without asking the system."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from kvcast.runtimes.eager.runtime import use_threads

use_threads(threads=2)
assert torch.get_num_threads() == 2

def faults_of_a_call():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(5 << 18) for _ in range(20)]  # 5 MB each
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print([faults_of_a_call() for _ in range(3)][-1])
"""
PAGES = 20 * (5 << 20) // os.sysconf("SC_PAGE_SIZE")


def faults(**settings: str) -> int:
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    environment.pop("GLIBC_TUNABLES", None)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment | settings, stdout=subprocess.PIPE, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is set")
def test_freed_memory_is_kept_unless_the_user_says_otherwise():
    assert faults() < PAGES / 10
    assert faults(MALLOC_TRIM_THRESHOLD_="100000") > PAGES / 2
