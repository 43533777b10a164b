import os

import pytest

from kvcast.errors import InputOutputError
from kvcast.saving import save


def test_a_failed_write_leaves_the_old_file_and_no_fragment(tmp_path, monkeypatch):
    target = tmp_path / "a.txt"
    save(target, "old")

    def no_space(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(InputOutputError, match=r"cannot write .*a\.txt: No space left on device"):
        save(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_saved_file_has_the_permissions_that_the_user_chose(tmp_path):
    before = os.umask(0o027)
    try:
        save(tmp_path / "a.txt", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640
