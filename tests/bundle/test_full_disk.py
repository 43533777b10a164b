"""An error of any library on a full disk says that the disk is full."""

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from kvcast import saving
from kvcast.bundle.writing import stage
from kvcast.cli import console
from kvcast.errors import InputOutputError, KvcastError
from kvcast.loading import exporting
from kvcast.runtimes.native import compiler

FULL = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "Disk quota exceeded"),
        (SafetensorError("serializing: I/O error: gone (os error 28)"), FULL),
        (SafetensorError("I/O error: denied (os error 30)"), "Read-only file system"),
    ],
    ids=str,
)
def test_the_systems_reason_is_told(error: Exception, reason: str, tmp_path: Path):
    target = tmp_path / "bundle"
    with pytest.raises(InputOutputError) as told, stage(target, overwrite=False):
        raise error
    assert str(told.value) == f"cannot write {target}: {reason}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("172032 requested and 63488 written"), InputOutputError),
        (RuntimeError("PytorchStreamWriter failed"), RuntimeError),
    ],
)
def test_while_there_is_no_room_any_error_is_the_disks(error, kind, monkeypatch, tmp_path: Path):
    with pytest.raises(kind, match=str(error)), stage(tmp_path / "bundle", overwrite=False):
        raise error
    monkeypatch.setattr(saving, "room_at", lambda _: 0)
    with pytest.raises(InputOutputError, match=FULL), stage(tmp_path / "bundle", overwrite=False):
        raise error
    with pytest.raises(KvcastError, match="as it is"), stage(tmp_path / "bundle", overwrite=False):
        raise KvcastError("as it is")


def test_an_export_that_has_no_room_is_refused_before_it_begins(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(exporting, "room_at", lambda _: 10**6)
    with pytest.raises(InputOutputError, match=r"No space left on device: it takes .* 1\.0 MB are"):
        exporting.export_bundle("demo", tmp_path / "bundle", runtime="native")
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_without_room_is_not_remembered_as_broken(monkeypatch, tmp_path: Path):
    sources = tmp_path / "src"
    sources.mkdir()
    (sources / "a.cpp").write_text("#error", encoding="utf-8")
    library, log = tmp_path / "library.so", tmp_path / "library.log"
    monkeypatch.setattr(compiler, "is_full", lambda _: True)
    with pytest.raises(OSError, match=FULL):
        compiler.compile_library(compiler.find_compiler(), sources, library, log)
    assert not log.exists()


def test_an_error_of_a_disk_is_no_internal_error(capsys):
    assert console.report(OSError(errno.ENOSPC, FULL, "/out/a")) == 74
    assert capsys.readouterr().err == f"kvcast: cannot write /out/a: {FULL}\n"
    assert console.report(OSError(errno.ENOSPC, FULL)) == 74
    assert console.report(OSError(errno.ENAMETOOLONG, "too long", "aaa")) == 74
    assert "cannot read aaa: too long" in capsys.readouterr().err
    assert console.report(OSError("of a library")) == 1
    assert "internal error" in capsys.readouterr().err


def test_a_name_that_is_too_long_is_told_before_the_work(tmp_path: Path):
    refused = pytest.raises(InputOutputError, match="File name too long")
    with refused, stage(tmp_path / ("a" * 256), overwrite=False):
        raise AssertionError("work has begun")
