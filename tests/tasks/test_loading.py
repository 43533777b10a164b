"""What the cache folder holds is exported once, however many ask for it."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import kvcast
from bundles import bundle
from kvcast.errors import InputOutputError
from kvcast.tasks import loading
from random_decoders import LLAMA


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """The folders that an exporter was asked to write; it copies a bundle."""
    written: list[Path] = []

    def export(_source: Path, _name: str, output: Path, *_: Any, **__: Any) -> None:
        written.append(output)
        shutil.copytree(bundle(LLAMA), output)

    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "export_folder", export)
    monkeypatch.setattr(loading, "_open_bundle", lambda folder, *_: folder)
    return written


def test_who_asks_while_another_exports_waits_and_exports_nothing(exports: list[Path]) -> None:
    everyone = Barrier(4)

    def load(_: int) -> Any:
        everyone.wait()
        return kvcast.load("demo-unilm", quantize="none")

    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(load, range(4)))
    assert len(exports) == 1
    assert set(opened) == set(exports)


def test_a_cache_folder_that_cannot_be_written_is_one_line(
    exports: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputOutputError, match=r"cannot write .*file/bundles: Not a directory"):
        kvcast.load("demo-unilm", quantize="none")
    assert exports == []
