"""Behaviour of a real process: pipes that close, signals, terminals, full disks."""

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from cli.fakes import ESCAPES, PIECES, TEXT
from cli.live_fakes import pcm
from cli.processes import LIVE, PROGRAM, TRANSCRIBE, on_terminal, read_all, start

WIDE = {"TERM": "xterm", "COLUMNS": "300"}  # a line has room for the longest temporary path
RECORDINGS = (*TRANSCRIBE, "a.wav", "b.wav")
GENERATE = ("generate", "-m", "m", "a")


@pytest.fixture(autouse=True)
def _recordings(tmp_path, monkeypatch):
    for name in ("a.wav", "b.wav", "slow.wav", "odd.wav"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", [RECORDINGS, (*TRANSCRIBE, "--help"), LIVE, GENERATE], ids=str)
def test_a_reader_that_leaves_ends_the_run_quietly(words):
    reading, writing = os.pipe()
    os.close(reading)
    process = start(*words, stdin=subprocess.PIPE, stdout=writing)
    os.close(writing)
    try:
        _, err = process.communicate(pcm(3), timeout=60)
    except BrokenPipeError:
        err = process.stderr.read()
        process.wait(timeout=60)
    assert (process.returncode, err) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
@pytest.mark.parametrize("words", [RECORDINGS, GENERATE], ids=str)
def test_a_full_disk_on_standard_output_ends_the_run_with_74(words):
    with Path("/dev/full").open("wb") as full:
        process = start(*words, stdout=full)
        _, err = process.communicate()
    assert process.returncode == 74
    assert err == b"kvcast: cannot write standard output: No space left on device\n"


@pytest.mark.parametrize("words", [RECORDINGS, GENERATE], ids=str)
def test_a_closed_standard_output_is_reported(words):
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, *words]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 74
    assert done.stderr.startswith("kvcast: standard output is closed")
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, b"interrupted"), (signal.SIGTERM, 143, b"terminated")],
)
def test_a_signal_keeps_finished_files_and_leaves_no_fragment(number, code, said):
    process = start(*TRANSCRIBE, "a.wav", "slow.wav", "-o", "out")
    shown = [process.stdout.readline() for _ in range(3)]  # all of a.wav, begin of slow.wav
    process.send_signal(number)
    _, err = process.communicate()
    assert shown[2] == b"Hello there,\n"
    assert (process.returncode, err) == (code, b"kvcast: " + said + b"\n")
    assert [path.name for path in Path("out").iterdir()] == ["a.txt"]


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_while_text_streams_keeps_what_came():
    process = start("generate", "-m", "m", "slow")
    first = process.stdout.read(len(PIECES[0]))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, first + out) == (130, f"{PIECES[0]}\n".encode())
    assert err == b"kvcast: interrupted\n"


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_between_prompts_keeps_the_objects_that_were_printed():
    process = start("generate", "-m", "m", "--prompts", "-", stdin=subprocess.PIPE)
    process.stdin.write(b"a\nslow\n")
    process.stdin.close()
    process.stdin = None
    first = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, first["prompt"], out) == (130, "a", b"")
    assert err == b"kvcast: interrupted\n"


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(
    ("number", "code", "rest", "said"),
    [
        (signal.SIGINT, 0, b"!\n", b"kvcast: standard input: 1.2 s of audio, 2 words"),
        (signal.SIGTERM, 143, None, b"kvcast: terminated\n"),
    ],
)
def test_ctrl_c_settles_the_rest_of_live_audio_and_a_termination_ends_it(number, code, rest, said):
    process = start(*LIVE, stdin=subprocess.PIPE)
    process.stdin.write(pcm(1.2))
    process.stdin.flush()
    assert process.stdout.read(5) == b"w1 w2"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert rest in (out, None)
    assert process.returncode == code
    assert err.startswith(said)


def test_text_is_utf_8_in_any_locale():
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    out, err = start(*TRANSCRIBE, "a.wav", environment=environment).communicate()
    assert "Grüße aus 東京" in out.decode("utf-8")
    assert err == b""
    words = ("generate", "-m", "m", "-", "--quiet")
    process = start(*words, stdin=subprocess.PIPE, environment=environment)
    assert process.communicate("Grüße\n".encode()) == (f"{TEXT}\n".encode(), b"")


def test_prompts_are_piped_in_and_objects_piped_out():
    process = start("generate", "-m", "m", "--prompts", "-", "--quiet", stdin=subprocess.PIPE)
    out, err = process.communicate('{"prompt": "東京", "id": 1}\n"b"\n'.encode())
    assert (process.returncode, err) == (0, b"")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["東京#0", "b#0"]


def test_a_terminal_is_shown_escapes_and_a_pipe_gets_the_text_unchanged():
    for words in ([], ["--json"]):
        ended, shown = on_terminal(*TRANSCRIBE, "odd.wav", "--quiet", *words)
        shown = shown.replace("\r\n", "\n")
        assert ended.returncode == 0
        assert shown.count("\n") == 1
        assert shown.strip().isprintable()
        assert "a\\u001b]0;owned\\u0007 \\u009b31m\\b\\r\\u007fb" in shown.replace(
            "\\u0008\\u000d", "\\b\\r"
        )
        if words:
            assert json.loads(shown)["segments"][0]["text"] == f" a{ESCAPES}b"
    out, _ = start(*TRANSCRIBE, "odd.wav").communicate()
    assert out.decode() == f"a{ESCAPES}b\n"


def test_names_and_messages_on_a_terminal_have_no_escapes():
    Path(f"odd{ESCAPES}.wav").touch()
    _, shown = on_terminal(*TRANSCRIBE, f"odd{ESCAPES}.wav", f"none{ESCAPES}\n.wav")
    assert "owned" in shown
    assert ESCAPES[0:3] not in shown
    assert not set("\x07\x9b\x08\x7f") & set(shown)


@pytest.mark.parametrize(
    ("words", "drawn", "printed"),
    [
        (TRANSCRIBE, ["loading demo: compiling decode", "of 3661 s"], b"Hello there,\n"),
        (("export", "demo", "--output"), ["exporting demo: compiling decode"], b""),
    ],
    ids=["transcribe", "export"],
)
def test_progress_is_drawn_on_a_terminal_and_kept_out_of_a_pipe(words, drawn, printed):
    ended, shown = on_terminal(*words, "a.wav", streams=["stderr"], environment=WIDE)
    assert ended.returncode == 0
    assert [text for text in drawn if text not in shown] == []
    assert ended.stdout.startswith(printed)
    assert b"compiling" not in ended.stdout
    assert b"\x1b" not in ended.stdout
    piped = start(*words, "a.wav").communicate()
    assert b"compiling" not in b"".join(piped)


@pytest.mark.parametrize(
    ("words", "terminal_type"), [(["--quiet"], "xterm"), ([], "dumb")], ids=["quiet", "dumb"]
)
def test_no_progress_where_it_is_not_wanted_or_cannot_be_redrawn(words, terminal_type):
    environment = {"TERM": terminal_type}
    ended, shown = on_terminal(
        *TRANSCRIBE, "a.wav", *words, streams=["stderr"], environment=environment
    )
    assert (ended.returncode, shown) == (0, "")


def test_transcript_and_progress_share_one_terminal():
    ended, shown = on_terminal(*TRANSCRIBE, "a.wav", environment={"TERM": "xterm"})
    assert ended.returncode == 0
    # The bar is wiped before a line is printed: each line of text begins a line of its own.
    for line in ("Hello there,", "Grüße aus 東京"):
        assert any(part.split("\x1b[2K")[-1].startswith(line) for part in shown.split("\n"))


def test_live_text_that_may_change_is_grey_on_a_terminal():
    seen, terminal = pty.openpty()
    environment = {"TERM": "xterm", "COLUMNS": "80"}
    streams = {"stdin": subprocess.PIPE, "stdout": terminal, "stderr": subprocess.DEVNULL}
    process = start(*LIVE, **streams, environment=environment)
    os.close(terminal)
    process.stdin.write(pcm(1.2))
    process.stdin.flush()
    shown = b""
    while b"\x1b[90m" not in shown:
        shown += os.read(seen, 4096)
    process.stdin.write(pcm(1.2))
    process.stdin.close()
    text = shown.decode() + read_all(seen)
    assert process.wait(timeout=60) == 0
    assert "w1 w2\x1b[90m w3?\x1b[0m" in text
    assert "w1 w2 w3 w4" in text


def test_a_terminal_is_no_recording():
    ended, _ = on_terminal(*TRANSCRIBE, "-", streams=["stdin"])
    assert ended.returncode == 2
    assert b"pipe one in" in ended.stderr
