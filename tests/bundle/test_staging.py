"""What a killed export leaves behind is removed by the next one; what is under way stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvcast.bundle import writing
from kvcast.bundle.manifest import MANIFEST
from kvcast.bundle.writing import remove_abandoned, stage

MAKER = """
import sys, time
from pathlib import Path
from kvcast.bundle.writing import stage
from kvcast.cli.console import Terminated, terminable

try:
    with terminable(), stage(Path(sys.argv[1]), overwrite=True) as folder:
        (folder / "half").write_bytes(bytes(1000))
        print("under way", flush=True)
        time.sleep(600)
except Terminated:
    sys.exit(143)
"""
KILLED_WHILE_PUBLISHING = """
import os, signal, sys
from pathlib import Path
from kvcast.bundle.writing import stage

rename = Path.rename

def rename_or_die(path, target):
    if path.name == "new":
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)

Path.rename = rename_or_die
with stage(Path(sys.argv[1]), overwrite=True) as folder:
    (folder / "half").write_bytes(bytes(1000))
"""


def start(script: str, destination: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", script, str(destination)]
    return subprocess.Popen(words, stdout=subprocess.PIPE)


def under_way(destination: Path) -> subprocess.Popen[bytes]:
    maker = start(MAKER, destination)
    assert maker.stdout is not None
    assert maker.stdout.readline() == b"under way\n"
    return maker


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_export_left_is_removed_by_the_next_one(tmp_path: Path):
    maker = under_way(tmp_path / "bundle")
    (left,) = names(tmp_path)
    maker.kill()
    maker.communicate()
    assert names(tmp_path) == [left]
    # The next one may make another bundle.
    with stage(tmp_path / "other", overwrite=False) as folder:
        (folder / MANIFEST).write_text("{}")
        assert left not in names(tmp_path)
    assert names(tmp_path) == ["other"]


def test_what_another_process_or_thread_makes_stays(tmp_path: Path):
    maker = under_way(tmp_path / "bundle")
    with stage(tmp_path / "own", overwrite=False):
        before = names(tmp_path)
        assert len(before) == 2
        remove_abandoned(tmp_path)
        assert names(tmp_path) == before
    maker.kill()
    maker.communicate()


def test_sigterm_leaves_nothing(tmp_path: Path):
    maker = under_way(tmp_path / "bundle")
    maker.send_signal(signal.SIGTERM)
    maker.communicate()
    assert maker.returncode == 143
    assert names(tmp_path) == []


def test_killed_between_two_renames_the_old_bundle_comes_back(tmp_path: Path):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / MANIFEST).write_text("old")
    dead = start(KILLED_WHILE_PUBLISHING, bundle)
    dead.communicate()
    assert dead.returncode == -signal.SIGKILL
    assert not bundle.exists()
    remove_abandoned(tmp_path)
    assert names(tmp_path) == ["bundle"]
    assert (bundle / MANIFEST).read_text() == "old"


def test_killed_while_it_removes_what_was_left_the_rest_goes_later(tmp_path: Path):
    # In the order in which they go: without its lock a folder has nothing else.
    for number, contents in enumerate((["lock", "new"], ["lock"], [])):
        folder = tmp_path / f".kvcast-{number}.part"
        folder.mkdir()
        for name in contents:
            (folder / name).mkdir() if name == "new" else (folder / name).touch()
    remove_abandoned(tmp_path)
    assert names(tmp_path) == []


def test_folders_that_only_look_alike_stay(tmp_path: Path):
    for name in (".kvcast-mine.part", ".bundle.x1y2z3", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").write_text("x")
    (tmp_path / ".kvcast-file.part").write_text("x")
    (tmp_path / ".kvcast-link.part").symlink_to(tmp_path / "new")
    before = names(tmp_path)
    remove_abandoned(tmp_path)
    remove_abandoned(tmp_path / "nowhere")
    assert names(tmp_path) == before


def test_a_folder_taken_for_an_abandoned_one_is_made_again(tmp_path, monkeypatch):
    made = []
    mkdtemp = writing.tempfile.mkdtemp

    def make_and_lose(**where):
        folder = mkdtemp(**where)
        if not made:
            os.rmdir(folder)  # noqa: PTH106 - as another process would, before it is locked
        made.append(folder)
        return folder

    monkeypatch.setattr(writing.tempfile, "mkdtemp", make_and_lose)
    with stage(tmp_path / "bundle", overwrite=False) as folder:
        (folder / "x").write_text("x")
    assert len(made) in (1, 2)
    assert names(tmp_path) == ["bundle"]


def test_a_bundle_has_the_permissions_of_any_new_folder(tmp_path: Path):
    with stage(tmp_path / "bundle", overwrite=False) as folder:
        (folder / "x").write_text("x")
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "bundle").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_parent_that_cannot_be_written_is_one_line(tmp_path: Path):
    from kvcast.errors import InputOutputError

    tmp_path.chmod(0o500)
    with (
        pytest.raises(InputOutputError, match="cannot write"),
        stage(tmp_path / "b", overwrite=False),
    ):
        pass
    tmp_path.chmod(0o700)
