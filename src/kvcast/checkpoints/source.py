"""Finds a model by the name that a user gives, fingerprints its files and opens its checkpoint.

Knows which formats and packaged models there are, and nothing of their contents.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvcast.checkpoints import packaged
from kvcast.checkpoints.bert4keras import READER as BERT4KERAS
from kvcast.checkpoints.ctranslate2 import READER as CTRANSLATE2
from kvcast.checkpoints.gguf_reader_ import READER as GGUF
from kvcast.checkpoints.gguf_reader_ import is_gguf
from kvcast.checkpoints.huggingface import READER as HUGGING_FACE
from kvcast.checkpoints.huggingface import read_dimensions as read_config
from kvcast.checkpoints.mistral import READER as MISTRAL
from kvcast.checkpoints.mistral import read_dimensions as read_params
from kvcast.checkpoints.base import Checkpoint, CheckpointReader
from kvcast.checkpoints.hub import download, is_hub_id, snapshot_in
from kvcast.checkpoints.merging import Adapter, Layout
from kvcast.checkpoints.refused import refuse_file, refuse_folder, refuse_name
from kvcast.errors import InputMissingError, InputOutputError, KvcastError, UsageError
from kvcast.spec.files import combined_sha256
from kvcast.spec.runtimes import OnPhase, ignore_phase

# The first reader that recognises a folder reads it, so the order matters. CTranslate2's folders
# have a config.json; Mistral's may have one (its reader leaves folders with weights in both layouts
# to Hugging Face's), and so may bert4keras's (without a model_type); any folder may also contain a
# GGUF file.
_READERS: tuple[CheckpointReader, ...] = (
    CTRANSLATE2,
    MISTRAL,
    BERT4KERAS,
    HUGGING_FACE,
    GGUF,
)

_PACKAGED: Mapping[str, Callable[[], Path]] = {
    "demo": packaged.demo,
    "demo-base": packaged.demo_base,
    "demo-chat": packaged.demo_chat,
    "demo-t5": packaged.demo_t5,
    "demo-unilm": packaged.demo_unilm,
}


def locate(model: str, on_phase: OnPhase = ignore_phase) -> Path:
    """Return the folder or GGUF file of a packaged model, a path, or a hub id.

    A hub id is `org/name[@revision]`, or `org/name[@revision]:Q4_K_M` for the GGUF file of that
    quantisation.

    Packaged models are `demo`, `demo-base`, `demo-chat`, `demo-t5` and `demo-unilm`; write `./demo`
    for a folder of that name. `org/name` is downloaded from the hub when needed. Raises KvcastError
    with one line (InputMissingError if nothing has that name). `on_phase` is told how much of a
    download has arrived.
    """
    with os_errors_as_ours():
        if model in _PACKAGED:
            return _PACKAGED[model]()
        path = Path(model)
        if model and (path.is_dir() or is_gguf(path)):
            return snapshot_in(path)
        if model and path.exists():
            refuse_file(path)
    if is_hub_id(model):
        return download(model, on_phase)
    refuse_name(model)
    raise InputMissingError(
        f"no model {model!r}: give a folder, a GGUF file, a hub id (org/name or "
        f"org/name@revision; org/name:Q4_K_M for a GGUF file), or one of {', '.join(_PACKAGED)}"
    )


def fingerprint(path: Path, adapters: Sequence[Adapter] = ()) -> str:
    """Return the SHA-256 (hexadecimal) of a checkpoint's files, without parsing them.

    Adapters that are merged into it and their weights count. Files of a megabyte or more are hashed
    once and remembered (see `digests`).
    """
    with os_errors_as_ours():
        reader = _reader_of(path)
        digest = combined_sha256(reader.name, reader.files(path))
        if not adapters:
            return digest
        lines = [digest, *(f"{adapter.digest()} {adapter.weight!r}" for adapter in adapters)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def open_checkpoint(path: Path, adapters: Sequence[Adapter] = ()) -> Checkpoint:
    """Read the checkpoint in a folder or GGUF file; its tensors are read on lookup.

    Adapters are merged into its weights, each when it is read. Raises KvcastError with one line if
    there is no supported, complete checkpoint, or an adapter does not fit it.
    """
    with os_errors_as_ours():
        reader = _reader_of(path)
        reader.files(path)  # raises where one is missing
        if not adapters:
            return reader.read(path)
        if (layout := reader.adapter_layout) is None:
            raise UsageError(f"{path}: adapters need the Hugging Face model, or a GGUF file")
        for adapter in adapters:
            if adapter.layout != layout:
                raise UsageError(f"{adapter.name} {_OTHER_LAYOUT[adapter.layout]}")
        return reader.read(path, adapters)


def known_types() -> Mapping[type[Any], Mapping[str, Sequence[str]]]:
    """Return the types of models that are read, each with its formats.

    They are grouped by their family's class of dimensions.
    """
    known: dict[type[Any], dict[str, list[str]]] = {}
    for reader in (HUGGING_FACE, *_READERS):
        layout = reader.name.partition(" (")[0]
        for family, types in reader.types.items():
            for kind in types:
                layouts = known.setdefault(family, {}).setdefault(kind, [])
                if layout not in layouts:
                    layouts.append(layout)
    return known


def read_dimensions(path: Path) -> Any:
    """Read the dimensions of the model in a folder or GGUF file; a configuration is enough."""
    with os_errors_as_ours():
        if (path / "config.json").is_file():
            dimensions = read_config(path / "config.json")
            if dimensions is not None:
                return dimensions
        elif (path / "params.json").is_file():
            return read_params(path / "params.json")
    return open_checkpoint(path).dimensions


_OTHER_LAYOUT: Mapping[Layout, str] = {
    "PEFT": "is in PEFT's layout and fits models in Hugging Face layout: give that, or convert the "
    "adapter with llama.cpp's convert_lora_to_gguf.py",
    "GGUF": "fits GGUF files: give the model as one, or the adapter's folder in PEFT's layout",
}


@contextmanager
def os_errors_as_ours() -> Iterator[None]:
    """Turn errors of the operating system into a line with the file and the reason."""
    try:
        yield
    except OSError as error:
        raise InputOutputError(f"cannot read {error.filename}: {error.strerror}") from None


def _reader_of(path: Path) -> CheckpointReader:
    for reader in _READERS:
        if reader.detect(path):
            return reader
    refuse_folder(path)
    formats = "; ".join(reader.name for reader in _READERS)
    raise KvcastError(f"{path} holds no model that kvcast can read ({formats})")
