"""Formats whose every case ends as its name says: what the runner must notice."""

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from kvcast.errors import KvcastError
from mutation.damage import damaged_bytes
from mutation.whole import Format


def _make(folder: Path) -> None:
    (folder / "sample").mkdir()
    (folder / "sample" / "file").write_bytes(bytes(1000))


def _refuse(_: Path) -> None:
    raise KvcastError("damaged")


def _fail(_: Path) -> None:
    raise IndexError("list index out of range")


def _panic(_: Path) -> None:
    raise SystemExit


def _take_memory(_: Path) -> None:
    np.ones(1 << 28, np.uint8)


_USES: Mapping[str, Callable[[Path], object]] = {
    "opened": lambda _: None,
    "refused": _refuse,
    "traceback": _fail,
    "panic": _panic,
    "crashed": lambda _: os.abort(),
    "hung": lambda _: signal.pause(),
    "memory": _take_memory,
}
FORMATS = {
    name: Format("failing", _make, damaged_bytes, "file", use, room=1 << 27)  # type: ignore[arg-type]
    for name, use in _USES.items()
}
