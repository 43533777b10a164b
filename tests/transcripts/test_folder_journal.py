import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcast.errors import InputOutputError, UsageError
from kvcast.transcripts.folders import journal
from kvcast.transcripts.folders.journal import Entry, is_inside, opened_journal, sealed, unsealed

ODD = os.fsdecode(b"caf\xe9 \n\x1b.wav")


def entry(path: str, **changed) -> Entry:
    name = path.rpartition(".")[0]
    made = Entry(
        path=path,
        size=5,
        mtime_ns=1_700_000_000_123_456_789,
        sha256="0" * 64,
        options="f" * 64,
        status="done",
        reason="",
        name=name,
        outputs={f"{name}.txt": "1" * 64},
        duration=2.5,
        language="en",
    )
    return replace(made, **changed)


ENTRIES = [entry("a.wav"), entry("talks/b.mp3"), entry(ODD), entry("c.wav", size=7)]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def read(out: Path) -> tuple[dict[str, Entry], int]:
    with opened_journal(out, out.parent / "in") as opened:
        return dict(opened.entries), opened.damaged


def write(out: Path, *entries: Entry) -> Path:
    with opened_journal(out, out.parent / "in") as opened:
        for each in entries:
            opened.append(each)
    return out / ".kvcast" / "journal.jsonl"


def test_entries_come_back_as_they_were_and_the_last_one_counts(out):
    path = write(out, *ENTRIES, entry("a.wav", size=9))
    assert read(out) == ({each.path: each for each in [*ENTRIES, entry("a.wav", size=9)]}, 0)
    lines = path.read_text().splitlines()
    assert len(lines) == 1 + len(ENTRIES)  # what no longer counts was left out
    assert json.loads(lines[0])["folder"] == str(out.parent / "in")
    assert all(json.loads(line)["check"] for line in lines)


def test_an_intact_journal_is_not_rewritten(out):
    path = write(out, *ENTRIES)
    before = path.stat()
    read(out)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_damage_costs_the_lines_it_touches_and_no_more(data, out):
    path = out / ".kvcast" / "journal.jsonl"
    path.unlink(missing_ok=True)
    write(out, *ENTRIES)
    whole = path.read_bytes()
    content = bytearray(whole)
    touched = set()
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3, unique=True)):
        content[at] ^= data.draw(st.integers(1, 255))
        touched.add(at)
    end = data.draw(st.integers(0, len(whole)) | st.just(len(whole)))
    path.write_bytes(content[:end])
    starts = [0]
    for line in whole.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spared = {
        each.path: each
        for each, start, stop in zip(ENTRIES, starts[1:], starts[2:], strict=False)
        # A line is also lost with the newline before it, which parts it from the one before.
        if stop <= end and not any(start - 1 <= at < stop for at in touched)
    }
    entries, damaged = read(out)
    assert spared.items() <= entries.items()
    assert all(each in ENTRIES for each in entries.values())
    assert damaged > 0 or bytes(content[:end]) in {whole[:start] for start in starts}, (
        "damage went unseen"
    )
    # It is repaired, and what is appended afterwards is not lost to a torn line before it.
    write(out, entry("new.wav"))
    assert read(out) == (entries | {"new.wav": entry("new.wav")}, 0)


@given(
    st.binary(max_size=300)
    | st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda part: (
            st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3)
        ),
        max_leaves=5,
    ).map(lambda record: sealed(record) if isinstance(record, dict) else b"{}\n")
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_any_bytes_are_a_journal_without_entries(out, content: bytes):
    state = out / ".kvcast"
    state.mkdir(exist_ok=True)
    (state / "journal.jsonl").write_bytes(content)
    assert read(out)[0] == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "../a.wav", "name": "../a", "outputs": {}},
        {"path": "/etc/a.wav", "name": "/etc/a", "outputs": {}},
        {"path": "x/../../a.wav", "name": "x/../../a", "outputs": {}},
        {"path": "a\0.wav", "name": "a\0", "outputs": {}},
        {"path": "", "name": "", "outputs": {}},
        {"name": "other"},
        {"name": "../a"},
        {"outputs": {"../a.txt": "1"}},
        {"outputs": {"/etc/passwd": "1"}},
        {"outputs": {"a.x/../../b": "1"}},
        {"outputs": {"b.txt": "1"}},
        {"outputs": {"a.txt": 1}},
        {"outputs": []},
        {"size": "5"},
        {"size": True},
        {"mtime_ns": 1.5},
        {"status": "kept"},
        {"language": 3},
        {"duration": "1"},
        {"more": 1},
    ],
    ids=str,
)
def test_entries_that_leave_the_folder_or_are_odd_are_not_believed(changed: dict, out):
    path = write(out, entry("b.wav"))
    with path.open("ab") as stream:
        stream.write(sealed(asdict(entry("a.wav")) | changed))
    assert read(out) == ({"b.wav": entry("b.wav")}, 1)


def test_paths_inside():
    assert all(map(is_inside, ("a", "a/b.wav", "a/..b", "...", "a b")))
    assert not any(map(is_inside, ("", "/", "/a", "a/", "a//b", ".", "a/./b", "..", "a/..", "\0")))


def test_a_line_is_ascii_and_any_change_shows():
    line = sealed(asdict(ENTRIES[2]))
    assert unsealed(line) == asdict(ENTRIES[2])
    assert line.isascii()
    assert line.count(b"\n") == 1
    for at in range(len(line)):
        assert unsealed(line[:at]) is None
        assert unsealed(line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]) is None


def test_reading_takes_bounded_memory(out, monkeypatch):
    path = write(out, *ENTRIES)
    monkeypatch.setattr(journal, "_LONGEST_LINE", 1000)
    with path.open("ab") as stream:
        stream.write(b"x" * 5000 + b"\n" + sealed(asdict(entry("d.wav"))) + b"y" * 2500)
    assert read(out) == ({each.path: each for each in [*ENTRIES, entry("d.wav")]}, 2)
    monkeypatch.setattr(journal, "_MOST_BYTES", 100)
    with pytest.raises(InputOutputError, match="is too large"):
        read(out)


def test_another_folders_transcripts_are_left_alone_unless_that_folder_is_gone(out):
    write(out, *ENTRIES)
    other = out.parent / "other"
    other.mkdir()
    with (
        pytest.raises(UsageError, match=r"holds the transcripts of .*in: give .*other another"),
        opened_journal(out, other),
    ):
        pass
    (out.parent / "in").rename(out.parent / "moved")
    with opened_journal(out, out.parent / "moved") as opened:
        assert len(opened.entries) == len(ENTRIES)


def test_another_versions_journal_is_left_alone(out):
    path = write(out)
    path.write_bytes(sealed({"format": journal.JOURNAL_FORMAT, "version": 2, "folder": "x"}))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="of format 2"):
        read(out)
    assert path.read_bytes() == before


def test_two_runs_cannot_share_a_folder(out):
    with opened_journal(out, out.parent / "in"):
        code = (
            "import sys; from pathlib import Path\n"
            "from kvcast.transcripts.folders.journal import opened_journal\n"
            "with opened_journal(Path(sys.argv[1]), Path(sys.argv[2])): pass"
        )
        other = subprocess.run(
            [sys.executable, "-c", code, str(out), str(out.parent / "in")],
            capture_output=True,
            text=True,
            check=False,
        )
    assert f"another kvcast is writing to {out}: wait" in other.stderr.splitlines()[-1]
    assert read(out) == ({}, 0)


def test_partial_files_of_a_killed_run_are_removed(out):
    write(out)
    (out / ".kvcast" / ".kvcast-0123.part").write_text("half")
    read(out)
    assert sorted(path.suffix for path in (out / ".kvcast").iterdir() if path.name != "lock") == [
        ".jsonl"
    ]


def test_whatever_is_in_the_journals_place_is_one_line(out):
    state = out / ".kvcast"
    state.mkdir()
    elsewhere = out.parent / "elsewhere"
    elsewhere.write_text("precious")
    (state / "journal.jsonl").symlink_to(elsewhere)
    with pytest.raises(InputOutputError, match=r"journal\.jsonl cannot be read"):
        read(out)
    assert elsewhere.read_text() == "precious"
    (state / "journal.jsonl").unlink()
    os.mkfifo(state / "journal.jsonl")
    with pytest.raises(InputOutputError, match=r"journal\.jsonl is no file: remove it"):
        read(out)


def test_a_link_in_the_states_place_is_refused(out):
    elsewhere = out.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x.part").touch()
    (out / ".kvcast").symlink_to(elsewhere)
    with pytest.raises(InputOutputError, match="is a link"):
        read(out)
    assert (elsewhere / "x.part").exists()


def test_a_file_in_the_states_place_is_one_line(out):
    (out / ".kvcast").touch()
    with pytest.raises(InputOutputError, match=r"cannot write .*\.kvcast"):
        read(out)
