"""Which recordings of a folder are found, and how their transcripts are named."""

import os
import posixpath
import time
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcast.errors import UsageError
from kvcast.transcripts.folders.recordings import find, instant_ns, may_be_named, named
from kvcast.transcripts.params import FolderParams


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in (
        *("b.wav", "a.MP3", "notes.txt", ".hidden.wav", "._a.mp3"),
        *("talks/c.m4a", "talks/deep/d.opus", "talks/deep/e.dat", ".git/f.wav", "out/g.wav"),
    ):
        place = tmp_path / "in" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(path)
    return tmp_path / "in"


def paths_in(folder: Path, **options) -> list[str]:
    params = FolderParams(**options)
    return [recording.path for recording in find(folder, params, besides=folder / "out").recordings]


def test_recordings_are_found_by_extension_and_not_hidden(folder):
    assert paths_in(folder) == ["a.MP3", "b.wav"]
    nested = ["talks/c.m4a", "talks/deep/d.opus"]
    assert paths_in(folder, recursive=True) == ["a.MP3", "b.wav", *nested]


def test_size_and_time_are_those_of_the_file(folder):
    recording = find(folder, FolderParams(), besides=folder / "out").recordings[1]
    seen = (folder / "b.wav").stat()
    assert (recording.size, recording.mtime_ns) == (5, seen.st_mtime_ns)


def test_patterns_take_what_they_match_and_nothing_else(folder):
    assert paths_in(folder, recursive=True, glob="*.dat") == ["talks/deep/e.dat"]
    assert paths_in(folder, recursive=True, glob=["*.dat", "b.*"]) == ["b.wav", "talks/deep/e.dat"]
    deep = ["talks/deep/d.opus", "talks/deep/e.dat"]
    assert paths_in(folder, recursive=True, glob="deep/*") == deep
    assert paths_in(folder, glob="*") == ["a.MP3", "b.wav", "notes.txt"]


@pytest.mark.parametrize("pattern", ["", ".", "/x/*.wav"])
def test_patterns_that_cannot_match_are_refused(pattern: str):
    with pytest.raises(UsageError, match="glob"):
        FolderParams(glob=pattern)


def test_newer_than_a_file_as_find_has_it(folder):
    reference = folder.parent / "mark"
    reference.touch()
    now = reference.stat().st_mtime_ns
    os.utime(folder / "a.MP3", ns=(now, now))
    os.utime(folder / "b.wav", ns=(now, now + 1))
    assert paths_in(folder, newer=str(reference)) == ["b.wav"]
    assert find(folder, FolderParams(newer=str(reference)), besides=folder / "out").older == 1


def test_newer_than_a_date_in_local_time_or_with_an_offset(folder, monkeypatch):
    monkeypatch.setenv("TZ", "UTC-2")  # two hours east of Greenwich, as POSIX writes it
    time.tzset()
    try:
        assert instant_ns("2024-01-31") == instant_ns("2024-01-30T22:00+00:00")
        assert instant_ns("2024-01-30T22:00:00.25+00:00") == 1706652000 * 10**9 + 250_000_000
    finally:
        monkeypatch.undo()
        time.tzset()
    stamp = datetime(2024, 1, 31, 12).timestamp()
    os.utime(folder / "a.MP3", (stamp, stamp))
    assert paths_in(folder, newer="2024-01-31T12:00") == ["b.wav"]
    assert paths_in(folder, newer="2024-01-31") == ["a.MP3", "b.wav"]


@pytest.mark.parametrize("text", ["yesterday", "2024-13-01", "gone.wav", "a\0b"])
def test_newer_than_nothing_known_is_one_line(text: str, folder):
    with pytest.raises(UsageError, match="not a date such as") as error:
        paths_in(folder, newer=text)
    assert "\n" not in str(error.value)


def test_links_to_folders_are_listed_and_not_followed(folder):
    (folder / "loop").symlink_to(folder)
    (folder / "talks" / "up").symlink_to("..")
    (folder / "linked.wav").symlink_to(folder / "b.wav")
    (folder / "circle.wav").symlink_to("circle.wav")
    (folder / "gone.wav").symlink_to("nowhere")
    seen = find(folder, FolderParams(recursive=True), besides=folder / "out")
    assert [recording.path for recording in seen.recordings[:3]] == ["a.MP3", "b.wav", "linked.wav"]
    assert len(seen.recordings) == 5
    assert sorted(seen.links) == ["loop", "talks/up"]
    problems = {problem.path: problem.reason for problem in seen.problems}
    assert set(problems) == {"circle.wav", "gone.wav"}
    assert problems["gone.wav"] == "cannot be read: No such file or directory"


def test_a_folder_that_cannot_be_read_is_a_problem_and_the_others_are_searched(folder, monkeypatch):
    scan = os.scandir

    def refuse(path):
        if Path(path).name == "deep":
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    seen = find(folder, FolderParams(recursive=True), besides=folder / "out")
    assert [recording.path for recording in seen.recordings] == ["a.MP3", "b.wav", "talks/c.m4a"]
    assert [(problem.path, problem.reason) for problem in seen.problems] == [
        ("talks/deep", "cannot be read: Permission denied")
    ]


def test_pipes_are_not_waited_for(folder):
    os.mkfifo(folder / "pipe.wav")
    assert paths_in(folder) == ["a.MP3", "b.wav"]


def test_names_that_are_not_utf_8_are_kept(folder):
    (folder / os.fsdecode(b"caf\xe9.wav")).touch()
    assert os.fsencode(paths_in(folder)[-1]) == b"caf\xe9.wav"


names = st.sampled_from(["a", "A", "a.b", "é", "e\u0301", "talk"])
ends = st.sampled_from(["", ".mp3", ".wav", ".MP3", ".mp3.wav", ".mp3-2"])
paths = st.builds(lambda at, name, end: at + name + end, st.sampled_from(["", "x/"]), names, ends)


COMPOSED, APART = "\u00e9.wav", "e\u0301.mp3"


@pytest.mark.parametrize(
    ("names", "assigned"),
    [
        ({"a.mp3": "a", "talks/a.mp3": "talks/a", "talks/b.v2.wav": "talks/b.v2"}, {}),
        ({"a.mp3": "a.mp3", "a.wav": "a.wav", "b.wav": "b"}, {}),
        # A stem that is another recording's whole name is not used.
        ({"a.mp3": "a.mp3", "a.wav": "a.wav", "a.mp3.wav": "a.mp3.wav"}, {}),
        # An assigned name stays unique, also where its recording is gone.
        ({"a.mp3": "a", "a.wav": "a.wav"}, {"a.mp3": "a"}),
        ({"a.wav": "a.wav"}, {"a.mp3": "a"}),
        # Capitals and accents keep no two apart.
        ({"A.wav": "A.wav", "a.wav": "a.wav-2"}, {}),
        ({APART: APART, COMPOSED: COMPOSED}, {}),
    ],
    ids=str,
)
def test_a_transcript_lies_where_its_recording_does_under_its_stem_if_no_other_has_it(
    names: dict[str, str], assigned: dict[str, str]
):
    assert named(list(names), assigned) == names


@given(st.lists(names, unique=True), st.data())
def test_names_differ_fit_their_recordings_and_survive_a_kill(listed: list[str], data):
    listed.sort()
    whole = named(listed, {})
    assert len({name.casefold() for name in whole.values()}) == len(listed)
    for path, name in whole.items():
        assert may_be_named(path, name)
        assert posixpath.dirname(path) == posixpath.dirname(name)
    done = data.draw(st.sets(st.sampled_from(listed))) if listed else set()
    assert named(listed, {path: whole[path] for path in done}) == whole


def test_other_names_are_not_believed():
    for name in ("b", "x/a", "a.mp3-", "a.mp3-x", "a.mp", "../a", "a.mp3.txt"):
        assert not may_be_named("a.mp3", name)
