"""Compiles the library from the sources that kvcast ships, with whatever C++ compiler is there.

Used on a library's first use and when a wheel is built. Knows nothing of where libraries are kept.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvcast.errors import LibraryMissingError
from kvcast.machine.processor import available_cores

SOURCES = Path(__file__).parent / "src"
SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
UNFINISHED = ".part"
"""How folders end in which a library is under way; one that was killed leaves such a folder."""

_CANDIDATES = ("g++", "clang++", "c++")
# No flag names a processor: what the library uses of it is chosen when it runs. Without contraction
# a sum is rounded alike whichever compiler it was, except where the code asks for a fused one.
_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fvisibility=hidden", "-w")
# Windows has neither: its code is always relocatable, and its threads need no library.
_POSIX_FLAGS: tuple[str, ...] = () if sys.platform == "win32" else ("-fPIC", "-pthread")
# Elsewhere a function that is nowhere is an error without being asked for.
_LINK_FLAGS = ("-Wl,-z,defs",) if sys.platform == "linux" else ()


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A compiler with gcc's options: its command, and what it says of its version."""

    command: Sequence[str]
    version: str

    @property
    def digest(self) -> str:
        """A name for all, except the sources, that a library depends on."""
        parts = (*self.command, self.version, *_FLAGS, *_POSIX_FLAGS, *_LINK_FLAGS, sys.platform)
        return hashlib.sha256("\n".join((*parts, platform.machine())).encode()).hexdigest()[:12]


def find_compiler() -> Compiler:
    """Return $CXX, or the first of g++, clang++ and c++ that runs; raises LibraryMissingError."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    candidates = [chosen] if chosen else [[name] for name in _CANDIDATES]
    for command in candidates:
        if shutil.which(command[0]) and (version := _version(command)):
            return Compiler(command=command, version=version)
    tried = f"CXX={shlex.join(chosen)} does not run" if chosen else "there is no C++ compiler"
    raise LibraryMissingError(
        f"kvcast's native library is not compiled, and {tried}: install g++ or clang++, "
        f"or use --runtime onnx, which works without it"
    )


def sources_digest(sources: Path) -> str:
    """Return a digest of all sources' names and contents; empty if there are none."""
    files = sorted((*sources.glob("*.cpp"), *sources.glob("*.hpp")))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\n{path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest() if files else ""


def compile_library(compiler: Compiler, sources: Path, library: Path, log: Path) -> None:
    """Compile `sources` to `library`, which appears at once and whole, or not at all.

    Files are compiled side by side. What the compiler says goes to `log`, which is written only if
    it fails. Raises LibraryMissingError, or OSError where the library's folder cannot be written.
    """
    with tempfile.TemporaryDirectory(
        dir=library.parent, prefix=f"{library.stem}.", suffix=UNFINISHED
    ) as folder:
        # The largest first, so that none is left alone at the end.
        files = sorted(sources.glob("*.cpp"), key=lambda path: (-path.stat().st_size, path.name))
        objects = [Path(folder) / f"{path.stem}.o" for path in files]
        flags = (*_FLAGS, *_POSIX_FLAGS)
        steps = [
            [*compiler.command, *flags, "-c", str(path), "-o", str(to)]
            for path, to in zip(files, objects, strict=True)
        ]
        linked = Path(folder) / library.name
        flags = (*_POSIX_FLAGS, *_LINK_FLAGS, "-shared")
        link = [*compiler.command, *flags, *map(str, objects), "-o", str(linked)]
        with ThreadPoolExecutor(available_cores()) as pool:
            told = list(pool.map(_told, steps))
        problems = [*filter(None, told)] or [*filter(None, [_told(link)])]
        if problems:
            log.write_text("\n".join(problems), encoding="utf-8")
            raise LibraryMissingError(
                f"kvcast's native library cannot be compiled with {compiler.command[0]}: {log} "
                f"says why; set CXX to another compiler, or choose another --runtime"
            )
        linked.chmod(0o755)
        with linked.open("rb+") as file:
            os.fsync(file.fileno())
        linked.replace(library)


def _version(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the user's compiler
            [*command, "--version"], capture_output=True, text=True, errors="replace", check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _told(command: Sequence[str]) -> str:
    """Run a compiler; returns the command and what it said if it failed, else nothing."""
    done = subprocess.run(  # noqa: S603 - the user's compiler
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        env=os.environ | {"LC_ALL": "C"},
    )
    return f"{shlex.join(command)}\n{done.stdout}" if done.returncode else ""
