"""Bundles that are incomplete, changed or outside their folder are refused; writing is atomic."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import models
from kit.dimensions import SMALL
from kvcast.bundle.manifest import MANIFEST, Manifest, is_bundle, read_bundle
from kvcast.bundle.writing import stage
from kvcast.errors import InputMissingError, KvcastError, UsageError


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(models.bundle(SMALL), tmp_path / "bundle"))


def edit(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    fields = json.loads((bundle / MANIFEST).read_text())
    change(fields)
    (bundle / MANIFEST).write_text(json.dumps(fields))


def test_manifest_round_trips(bundle: Path) -> None:
    manifest = read_bundle(bundle)
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert set(manifest.files) == {
        path.relative_to(bundle).as_posix()
        for path in bundle.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }


def test_a_folder_without_manifest_is_refused(bundle: Path) -> None:
    (bundle / MANIFEST).unlink()
    assert not is_bundle(bundle)
    with pytest.raises(InputMissingError, match=MANIFEST):
        read_bundle(bundle)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"format": "x", "version": 1}'])
def test_a_foreign_manifest_is_refused(bundle: Path, text: str) -> None:
    (bundle / MANIFEST).write_text(text)
    with pytest.raises(KvcastError, match=r"manifest|format"):
        read_bundle(bundle)


RECORD = {"size": 1, "sha256": "0"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda fields: fields.update(version=99), "99"),
        (lambda fields: fields.pop("dimensions"), "dimensions"),
        (lambda fields: fields["files"].pop("onnx/decode.onnx"), "no checksum for onnx/decode"),
        *(
            (lambda fields, path=path: fields["files"].update({path: RECORD}), "outside")
            for path in ("../other", "/etc/hostname", "onnx/../../other")
        ),
    ],
)
def test_a_changed_manifest_is_refused(bundle: Path, change: Callable, words: str) -> None:
    (bundle.parent / "other").write_text("x")
    edit(bundle, change)
    with pytest.raises(KvcastError, match=words):
        read_bundle(bundle)


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: bytes([c[0] ^ 1]) + c[1:]])
def test_a_changed_or_missing_file_is_refused(bundle: Path, change: Callable) -> None:
    for path in (bundle / "onnx/encode.onnx", bundle / "onnx/decode.onnx.data"):
        whole = path.read_bytes()
        path.write_bytes(change(whole))
        with pytest.raises(KvcastError, match="checksum"):
            read_bundle(bundle)
        path.write_bytes(whole)
    (bundle / "onnx/encode.onnx").unlink()
    with pytest.raises(KvcastError, match=r"lacks onnx/encode\.onnx"):
        read_bundle(bundle)


def test_a_failed_export_leaves_the_old_bundle(bundle: Path) -> None:
    before = read_bundle(bundle)

    def fail() -> None:
        with stage(bundle, overwrite=True) as folder:
            (folder / "half").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert read_bundle(bundle) == before
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


def test_a_bundle_is_replaced_only_when_asked(bundle: Path) -> None:
    with pytest.raises(UsageError, match="--force"), stage(bundle, overwrite=False):
        pass
    with stage(bundle, overwrite=True) as folder:
        (folder / "new").write_text("x")
    assert [path.name for path in bundle.iterdir()] == ["new"]
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


def test_a_folder_that_is_no_bundle_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("x")
    refused = pytest.raises(UsageError, match="is not a kvcast bundle")
    with refused, stage(tmp_path / "precious", overwrite=True):
        pass
    assert (tmp_path / "precious/file").read_text() == "x"


def test_whoever_can_read_the_manifest_can_read_the_rest() -> None:
    folder = models.bundle(SMALL, runtime="native")
    modes = {path.stat().st_mode for path in folder.rglob("*") if path.is_file()}
    assert modes == {(folder / MANIFEST).stat().st_mode}
