"""Finds a model, and adapters, by the names that a user gives; fingerprints and opens them.

A name is a folder, a file, a packaged model or a hub id; for adapters, `=` and a weight may follow.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kvcast.checkpoints import packaged
from kvcast.checkpoints.base import Checkpoint, CheckpointReader
from kvcast.checkpoints.decoder.mistral import READER as MISTRAL
from kvcast.checkpoints.decoder.mistral import read_dimensions as read_params
from kvcast.checkpoints.gguf.reader import READER as GGUF
from kvcast.checkpoints.gguf.reader import is_gguf, read_gguf_adapter
from kvcast.checkpoints.hub import ADAPTER_PATTERNS, download, is_hub_id, snapshot_in
from kvcast.checkpoints.hub_names import SPEECH, TEXT, hub_id_of
from kvcast.checkpoints.huggingface import READER as HUGGING_FACE
from kvcast.checkpoints.huggingface import read_dimensions as read_config
from kvcast.checkpoints.lora import Adapter, Layout
from kvcast.checkpoints.peft import CONFIG, is_peft, read_peft
from kvcast.checkpoints.speech.ctranslate2 import READER as CTRANSLATE2
from kvcast.checkpoints.speech.moonshine_ort import READER as MOONSHINE_VOICE
from kvcast.checkpoints.text2text.bergamot import READER as BERGAMOT
from kvcast.checkpoints.text2text.bert4keras import READER as BERT4KERAS
from kvcast.checkpoints.unsupported import refuse_file, refuse_folder, refuse_name
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
    MOONSHINE_VOICE,
    BERGAMOT,
    GGUF,
)

_ADDRESS = re.compile(r"(https?://)?(hf\.co|huggingface\.co)/")  # Ollama's spelling, and pages
PACKAGED: Mapping[str, Callable[[], Path]] = {
    "demo": packaged.demo,
    "demo-base": packaged.demo_base,
    "demo-chat": packaged.demo_chat,
    "demo-t5": packaged.demo_t5,
    "demo-unilm": packaged.demo_unilm,
}


def locate(model: str, on_phase: OnPhase = ignore_phase) -> Path:
    """Return the folder or GGUF file of a packaged model, a path, or a hub id.

    A hub id is `org/name[@revision]`, with `:Q4_K_M` for the GGUF file of that quantization, or
    one's usual name (`hub_names`); it is downloaded when needed. Packaged models are `demo`,
    `demo-base`, `demo-chat`, `demo-t5` and `demo-unilm`; `./demo` is a folder. Raises KvcastError
    with one line (InputMissingError if nothing has that name).
    """
    with os_errors_as_ours():
        if model in PACKAGED:
            return PACKAGED[model]()
        path = Path(model)
        if model and (path.is_dir() or is_gguf(path)):
            return snapshot_in(path)
        if model and path.exists():
            refuse_file(path)
    model = _ADDRESS.sub("", model)
    if is_hub_id(model):
        return download(model, on_phase)
    if hub_id := hub_id_of(model):
        return download(hub_id, on_phase)
    refuse_name(model)
    close = get_close_matches(model.lower(), [*PACKAGED, *SPEECH, *TEXT], n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    raise InputMissingError(
        f"no model {model!r}{meant}: give a folder, a GGUF file, a hub id (org/name or "
        f"org/name@revision; org/name:Q4_K_M for a GGUF file), one of {', '.join(PACKAGED)}, or a "
        "usual name that kvcast models lists, such as base or qwen3:0.6b"
    )


def fingerprint(path: Path, adapters: Sequence[Adapter] = ()) -> str:
    """SHA-256 (hexadecimal) of a checkpoint's files and of its adapters with their weights."""
    with os_errors_as_ours():
        reader = _reader_of(path)
        digest = combined_sha256(reader.name, reader.files(path))
        if not adapters:
            return digest
        lines = [digest, *(f"{adapter.digest()} {adapter.weight!r}" for adapter in adapters)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def open_checkpoint(path: Path, adapters: Sequence[Adapter] = ()) -> Checkpoint:
    """Open the checkpoint in a folder or GGUF file; its tensors are read on lookup.

    Adapters are merged into the weights as these are read. Raises KvcastError with one line if
    there is no supported, complete checkpoint, or an adapter does not fit it.
    """
    with os_errors_as_ours():
        reader = _reader_of(path)
        reader.files(path)  # raises if one is missing
        if not adapters:
            return reader.read(path)
        if (layout := reader.adapter_layout) is None:
            raise UsageError(f"{path}: adapters need the Hugging Face model, or a GGUF file")
        for adapter in adapters:
            if adapter.layout != layout:
                raise UsageError(f"{adapter.name} {_OTHER_LAYOUT[adapter.layout]}")
        return reader.read(path, adapters)


def known_types() -> Mapping[type[Any], Mapping[str, Sequence[str]]]:
    """Model types with their formats, by their family's class of dimensions."""
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
    """Read dimensions, for which a configuration is enough."""
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
    """Turn OSErrors into InputOutputError with the file and the reason."""
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


_SUFFIX = ".gguf"


def open_adapters(
    named: str | Path | Sequence[str | Path], on_phase: OnPhase = ignore_phase
) -> list[Adapter]:
    """Open adapters; raises KvcastError with one line (InputMissingError for unknown names)."""
    several = [named] if isinstance(named, str | Path) else named
    return [_open_adapter(str(name), on_phase) for name in several]


def notices_of(adapters: Sequence[Adapter], model: str) -> list[str]:
    """Return a line for each adapter that says it was trained for another model."""
    own = _last_part(model)
    return [
        f"{adapter.name} was trained for {adapter.base}, which may not be {model}"
        for adapter in adapters
        if adapter.layout == "PEFT" and adapter.base and _last_part(adapter.base) != own
    ]


def _last_part(model: str) -> str:
    name = Path(model).resolve().name if Path(model).exists() else model.rpartition("/")[2]
    return name.partition("@")[0].lower()


def _open_adapter(word: str, on_phase: OnPhase) -> Adapter:
    name, weight = _split(word)
    with os_errors_as_ours():
        path = _locate(name, on_phase)
        files = sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() and not is_peft(path) else []
        if path.is_file() or len(files) == 1:
            adapter = read_gguf_adapter(files[0] if files else path, _public(name))
        elif path.is_dir() and is_peft(path):
            adapter = read_peft(path, _public(name))
        else:
            raise KvcastError(
                f"{path} holds no adapter: neither {CONFIG} of PEFT nor one GGUF file"
            )
    return replace(adapter, weight=weight)


def _split(word: str) -> tuple[str, float]:
    name, equals, text = word.rpartition("=")
    if not equals or Path(word).exists():
        return word, 1.0
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight) or not name:
        raise UsageError(f"adapter must be NAME or NAME=WEIGHT, a number, not {word!r}")
    return name, weight


def _locate(name: str, on_phase: OnPhase) -> Path:
    path = Path(name)
    if name and path.is_dir():
        return snapshot_in(path)
    if name and path.is_file():
        if path.suffix.lower() != _SUFFIX:
            raise UsageError(f"{path} is no GGUF file: give a folder in PEFT's layout, or one")
        return path
    if is_hub_id(name):
        return download(name, on_phase, patterns=ADAPTER_PATTERNS)
    raise InputMissingError(
        f"no adapter {name!r}: give a folder in PEFT's layout, a GGUF file or a hub id"
    )


def _public(name: str) -> str:
    """Return a hub id unchanged, and the last part of a path."""
    return Path(name).resolve().name if Path(name).exists() else name
