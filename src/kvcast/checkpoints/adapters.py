"""Finds the adapters that a user names, and opens them.

A name is a folder, a GGUF file or a hub id, with `=` and a weight where that is not 1. Knows which
layouts there are, and nothing of their contents.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvcast.checkpoints.gguf_adapter import read_gguf_adapter
from kvcast.checkpoints.hub import ADAPTER_PATTERNS, download, is_hub_id, snapshot_in
from kvcast.checkpoints.merging import Adapter
from kvcast.checkpoints.peft import CONFIG, is_peft, read_peft
from kvcast.checkpoints.source import os_errors_as_ours
from kvcast.errors import InputMissingError, KvcastError, UsageError
from kvcast.spec.runtimes import OnPhase, ignore_phase

_SUFFIX = ".gguf"


def open_adapters(
    named: str | Path | Sequence[str | Path], on_phase: OnPhase = ignore_phase
) -> list[Adapter]:
    """Open adapters by name; their matrices are read when a model's are.

    Raises KvcastError with one line (InputMissingError if nothing has that name). `on_phase` is
    told how much of a download has arrived.
    """
    several = [named] if isinstance(named, str | Path) else named
    return [_opened(str(name), on_phase) for name in several]


def notices_of(adapters: Sequence[Adapter], model: str) -> list[str]:
    """Return a line for each adapter that says it was trained for another model than this."""
    own = _last_part(model)
    return [
        f"{adapter.name} was trained for {adapter.base}, which may not be {model}"
        for adapter in adapters
        if adapter.layout == "PEFT" and adapter.base and _last_part(adapter.base) != own
    ]


def _last_part(model: str) -> str:
    """Return the last part of a path or hub id, without a revision, in small letters."""
    name = Path(model).resolve().name if Path(model).exists() else model.rpartition("/")[2]
    return name.partition("@")[0].lower()


def _opened(word: str, on_phase: OnPhase) -> Adapter:
    name, weight = _split(word)
    with os_errors_as_ours():
        path = _located(name, on_phase)
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
    """Return an adapter's name and its weight."""
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


def _located(name: str, on_phase: OnPhase) -> Path:
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
    """Return a hub id as it is, and the last part of a path."""
    return Path(name).resolve().name if Path(name).exists() else name
