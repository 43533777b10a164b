"""Compiles the library with an installed C++ compiler, on its first use or for a wheel."""

import errno
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

from kvcast.errors import LibraryMissingError, in_one_line
from kvcast.machine.resources import available_cores
from kvcast.saving import is_full

SOURCES = Path(__file__).parent / "src"
SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
UNFINISHED = ".part"
"""Suffix of folders of unfinished libraries; a killed compilation leaves such a folder."""

_CANDIDATES = ("g++", "clang++", "c++")
_SECONDS = 60  # for a compiler to print its version, even on a slow disk
_DOES_NOT_RUN = "does not run"
ANOTHER_COMPILER = "set CXX to another compiler, or choose another --runtime"
_ADVICE = (
    "install g++ or clang++, or use --runtime onnx (pip install 'kvcast[onnx]'), to which a model "
    "has to be exported ('kvcast[export]')"
)
# No flag names a processor: the ISA is chosen at run time. Without contraction every compiler
# rounds a sum alike, except where the code uses a fused multiply-add.
_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fvisibility=hidden", "-w")
# Windows has neither: its code is always relocatable, and its threads need no library.
_POSIX_FLAGS: tuple[str, ...] = () if sys.platform == "win32" else ("-fPIC", "-pthread")
# Elsewhere an undefined symbol is an error by default.
_LINK_FLAGS = ("-Wl,-z,defs",) if sys.platform == "linux" else ()


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A compiler with gcc's options, identified by path, size and time of its programs."""

    command: Sequence[str]
    programs: Sequence[str]

    @property
    def digest(self) -> str:
        """A hash of everything, except the sources, that a library depends on."""
        parts = (*self.command, *self.programs, *_FLAGS, *_POSIX_FLAGS, *_LINK_FLAGS, sys.platform)
        return hashlib.sha256("\n".join((*parts, platform.machine())).encode()).hexdigest()[:12]


def compilers() -> list[Compiler]:
    """Return $CXX (LibraryMissingError if it is no command), or all installed compilers."""
    chosen = _chosen()
    candidates = [chosen] if chosen else [[name] for name in _CANDIDATES]
    return [
        Compiler(command=command, programs=_programs(command))
        for command in candidates
        if shutil.which(command[0])
    ]


def find_compiler() -> Compiler:
    problem = _DOES_NOT_RUN
    for compiler in compilers():
        problem = _problem(compiler.command)
        if not problem:
            return compiler
    if chosen := _chosen():
        tried = f"CXX={shlex.join(chosen)} {problem}"
    else:
        tried = "there is no C++ compiler"
    raise LibraryMissingError(f"kvcast's native library is not compiled, and {tried}: {_ADVICE}")


def _chosen() -> list[str]:
    words = os.environ.get("CXX", "")
    try:
        return shlex.split(words)
    except ValueError as error:
        raise LibraryMissingError(
            f"CXX={in_one_line(words)} cannot be read ({error}): correct it, or unset it"
        ) from None


def _programs(command: Sequence[str]) -> list[str]:
    """Describe a command's programs: a wrapper may precede the compiler."""
    paths = [Path(path).resolve() for word in command if (path := shutil.which(word))]
    stats = [(path, path.stat()) for path in paths]
    return [f"{path} {status.st_size} {status.st_mtime_ns}" for path, status in stats]


def sources_digest(sources: Path) -> str:
    """Return a hash of all sources' names and contents; empty without sources."""
    files = sorted(
        path for ending in ("cpp", "hpp", "def") for path in sources.rglob(f"*.{ending}")
    )
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(sources).as_posix()}\n{path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest() if any(path.suffix == ".cpp" for path in files) else ""


def compile_library(compiler: Compiler, sources: Path, library: Path, log: Path) -> None:
    """Compile `sources`, in parallel, to `library` atomically.

    `log` gets the messages of a failure. Raises LibraryMissingError, or OSError for the folder.
    """
    with tempfile.TemporaryDirectory(
        dir=library.parent, prefix=f"{library.stem}.", suffix=UNFINISHED
    ) as folder:
        # The largest first, so that none is left alone at the end.
        files = sorted(sources.rglob("*.cpp"), key=lambda path: (-path.stat().st_size, path.name))
        objects = [Path(folder) / f"{number}.o" for number in range(len(files))]
        flags = (*_FLAGS, *_POSIX_FLAGS, f"-I{sources}")
        steps = [
            [*compiler.command, *flags, "-c", str(path), "-o", str(to)]
            for path, to in zip(files, objects, strict=True)
        ]
        linked = Path(folder) / library.name
        flags = (*_POSIX_FLAGS, *_LINK_FLAGS, "-shared")
        link = [*compiler.command, *flags, *map(str, objects), "-o", str(linked)]
        with ThreadPoolExecutor(available_cores()) as pool:
            problems = list(pool.map(_failure, steps))
        problems = [*filter(None, problems)] or [*filter(None, [_failure(link)])]
        if problems and (is_full(library.parent) or is_full(Path(tempfile.gettempdir()))):
            # Another time there may be room, so no log says that the compiler fails.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if problems:
            log.write_text("\n".join(problems), encoding="utf-8")
            raise LibraryMissingError(
                f"kvcast's native library cannot be compiled with {compiler.command[0]}: {log} "
                f"says why; {ANOTHER_COMPILER}"
            )
        linked.chmod(0o755)
        with linked.open("rb+") as file:
            os.fsync(file.fileno())
        linked.replace(library)
        log.unlink(missing_ok=True)


def _problem(command: Sequence[str]) -> str:
    try:
        subprocess.run(  # noqa: S603 - the user's compiler
            [*command, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"does not answer --version within {_SECONDS} s"
    except (OSError, subprocess.CalledProcessError):
        return _DOES_NOT_RUN
    return ""


def _failure(command: Sequence[str]) -> str:
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
