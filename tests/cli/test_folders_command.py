import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import jsonschema
import pytest
from filelock import FileLock

from cli.fakes import ReadingModel, schema, transcripts, write_files
from cli.processes import TRANSCRIBE, on_terminal, start
from kvcast.cli import main
from kvcast.errors import KvcastError, UsageError
from kvcast.saving import save

ROOT = Path(__file__).parents[2]
SCHEMA = schema("folder")
CONTENTS = {"a.wav": "a", "b.mp3": "b", "talks/a.wav": "c", "talks/deep/d.flac": "d"}


class Model(ReadingModel):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def transcribe(self, source: str, **options):
        self.calls.append(source)
        self.options = options
        return super().transcribe(source)

    def taken(self, folder: Path) -> list[str]:
        paths = [Path(source).relative_to(folder).as_posix() for source in self.calls]
        self.calls.clear()
        return paths


@pytest.fixture
def model(open_as) -> Model:
    made = Model()
    open_as(made)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "in", CONTENTS)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def transcribe(folder: Path, *words: str, out: Path | None = None) -> int:
    at = folder.parent / "out" if out is None else out
    command = ["transcribe", "--model", "demo", str(folder), "--recursive", "-o", str(at)]
    return main([*command, *words])


def files(out: Path) -> list[str]:
    return sorted(transcripts(out))


def document(capsys) -> dict:
    told = json.loads(capsys.readouterr().out)
    jsonschema.validate(told, SCHEMA)
    return told


def statuses(told: dict) -> dict[str, str]:
    return {file["path"]: file["status"] for file in told["files"]}


def test_transcripts_lie_as_their_recordings_do_and_a_table_sums_up(model, folder, out, capsys):
    assert transcribe(folder) == 0
    assert files(out) == ["a.txt", "b.txt", "talks/a.txt", "talks/deep/d.txt"]
    printed = capsys.readouterr()
    assert re.fullmatch(
        r" +files  audio\ndone +4  0:00:08\nkept +0  0:00:00\nfailed +0\n"
        r"in 0:00:00: [\d.]+ times as fast as it plays\n",
        printed.out,
    )
    assert printed.err == ""


def test_the_last_line_counts_skipped_files(model, folder, out, capsys):
    for name in ("notes.txt", "more.TXT", "b", ".hidden.txt", "talks/c.pdf"):
        (folder / name).touch()
    assert main(["transcribe", "--model", "demo", str(folder), "-o", str(out)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "passed over: 3 files (.txt 2, no extension 1) and 1 folder (--recursive)"
    assert transcribe(folder, "--json", "-q") == 0
    assert document(capsys)["passed_over"] == 4


def test_transcripts_beside_their_recordings_are_not_counted(model, folder, capsys):
    assert transcribe(folder, out=folder) == 0
    capsys.readouterr()
    assert transcribe(folder, "--resume", out=folder) == 0
    assert "passed over" not in capsys.readouterr().out


def test_each_transcript_is_that_of_its_file_alone(model, folder, out, tmp_path):
    assert transcribe(folder, "--format", "all", "--workers", "3") == 0
    for path in CONTENTS:
        alone = ["transcribe", "--model", "demo", str(folder / path), "--format", "all", "-q"]
        assert main([*alone, "-o", str(tmp_path / "alone" / path)]) == 0
        for file in (tmp_path / "alone" / path).iterdir():
            assert (out / Path(path).with_suffix(file.suffix)).read_bytes() == file.read_bytes()


def test_the_summary_is_one_document_that_fits_the_schema(model, folder, out, capsys):
    (folder / "bad.wav").write_text("bad")
    assert transcribe(folder, "--json", "--quiet") == 3
    told = document(capsys)
    assert (told["done"], told["kept"], told["failed"]) == (4, 0, 1)
    assert (told["duration"], told["runtime"], told["model"]) == (8.0, "onnx", "demo")
    assert [file["path"] for file in told["files"]] == [
        *("a.wav", "b.mp3", "bad.wav", "talks/a.wav", "talks/deep/d.flac")
    ]
    bad = told["files"][2]
    assert bad["reason"] == f"{folder}/bad.wav is damaged"
    assert (bad["outputs"], bad["duration"], bad["language"]) == ([], None, None)
    assert told["files"][3]["outputs"] == ["talks/a.txt"]


def test_options_of_recognition_reach_the_model(model, folder):
    assert transcribe(folder, "--language", "de", "--beam", "3", "-q") == 0
    assert (model.options["language"], model.options["beam"]) == ("de", 3)


def test_subtitles_are_shaped(model, folder, out):
    assert transcribe(folder, "--format", "srt", "-q") == 0
    whole = (out / "a.srt").read_text()
    assert not model.options["word_timestamps"]
    assert transcribe(folder, "--format", "srt", "--max-line-width", "9", "--resume", "-q") == 0
    assert model.options["word_timestamps"]
    shaped = (out / "a.srt").read_text()
    assert max(len(line) for line in shaped.splitlines() if "-->" not in line) <= 9
    assert shaped != whole


def test_a_bad_recording_is_reported_and_never_stops_the_others(model, folder, out, capsys):
    (folder / "bad.wav").write_text("bad")
    (folder / "bad bug.wav").write_text("bug")
    plain = model._segments

    def segments(source: str, content: bytes):
        if content == b"bug":
            raise ZeroDivisionError("of\nzero")
        return plain(source, content)

    model._segments = segments
    assert transcribe(folder, "--workers", "2") == 3
    assert len(files(out)) == 4
    printed = capsys.readouterr()
    assert sorted(printed.err.splitlines()) == [
        f"kvcast: {folder}/bad bug.wav: internal error (ZeroDivisionError: of zero); please "
        "report it; KVCAST_DEBUG=1 shows the traceback",
        f"kvcast: {folder}/bad.wav is damaged",
    ]
    assert printed.out.splitlines()[-2:] == [
        "bad bug.wav: internal error (ZeroDivisionError: of zero)",
        f"{folder}/bad.wav is damaged",
    ]


def test_resume_keeps_what_is_done_and_loads_no_model_for_it(model, folder, monkeypatch, capsys):
    assert transcribe(folder, "-q") == 0
    model.calls.clear()

    def fail(*_, **__):
        raise KvcastError("not needed")

    monkeypatch.setattr("kvcast.loading.opening.open_model", fail)
    assert transcribe(folder, "--resume", "--json") == 0
    told = document(capsys)
    assert set(statuses(told).values()) == {"kept"}
    assert (told["runtime"], told["duration"]) == (None, 0)
    assert told["files"][0]["duration"] == 2.0
    assert transcribe(folder, "--json") == 1  # without resume all is done again


def test_resume_does_all_again_with_another_model_under_the_same_name(
    model, folder, monkeypatch, capsys
):
    assert transcribe(folder, "-q") == 0
    model.taken(folder)
    monkeypatch.setattr("kvcast.loading.opening.model_digest", lambda *_: "of another")
    assert transcribe(folder, "--resume", "--json") == 0
    assert set(statuses(document(capsys)).values()) == {"done"}
    assert sorted(model.taken(folder)) == sorted(CONTENTS)
    assert transcribe(folder, "--resume", "--json") == 0
    assert set(statuses(document(capsys)).values()) == {"kept"}


@pytest.mark.parametrize(
    "disturb",
    [
        lambda folder, out: (folder / "a.wav").write_text("longer than it was"),
        lambda folder, out: (folder / "a.wav").write_text("z"),
        lambda folder, out: (out / "a.txt").unlink(),
        lambda folder, out: (out / "a.txt").write_text("meddled with"),
    ],
    ids=["larger", "as large", "missing output", "changed output"],
)
def test_resume_transcribes_changed_files_again(disturb, model, folder, out, capsys):
    assert transcribe(folder, "-q") == 0
    stale = (folder / "a.wav").stat().st_mtime_ns
    model.calls.clear()
    disturb(folder, out)
    if (folder / "a.wav").read_text() != "a":
        os.utime(folder / "a.wav", ns=(stale + 1, stale + 1))
    assert transcribe(folder, "--resume", "-q") == 0
    assert model.taken(folder) == ["a.wav"]
    assert transcribe(folder, "--resume", "-q") == 0
    assert model.taken(folder) == []


def test_a_recording_that_was_only_touched_is_kept_and_looked_into_once(model, folder, monkeypatch):
    assert transcribe(folder, "-q") == 0
    model.calls.clear()
    os.utime(folder / "a.wav", ns=(1, 1))
    assert transcribe(folder, "--resume", "-q") == 0
    assert model.taken(folder) == []
    monkeypatch.setattr("kvcast.transcripts.folders.run.RecordingFile.at", None)
    (folder / "a.wav").write_text("b")  # as large, and as old: taken for the same
    os.utime(folder / "a.wav", ns=(1, 1))
    assert transcribe(folder, "--resume", "-q") == 0


CHANGING, OTHERS = ("--beam=2", "--format=srt", "--language=de"), ("--workers=2", "--threads=1")


@pytest.mark.parametrize("option", [*CHANGING, *OTHERS, "--json"])
def test_resume_starts_over_with_options_that_change_transcripts(option: str, model, folder):
    assert transcribe(folder, "-q") == 0
    model.calls.clear()
    assert transcribe(folder, "--resume", "-q", option) == 0
    assert len(model.taken(folder)) == (4 if option in CHANGING else 0)


def test_a_failed_recording_is_tried_again_with_a_notice(model, folder, capsys):
    (folder / "bad.wav").write_text("bad")
    assert transcribe(folder, "-q") == 3
    capsys.readouterr()
    model.calls.clear()
    assert transcribe(folder, "--resume") == 3
    assert model.taken(folder) == ["bad.wav"]
    assert capsys.readouterr().err.splitlines() == [
        "kvcast: recordings that failed before and are tried again: 1",
        f"kvcast: {folder}/bad.wav is damaged",
    ]
    (folder / "bad.wav").write_text("good")
    assert transcribe(folder, "--resume", "-q") == 0
    assert model.taken(folder) == ["bad.wav"]


def test_a_recording_that_changes_meanwhile_fails_and_is_done_the_next_time(model, folder, capsys):
    plain = model._segments

    def segments(source: str, content: bytes):
        if source.endswith("b.mp3"):
            Path(source).write_text("longer")
        return plain(source, content)

    model._segments = segments
    assert transcribe(folder, "-q") == 3
    assert "b.mp3: changed while it was transcribed" in capsys.readouterr().err
    model._segments = plain
    model.calls.clear()
    assert transcribe(folder, "--resume", "-q") == 0
    assert model.taken(folder) == ["b.mp3"]


def test_a_later_recording_never_takes_anothers_name(model, folder, out):
    assert transcribe(folder, "-q", "--glob", "a.wav") == 0
    before = (out / "a.txt").read_bytes()
    (folder / "a.mp3").write_text("another")
    assert transcribe(folder, "-q", "--glob", "a.mp3") == 0
    assert files(out) == ["a.mp3.txt", "a.txt", "talks/a.txt"]
    assert (out / "a.txt").read_bytes() == before


def test_the_output_folder_may_lie_inside_or_be_the_folder_itself(model, folder):
    for out in (folder / "talks", folder / "out", folder):
        other = write_files(folder.parent / f"copy of {out.name}", CONTENTS)
        at = other / out.relative_to(folder)
        entered = [path for path in CONTENTS if at == other or not path.startswith(at.name)]
        for _ in range(2):
            model.calls.clear()
            assert transcribe(other, "-q", "--glob", "*", out=at) == 0
            assert model.taken(other) == entered


def test_older_files_are_no_error(model, folder, out, capsys):
    (folder / "mark").touch()
    os.utime(folder / "mark", (2e9, 2e9))
    assert transcribe(folder, "--newer", str(folder / "mark"), "--json") == 0
    assert document(capsys)["files"] == []
    assert model.calls == []
    os.utime(folder / "b.mp3", (2e9 + 1, 2e9 + 1))
    assert transcribe(folder, "--newer", str(folder / "mark"), "-q") == 0
    assert files(out) == ["b.txt"]


def test_an_unreadable_folder_is_one_failure(model, folder, monkeypatch, capsys):
    scan = os.scandir

    def refuse(path):
        if Path(path).name == "deep":
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scan(path)

    with monkeypatch.context() as patched:  # not while the folder is removed
        patched.setattr(os, "scandir", refuse)
        assert transcribe(folder, "--json") == 3
    printed = capsys.readouterr()
    assert printed.err == f"kvcast: {folder}/talks/deep: cannot be read: Permission denied\n"
    assert statuses(json.loads(printed.out))["talks/deep"] == "failed"


def test_links_to_folders_are_named(model, folder, capsys):
    (folder / "loop").symlink_to(folder)
    assert transcribe(folder) == 0
    assert capsys.readouterr().err == "kvcast: links to folders are not followed: loop\n"


def test_a_second_run_on_one_output_folder_is_refused(model, folder, out, capsys):
    (out / ".kvcast").mkdir(parents=True)
    with FileLock(out / ".kvcast" / "lock"):
        assert transcribe(folder) == 74
    assert capsys.readouterr().err == (
        f"kvcast: another kvcast is writing to {out}: wait for its end, or choose another "
        "--output-dir\n"
    )
    assert model.calls == []
    assert transcribe(folder, "-q") == 0


def test_a_transcript_that_cannot_be_saved_is_its_recordings_failure(model, folder, out, capsys):
    (out / "a.txt").mkdir(parents=True)
    assert transcribe(folder, "-q") == 3
    assert "a.txt" in capsys.readouterr().err
    assert files(out) == ["b.txt", "talks/a.txt", "talks/deep/d.txt"]


def test_a_too_long_name_is_reported_before_any_work(model, folder, out, capsys):
    (folder / f"{'x' * 251}.wav").write_text("long")
    assert transcribe(folder, "-q", "--format", "json") == 3
    assert capsys.readouterr().err.endswith(".json: File name too long\n")
    assert len(files(out)) == 4


def test_a_journal_that_cannot_be_written_ends_the_run(model, folder, monkeypatch, capsys):
    fsync, saved = os.fsync, []

    def full(handle: int) -> None:
        if saved and Path(f"/proc/self/fd/{handle}").readlink().name == "journal.jsonl":
            raise OSError(28, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(
        "kvcast.transcripts.folders.run.save", lambda *a, **k: saved.append(save(*a, **k))
    )
    assert transcribe(folder) == 74
    assert "journal.jsonl: No space left on device" in capsys.readouterr().err
    assert len(model.calls) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["in"], "in is a folder: add --output-dir"),
        (["in", "x.wav", "-o", "out"], "in is a folder: transcribe it in a run of its own"),
        (["x.wav", "--resume"], "--resume is for a folder, and x.wav is a file"),
        (["x.wav", "--glob", "*.wav"], "--glob is for a folder, and x.wav is a file"),
        (["in", "-o", "out", "--newer", "gone"], "gone is not a date such as 2026-01-31"),
        (["in", "-o", "out", "--glob", "/x"], "glob: /x is not a pattern"),
        (["in", "-o", "out", "--workers", "0"], "--workers"),
        (["in", "-o", "out", "--workers", "2", "--batch", "4"], "drop it or --workers"),
    ],
    ids=" ".join,
)
def test_conflicting_options_are_reported_before_any_work(
    words, said, model, folder, monkeypatch, error_line
):
    monkeypatch.chdir(folder.parent)
    Path("x.wav").touch()
    assert main(["transcribe", "--model", "demo", *words]) == 2
    assert said in error_line()
    assert model.calls == []


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "add --recursive for those in its folders, or name files with --glob"),
        (["--recursive"], "recordings: name files with --glob"),
        (["--glob", "*.nope"], "add --recursive for those in its folders, or give another --glob"),
        (["-r", "--glob", "*.nope"], "recordings: give another --glob"),
    ],
    ids=str,
)
def test_the_hint_is_something_that_was_not_done(words, hint, model, tmp_path, error_line):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "notes.txt").touch()
    command = ["transcribe", "--model", "demo", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    assert main([*command, *words]) == 66
    line = error_line()
    assert "holds no matching recordings" in line
    assert line.strip().endswith(hint)
    assert not (tmp_path / "out" / ".kvcast").exists()


def test_a_refused_run_leaves_no_journal_where_none_was(model, folder, out, error_line):
    plain = model.transcribe

    def refuse(*_: object, **__: object):
        raise UsageError("prefix is too long")

    model.transcribe = refuse
    assert transcribe(folder) == 2
    assert "prefix is too long" in error_line()
    assert not (out / ".kvcast").exists()
    model.transcribe = plain
    assert transcribe(folder, "-q") == 0
    before = (out / ".kvcast" / "journal.jsonl").read_bytes()
    model.transcribe = refuse
    assert transcribe(folder, "-q") == 2
    assert (out / ".kvcast" / "journal.jsonl").read_bytes() == before


def test_a_folder_that_is_not_there_is_66(model, tmp_path, capsys):
    assert transcribe(tmp_path / "gone") == 66
    assert "gone: there is no such folder" in capsys.readouterr().err


def started(folder: Path, *words: str, **settings) -> subprocess.Popen:
    return start(
        *TRANSCRIBE, folder, "--recursive", "-o", folder.parent / "out", *words, **settings
    )


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(
    ("number", "code", "workers"), [(signal.SIGINT, 130, 1), (signal.SIGTERM, 143, 2)]
)
def test_a_signal_keeps_finished_files_and_suggests_resume(number, code, workers, folder, out):
    # The others last so much longer than a busy machine takes to send the signal.
    process = started(folder, "--workers", str(workers), environment={"KVCAST_PAUSE": "1"})
    while not (out / "a.txt").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    printed, err = process.communicate()
    assert process.returncode == code
    assert printed == b""
    count = re.fullmatch(
        rb"kvcast: (\d) of 4 recordings are finished; the same command with --resume does the "
        rb"rest\nkvcast: (?:interrupted|terminated)\n",
        err,
    )
    assert 0 <= int(count[1]) < 4
    assert list(out.rglob("*.part")) == []
    resumed = started(folder, "--resume")
    resumed.communicate()
    assert resumed.returncode == 0
    assert len(files(out)) == 4


def test_progress_over_all_files_is_drawn_on_a_terminal(folder, out):
    (folder / "bad.wav").write_text("bad" + "x" * 50)
    environment = {"TERM": "xterm", "COLUMNS": "300", "KVCAST_PAUSE": "0.1"}
    words = (*TRANSCRIBE, folder, "--recursive", "-o", out, "--workers", "2")
    ended, shown = on_terminal(*words, streams=["stderr"], environment=environment)
    assert ended.returncode == 3
    assert re.search(r"[1-5] of 5 recordings.*\d%.* left", shown)
    assert f"kvcast: {folder}/bad.wav is damaged" in shown
    assert b"\x1b" not in ended.stdout
