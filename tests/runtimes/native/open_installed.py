"""Opens the native library of an installed kvcast; fails unless it came with the wheel.

Needs nothing but kvcast's own files, so it runs where no dependency is installed.
"""

import ctypes

from kvcast.runtimes.native.build import find_library, open_library

existing = find_library()
if existing is None or not existing.shipped:
    raise SystemExit(f"the wheel has no library of its sources: {existing}")
library = open_library()
library.kvcast_instructions.restype = ctypes.c_char_p
print(existing.path, library.kvcast_instructions(0).decode())
