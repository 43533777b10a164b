"""Settings of a process that computes with PyTorch: its threads, and freed memory that it keeps.

Knows neither models nor their mathematics.
"""

import ctypes
import os
import platform

import torch

# Numbers of mallopt(3)'s parameters in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# All that one call of a program needs, and then some; and the most that glibc takes.
_KEPT_BYTES, _LARGEST_BLOCK = 1 << 30, 32 << 20


def use(threads: int) -> None:
    """Compute with this many threads, and keep freed memory for the next call.

    glibc gives large blocks back to the system as soon as they are free and asks for them anew,
    page by page: that was 100,000 page faults and 100 of 250 ms in a prefill of 512 tokens. The
    most that a process takes stays the same. A user's own settings of malloc take precedence.
    """
    torch.set_num_threads(threads)
    if platform.libc_ver()[0] == "glibc" and not _is_set_by_user():
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)


def _is_set_by_user() -> bool:
    named = any(name.startswith("MALLOC_") for name in os.environ)
    return named or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
