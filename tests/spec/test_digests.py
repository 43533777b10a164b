import hashlib
import os

import pytest

from kvcast.spec import files
from kvcast.spec.files import cache_dir, sha256_of


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "kvcast-cache"))


@pytest.fixture
def hashed(monkeypatch):
    """The paths of files that were hashed, in order."""
    paths = []
    read = files.file_sha256
    monkeypatch.setattr(files, "file_sha256", lambda path: paths.append(path) or read(path))
    return paths


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A file large enough for a note; files count as settled immediately."""
    monkeypatch.setattr(files, "_SETTLED_NS", -1)
    path = tmp_path / "weights"
    path.write_bytes(b"a" * files._WORTH_A_NOTE)
    return path


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_large_file_is_hashed_once(large, hashed):
    assert sha256_of(large) == sha256_of(large) == sha256(large)
    assert hashed == [large]


def test_a_changed_file_is_hashed_again_even_with_its_old_size_and_modification_time(large, hashed):
    sha256_of(large)
    status = large.stat()
    with large.open("r+b") as file:
        file.write(b"b")
    os.utime(large, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert large.stat().st_mtime_ns == status.st_mtime_ns
    assert sha256_of(large) == sha256(large)
    assert hashed == [large, large]


def test_another_file_in_its_place_is_hashed_again(large, hashed):
    sha256_of(large)
    other = large.with_name("other")
    other.write_bytes(b"c" * files._WORTH_A_NOTE)
    other.replace(large)
    assert sha256_of(large) == sha256(large)
    assert len(hashed) == 2


def test_a_file_that_was_just_written_leaves_no_note(large, hashed, monkeypatch):
    monkeypatch.setattr(files, "_SETTLED_NS", 3_600_000_000_000)
    sha256_of(large)
    assert not cache_dir().exists()
    assert sha256_of(large) == sha256(large)
    assert len(hashed) == 2


def test_small_files_leave_no_note(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_SETTLED_NS", -1)
    path = tmp_path / "small"
    path.write_bytes(b"x")
    assert sha256_of(path) == sha256(path)
    assert not cache_dir().exists()


@pytest.mark.parametrize("damage", [b"", b"\xff", b"short", b"1 2 3 4 5 " + b"0" * 64])
def test_a_damaged_note_is_not_believed(large, damage):
    sha256_of(large)
    (note,) = (cache_dir() / "digests").iterdir()
    note.write_bytes(damage)
    assert sha256_of(large) == sha256(large)


def test_a_cache_that_cannot_be_written_only_costs_time(large, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "file"))
    assert sha256_of(large) == sha256(large)
