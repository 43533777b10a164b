"""Functions of the library: where the system refuses, and how fast processors multiply."""

import os
import subprocess
import sys

import pytest

from kvcast.runtimes.native.library import Machine
from runtimes.native.native_calls import all_instructions

FORKED = """
import os, resource
import numpy as np
from kvcast.errors import KvcastError
from kvcast.runtimes.native.library import Format, Machine

machine, codes = Machine(3), np.zeros((500, 64), np.float32)
machine.pack(Format.F32, codes)
child = os.fork()
if child == 0:
    told = "nothing"
    try:
        if os.geteuid() == 0:
            os.setuid(65534)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        machine.pack(Format.F32, codes)
    except KvcastError as error:
        told = f"told: {error}"
    except OSError as error:
        told = f"cannot be limited: {error}"
    print(told, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_without_threads_is_told_when_it_packs() -> None:
    all_instructions()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=False
    )
    told, status = done.stdout.splitlines()
    assert (done.returncode, status) == (0, "0"), done.stderr
    if told.startswith(("cannot", "nothing")):
        pytest.skip(f"threads are not limited here: {told}")
    assert told.startswith("told: ")


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("instructions", all_instructions())
def test_operations_are_those_of_all_threads_and_turns(instructions: str, int8: bool) -> None:
    alone, both = (Machine(threads, instructions) for threads in (1, 2))
    operations = alone.multiply(int8=int8, turns=100)
    assert operations > 0
    assert both.multiply(int8=int8, turns=100) == 2 * operations
    assert alone.multiply(int8=int8, turns=300) == 3 * operations
