"""Arrays that end where the next page cannot be touched."""

import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_NO_ACCESS = 0


def guarded(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy that ends at a page which ends the process when it is touched."""
    page = mmap.PAGESIZE
    size = max(1, -(-array.nbytes // page)) * page
    whole = np.frombuffer(mmap.mmap(-1, size + page), np.uint8)
    if _LIBC.mprotect(whole.ctypes.data + size, page, _NO_ACCESS):
        raise OSError(ctypes.get_errno(), "mprotect")
    copy = whole[size - array.nbytes : size].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
