"""A cache folder for one test, with the native library that this run has compiled already."""

import os
from pathlib import Path

import pytest


def own_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Make `folder` the cache; return it. Compiling takes as long as a hundred tests."""
    compiled = Path(os.environ["KVCAST_CACHE"]).resolve() / "native"
    compiled.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "native").symlink_to(compiled)
    monkeypatch.setenv("KVCAST_CACHE", str(folder))
    return folder
