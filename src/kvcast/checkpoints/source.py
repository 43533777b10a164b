"""From what a user calls a model to its folder, its fingerprint and its checkpoint.

Knows which formats and packaged models there are, and nothing of what is in them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kvcast.checkpoints import ctranslate2, huggingface, packaged
from kvcast.checkpoints.base import Reader, WhisperCheckpoint
from kvcast.checkpoints.digests import combined_sha256
from kvcast.checkpoints.hub import download, is_hub_id
from kvcast.errors import InputMissingError, InputOutputError, KvcastError, UsageError

# The first that recognises a folder reads it: CTranslate2's folders also have a config.json.
_READERS: tuple[Reader, ...] = (ctranslate2.READER, huggingface.READER)

_PACKAGED: Mapping[str, Callable[[], Path]] = {
    "demo": packaged.demo,
    "demo-base": packaged.demo_base,
}


def locate(model: str) -> Path:
    """Folder of `model`: `demo`, `demo-base`, a folder, or a hub id `org/name[@revision]`.

    A folder that is called like a packaged model is reached as `./demo`. Fetches from the hub when
    needed. Raises KvcastError (InputMissingError where nothing has that name) with one line.
    """
    with _os_errors_as_ours():
        if model in _PACKAGED:
            return _PACKAGED[model]()
        folder = Path(model)
        if model and folder.is_dir():
            return folder
        if model and folder.exists():
            raise UsageError(f"{model} is a file: give the folder that holds the model")
    if is_hub_id(model):
        return download(model)
    raise InputMissingError(
        f"no model {model!r}: give a folder, a hub id (org/name or org/name@revision), "
        f"or one of {', '.join(_PACKAGED)}"
    )


def fingerprint(folder: Path) -> str:
    """SHA-256 (hexadecimal) over the files that a checkpoint is read from, without parsing them.

    Files of a megabyte or more are hashed once and remembered (see `digests`).
    """
    with _os_errors_as_ours():
        reader = _reader_of(folder)
        return combined_sha256(reader.name, reader.files(folder))


def open_checkpoint(folder: Path) -> WhisperCheckpoint:
    """Read the checkpoint in `folder`; its tensors are read when looked up.

    Raises KvcastError with one line for a folder that holds no supported, whole checkpoint.
    """
    with _os_errors_as_ours():
        return _reader_of(folder).read(folder, fingerprint(folder))


@contextmanager
def _os_errors_as_ours() -> Iterator[None]:
    """Name the file and the reason where the operating system refuses one."""
    try:
        yield
    except OSError as error:
        raise InputOutputError(f"cannot read {error.filename}: {error.strerror}") from None


def _reader_of(folder: Path) -> Reader:
    for reader in _READERS:
        if reader.detect(folder):
            return reader
    formats = "; ".join(reader.name for reader in _READERS)
    raise KvcastError(f"{folder} holds no model that kvcast can read ({formats})")
