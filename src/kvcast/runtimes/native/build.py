"""The compiled library: a wheel's, or one compiled here and kept in the cache folder.

A library is used only if it was compiled from exactly the sources next to this module, and is
complete: opening a truncated one kills the process. A record next to it proves both. A library in
the cache folder runs as the user, so no other user may have been able to write it.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvcast.errors import LibraryMissingError, in_one_line
from kvcast.runtimes.native.compiler import (
    ANOTHER_COMPILER,
    SOURCES,
    SUFFIX,
    UNFINISHED,
    Compiler,
    compile_library,
    compilers,
    find_compiler,
    sources_digest,
)
from kvcast.runtimes.native.opcodes import SCHEMA
from kvcast.spec.files import cache_dir

ABI = 7
"""The result of `kvcast_abi` of a library that this version of kvcast can call."""

SHIPPED = Path(__file__).parent / "lib"
LIBRARY, RECORD = f"libkvcast{SUFFIX}", "libkvcast.json"

_ANEW = "install kvcast anew, or use --runtime onnx, which works without it"


@dataclass(frozen=True, kw_only=True)
class Library:
    path: Path
    shipped: bool


def open_library(on_compile: Callable[[], None] = lambda: None) -> ctypes.CDLL:
    """Return the library, compiled if necessary; raises LibraryMissingError."""
    return _loaded(find_library(), on_compile)


def _loaded(existing: Library | None, on_compile: Callable[[], None]) -> ctypes.CDLL:
    path, shipped = (existing.path, existing.shipped) if existing else (_compile(on_compile), False)
    try:
        library = ctypes.CDLL(str(path))
        number = library.kvcast_abi()
        if number == ABI:
            library.kvcast_schema.restype = ctypes.c_char_p
            schema = library.kvcast_schema().decode()
    except (OSError, AttributeError) as error:
        elsewhere = f"remove {path}, or set KVCAST_CACHE to a folder from which libraries may run"
        raise LibraryMissingError(
            f"kvcast's native library cannot be loaded: {in_one_line(error)}: "
            f"{_ANEW if shipped else elsewhere}"
        ) from None
    if number != ABI:
        raise LibraryMissingError(
            f"{path} has functions of version {number} and not {ABI}: install kvcast anew"
        )
    if schema != SCHEMA.text:
        raise LibraryMissingError(f"{path} reads other instructions: install kvcast anew")
    return library


def library_path(on_compile: Callable[[], None] = lambda: None) -> Path:
    existing = find_library()
    return existing.path if existing else _compile(on_compile)


def find_library() -> Library | None:
    """Return the library if there is a complete one; nothing is compiled.

    If its compiler is gone, it is used only if there is no other. Raises LibraryMissingError for a
    library that other users could have written, and for a damaged one that came with kvcast.
    """
    sources = sources_digest(SOURCES)
    shipped, record = SHIPPED / LIBRARY, read_record(SHIPPED / RECORD)
    if shipped.is_file() and _is_ours(record, sources):
        if not is_whole(shipped, record):
            raise LibraryMissingError(f"kvcast's native library {shipped} is damaged: {_ANEW}")
        return Library(path=shipped, shipped=True)
    kept = next(filter(_is_kept, _places(sources)), None)
    return None if kept is None else Library(path=kept.resolve(), shipped=False)


def check_compiler() -> None:
    """Raise LibraryMissingError if there is no compiler, or if it failed with these sources."""
    compiler = find_compiler()
    log = _log(_path(compiler, sources_digest(SOURCES)))
    if log.is_file():
        raise LibraryMissingError(
            f"kvcast's native library could not be compiled with {compiler.command[0]}: {log} "
            f"says why; {ANOTHER_COMPILER}"
        )


def is_there(on_compile: Callable[[], None] = lambda: None) -> bool:
    """Return whether a library loads, compiling it if necessary; a failure is not retried here."""
    try:
        existing = find_library()
        if existing is None:
            check_compiler()
        _loaded(existing, on_compile)
    except LibraryMissingError:
        return False
    return True


def write_shipped(folder: Path, log: Path) -> None:
    """Compile a library to `folder`, with its record; raises LibraryMissingError, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    compile_library(find_compiler(), SOURCES, folder / LIBRARY, log)
    write_record(folder / RECORD, _fields(folder / LIBRARY, sources_digest(SOURCES)))


Fields = Mapping[str, object]


def _fields(library: Path, sources: str) -> Fields:
    return {"sources": sources, "abi": ABI, **contents(library)}


def _is_ours(record: Fields, sources: str) -> bool:
    return record.get("abi") == ABI and sources in ("", record.get("sources"))


def _folder() -> Path:
    return cache_dir() / "native"


def _prefix(sources: str) -> str:
    return sources[:24]


def _path(compiler: Compiler, sources: str) -> Path:
    return _folder() / f"{_prefix(sources)}-{compiler.digest}{SUFFIX}"


def _places(sources: str) -> list[Path]:
    """Return the possible paths of a library in the cache folder, best first."""
    compiled: list[Path] = []
    with contextlib.suppress(LibraryMissingError):  # CXX may be no command
        compiled = [_path(compiler, sources) for compiler in compilers()]
    if any(path.is_file() for path in compiled):
        return compiled
    left = sorted(_folder().glob(f"{_prefix(sources)}*{SUFFIX}"))
    try:
        if left:
            find_compiler()
    except LibraryMissingError:
        return left
    return []


def _is_kept(path: Path) -> bool:
    """Return whether the cache folder has a complete library that others cannot have written."""
    if not path.is_file():
        return False
    _refuse_if_others_write(path.resolve())
    return is_whole(path, read_record(_record(path)))


def _record(library: Path) -> Path:
    return library.with_suffix(".json")


def _log(library: Path) -> Path:
    return library.with_suffix(".log")


def _compile(on_compile: Callable[[], None]) -> Path:
    sources = sources_digest(SOURCES)
    if not sources:
        raise LibraryMissingError(f"kvcast's native library and its sources are missing: {_ANEW}")
    compiler = find_compiler()
    path = _path(compiler, sources)
    try:
        with _only_compiler(path):
            if not _is_kept(path):
                on_compile()
                compile_library(compiler, SOURCES, path, _log(path))
                write_record(_record(path), _fields(path, sources))
                _refuse_if_others_write(path.resolve())
            return path.resolve()
    except OSError as error:
        raise LibraryMissingError(
            f"kvcast's native library cannot be compiled: cannot write {path.parent} "
            f"({error.strerror}): set KVCAST_CACHE to a folder of your own"
        ) from None


@contextmanager
def _only_compiler(path: Path) -> Iterator[None]:
    """Wait while another process compiles the same library; remove the folders of killed ones."""
    from filelock import FileLock

    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        for left in path.parent.glob(f"{path.stem}.*{UNFINISHED}"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _refuse_if_others_write(library: Path) -> None:
    """Raise LibraryMissingError unless only the user could have written or replaced the library."""
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


def contents(library: Path) -> Fields:
    data = library.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def is_whole(library: Path, record: Fields) -> bool:
    try:
        if library.stat().st_size != record.get("size"):
            return False
        return contents(library).items() <= record.items()
    except OSError:
        return False


def read_record(path: Path) -> Fields:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def write_record(path: Path, fields: Fields) -> None:
    path.write_text(json.dumps(dict(fields)) + "\n", encoding="utf-8")
