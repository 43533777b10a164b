"""Compiles the native library into a wheel; without a compiler the wheel is pure Python.

`KVCAST_NATIVE=required` fails instead, for wheels that are published; `none` makes the pure one.
An editable install compiles nothing: the library's first use does.
"""

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeLibrary(BuildHookInterface):
    """Adds `kvcast/runtimes/native/lib` and the platform's tag; the library suits any Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library before a wheel is written."""
        wanted = os.environ.get("KVCAST_NATIVE", "")
        if version == "editable" or wanted == "none":
            return
        sys.path.insert(0, str(Path(self.root) / "src"))
        from kvcast.errors import KvcastError
        from kvcast.runtimes.native.build import LIBRARY, RECORD, write_shipped

        self._made = tempfile.TemporaryDirectory(prefix="kvcast-native-")
        folder = Path(self._made.name)
        try:
            write_shipped(folder, folder / "log")
        except KvcastError as error:
            log = folder / "log"
            said = log.read_text(encoding="utf-8") if log.is_file() else ""
            if wanted == "required":
                raise SystemExit(f"{error}\n{said}") from None
            self.app.display_warning(f"a wheel without the native library: {error}\n{said}")
            return
        finally:
            sys.path.pop(0)
        for name in (LIBRARY, RECORD):
            build_data["force_include"][str(folder / name)] = f"kvcast/runtimes/native/lib/{name}"
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, *_: object) -> None:
        """Remove what was compiled."""
        if hasattr(self, "_made"):
            self._made.cleanup()
