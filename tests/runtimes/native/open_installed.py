"""Opens the native library of an installed kvcast; fails unless it came with the wheel.

Needs nothing but kvcast's own files, so it runs where no dependency is installed.
"""

import ctypes

from kvcast.runtimes.native.build import find_library, open_library

found = find_library()
if found is None or not found.shipped:
    raise SystemExit(f"the wheel has no library of its sources: {found}")
library = open_library()
library.kvcast_instructions.restype = ctypes.c_char_p
print(found.path, library.kvcast_instructions(0).decode())
