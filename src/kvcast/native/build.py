"""The compiled library: the one of a wheel, or one compiled here and kept in the cache folder.

A library counts only if it was made of the very sources that lie beside this module. One in the
cache folder is code that runs as the user, so nobody else may have been able to write it. Knows
nothing of the library's functions but their version.
"""

import ctypes
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvcast.errors import LibraryMissingError, in_one_line
from kvcast.native.compiler import (
    SOURCES,
    SUFFIX,
    UNFINISHED,
    Compiler,
    compile_library,
    find_compiler,
    sources_digest,
)
from kvcast.spec.paths import cache_dir

ABI = 2
"""What `kvcast_abi` returns of a library that this version of kvcast can call."""

SHIPPED = Path(__file__).parent / "lib"
LIBRARY, RECORD = f"libkvcast{SUFFIX}", "libkvcast.json"


@dataclass(frozen=True, kw_only=True)
class Library:
    """A compiled library, and whether it came with kvcast or was compiled here."""

    path: Path
    shipped: bool


def open_library(on_compile: Callable[[], None] = lambda: None) -> ctypes.CDLL:
    """Return the library, compiled first if it must be; raises LibraryMissingError.

    Args:
        on_compile: called before it is compiled, which takes seconds.

    """
    path = library_path(on_compile)
    try:
        library = ctypes.CDLL(str(path))
        number = library.kvcast_abi()
    except (OSError, AttributeError) as error:
        raise LibraryMissingError(
            f"kvcast's native library cannot be loaded: {in_one_line(error)}: remove {path}"
        ) from None
    if number != ABI:
        raise LibraryMissingError(
            f"{path} has functions of version {number} and not {ABI}: install kvcast anew"
        )
    return library


def library_path(on_compile: Callable[[], None] = lambda: None) -> Path:
    """Return the library's path, compiled first if it must be; raises LibraryMissingError."""
    found = find_library()
    return found.path if found else _compile(on_compile)


def find_library() -> Library | None:
    """Return the library if there is one; nothing is compiled.

    Raises LibraryMissingError for one that others could have written.
    """
    if _is_ours(_recorded(SHIPPED), sources_digest(SOURCES)):
        return Library(path=SHIPPED / LIBRARY, shipped=True)
    try:
        path = _path(find_compiler())
        kept = [path] if path.is_file() else []
    except LibraryMissingError:
        # A compiler may have been there once.
        kept = sorted(_folder().glob(f"{_prefix()}*{SUFFIX}"))
    if not kept:
        return None
    library = kept[0].resolve()
    _refuse_if_others_write(library)
    return Library(path=library, shipped=False)


def is_there(on_compile: Callable[[], None] = lambda: None) -> bool:
    """Tell whether a library loads, compiled first if it must be.

    A compiler that failed is not asked again; `open_library` asks it.
    """
    try:
        if find_library() is None and _log(_path(find_compiler())).is_file():
            return False
        open_library(on_compile)
    except LibraryMissingError:
        return False
    return True


def write_shipped(folder: Path, log: Path) -> None:
    """Compile a library to `folder`, with its record; raises LibraryMissingError, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    compile_library(find_compiler(), SOURCES, folder / LIBRARY, log)
    record = {"sources": sources_digest(SOURCES), "abi": ABI}
    (folder / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")


def _recorded(folder: Path) -> dict[str, object]:
    """Return what is recorded of the library in `folder`; nothing if there is none."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(record, dict) and (folder / LIBRARY).is_file()
    return record if whole else {}


def _is_ours(record: Mapping[str, object], sources: str) -> bool:
    """Tell whether a library was made of these sources, or there are none, for this module."""
    return record.get("abi") == ABI and sources in ("", record.get("sources"))


def _folder() -> Path:
    return cache_dir() / "native"


def _prefix() -> str:
    return sources_digest(SOURCES)[:24]


def _path(compiler: Compiler) -> Path:
    return _folder() / f"{_prefix()}-{compiler.digest}{SUFFIX}"


def _log(library: Path) -> Path:
    """Return the file with what a compiler said, if it failed."""
    return library.with_suffix(".log")


def _compile(on_compile: Callable[[], None]) -> Path:
    """Compile the library into the cache folder, once if several processes want it."""
    if not _prefix():
        raise LibraryMissingError(
            "kvcast's native library and its sources are missing: install kvcast anew, "
            "or use --runtime onnx, which works without it"
        )
    compiler = find_compiler()
    path = _path(compiler)
    try:
        with _only_compiler(path):
            if not path.is_file():
                on_compile()
                compile_library(compiler, SOURCES, path, _log(path))
            found = path.resolve()
            _refuse_if_others_write(found)
            return found
    except OSError as error:
        raise LibraryMissingError(
            f"kvcast's native library cannot be compiled: cannot write {path.parent} "
            f"({error.strerror}): set KVCAST_CACHE to a folder of your own"
        ) from None


@contextmanager
def _only_compiler(path: Path) -> Iterator[None]:
    """Wait while another process compiles the same library; remove what a killed one left."""
    from filelock import FileLock

    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        for left in path.parent.glob(f"{path.stem}.*{UNFINISHED}"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _refuse_if_others_write(library: Path) -> None:
    """Raise LibraryMissingError if anybody else could have put the library where it is.

    It and its folder must be the user's. In the folders above, others may add files, but not
    replace the user's.
    """
    if not hasattr(os, "geteuid"):  # Windows, where a profile's folders are its user's
        return
    for place in (library, library.parent, *library.parent.parents):
        status = place.stat()
        above = place not in (library, library.parent)
        others = stat.S_IWOTH if above else stat.S_IWGRP | stat.S_IWOTH
        writable = status.st_mode & others and not (above and status.st_mode & stat.S_ISVTX)
        foreign = not above and status.st_uid not in (os.geteuid(), 0)
        if writable or foreign:
            raise LibraryMissingError(
                f"{place} belongs to another user or can be written by others, so no library is "
                f"loaded from it: remove it, or set KVCAST_CACHE to a folder of your own"
            )
