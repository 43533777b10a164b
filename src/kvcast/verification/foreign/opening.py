"""Recognises a folder by its files and opens it. Knows the readers and no format."""

from pathlib import Path

from kvcast.bundle.manifest import is_bundle
from kvcast.errors import InputMissingError, KvcastError, UsageError
from kvcast.machine.child import ask
from kvcast.verification.foreign import executorch, genai, optimum
from kvcast.verification.foreign.base import ForeignModel, Reader

READERS: tuple[Reader, ...] = (genai.READER, optimum.READER, executorch.READER)
_CHILD = "kvcast.verification.foreign.opening:open_and_step"
_SECONDS = 300


def reader_of(folder: Path) -> Reader:
    """Return the reader of a folder; raises KvcastError with one line where there is none."""
    if not folder.is_dir():
        raise InputMissingError(f"no folder {folder}: give one that another tool exported")
    if is_bundle(folder):
        raise UsageError(f"{folder} is a bundle of kvcast's own: leave out --foreign")
    for reader in READERS:
        if reader.detect(folder):
            return reader
    kinds = "; ".join(reader.name for reader in READERS)
    raise KvcastError(f"{folder} holds no exported decoder that is known here: {kinds}")


def open_foreign(folder: Path, threads: int, *, trust: bool) -> ForeignModel:
    """Open a folder; one with native code only where its maker is trusted, first in a child.

    Raises:
        KvcastError: it is of no known kind, is damaged, or contains native code without trust.

    """
    reader = reader_of(folder)
    if native := list(reader.native(folder)):
        if not trust:
            raise KvcastError(
                f"{native[0]} can contain native code: give --trust if you trust its maker"
            )
        answer = ask(_CHILD, str(folder.absolute()), seconds=_SECONDS)
        if answer.ended:
            raise KvcastError(f"{native[0]} was opened in a process of its own: {answer.problem}")
    return reader.open(folder, threads)


def open_and_step(folder: str) -> None:
    """Open a folder, in a process that a crash may end."""
    path = Path(folder)
    reader_of(path).open(path, 1)
