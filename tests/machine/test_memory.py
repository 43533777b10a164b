"""Arrays that take memory as they are written."""

import mmap
import os

import numpy as np
import psutil
import pytest

from kvcast.machine.resources import growing_zeros

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
