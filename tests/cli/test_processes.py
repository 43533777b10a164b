"""What only a real process shows: pipes that close, signals, terminals, full disks."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.cli_fakes import ESCAPES

FAKES = Path(__file__).with_name("cli_fakes.py")
WIDE = {"TERM": "xterm", "COLUMNS": "300"}  # a line has room for the longest temporary path
COMMAND = [sys.executable, str(FAKES), "transcribe", "--model", "demo"]


def start(*words: str, **settings) -> subprocess.Popen:
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
    return subprocess.Popen([*COMMAND, *words], **settings)


def read_all(terminal: int) -> str:
    """Read what was shown until the last writer leaves."""
    shown = b""
    try:
        while chunk := os.read(terminal, 4096):
            shown += chunk
    except OSError:  # how Linux tells that a terminal has no writers any more
        pass
    os.close(terminal)
    return shown.decode()


def test_a_reader_that_leaves_ends_the_run_quietly(recording):
    reading, writing = os.pipe()
    os.close(reading)
    process = start(recording("a.wav"), recording("b.wav"), stdout=writing)
    os.close(writing)
    _, err = process.communicate()
    assert (process.returncode, err) == (141, b"")


def test_a_reader_that_leaves_the_help_ends_it_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    process = start("--help", stdout=writing)
    os.close(writing)
    _, err = process.communicate()
    assert (process.returncode, err) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
def test_a_full_disk_on_standard_output_ends_the_run_with_74(recording):
    with Path("/dev/full").open("wb") as full:
        process = start(recording("a.wav"), recording("b.wav"), stdout=full)
        _, err = process.communicate()
    assert process.returncode == 74
    assert err == b"kvcast: cannot write standard output: No space left on device\n"


def test_a_closed_standard_output_is_told(recording):
    name = recording("a.wav")
    script = f'exec "$@" >&- {name}'
    done = subprocess.run(["sh", "-c", script, "sh", *COMMAND], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 74
    assert done.stderr.startswith("kvcast: standard output is closed")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def _interruptible():
    """A shell's background jobs ignore Ctrl-C, and so would what the tests start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, b"interrupted"), (signal.SIGTERM, 143, b"terminated")],
)
def test_a_signal_keeps_finished_files_and_leaves_no_fragment(
    number, code, said, recording, tmp_path
):
    out = tmp_path / "out"
    process = start(recording("a.wav"), recording("slow.wav"), "-o", str(out))
    shown = [process.stdout.readline() for _ in range(3)]  # all of a.wav, begin of slow.wav
    process.send_signal(number)
    _, err = process.communicate()
    assert shown[2] == b"Hello there,\n"
    assert (process.returncode, err) == (code, b"kvcast: " + said + b"\n")
    assert [path.name for path in out.iterdir()] == ["a.txt"]


def test_output_is_utf_8_in_any_locale(recording):
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    out, err = start(recording("a.wav"), env=environment).communicate()
    assert "Grüße aus 東京" in out.decode("utf-8")
    assert err == b""


def test_a_terminal_is_shown_escapes_and_a_pipe_gets_the_text_as_it_is(recording):
    for words in ([], ["--json"]):
        seen, terminal = pty.openpty()
        process = start(recording("odd.wav"), "--quiet", *words, stdout=terminal, stderr=terminal)
        os.close(terminal)
        shown = read_all(seen).replace("\r\n", "\n")
        assert process.wait() == 0
        assert shown.count("\n") == 1
        assert shown.strip().isprintable()
        assert "a\\u001b]0;owned\\u0007 \\u009b31m\\b\\r\\u007fb" in shown.replace(
            "\\u0008\\u000d", "\\b\\r"
        )
        if words:
            assert json.loads(shown)["segments"][0]["text"] == f" a{ESCAPES}b"
    out, _ = start(recording("odd.wav")).communicate()
    assert out.decode() == f"a{ESCAPES}b\n"


def test_names_and_messages_on_a_terminal_have_no_escapes(recording):
    seen, terminal = pty.openpty()
    missing = f"none{ESCAPES}\n.wav"
    process = start(recording(f"odd{ESCAPES}.wav"), missing, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = read_all(seen)
    process.wait()
    assert "owned" in shown
    assert ESCAPES[0:3] not in shown
    assert not set("\x07\x9b\x08\x7f") & set(shown)


@pytest.mark.parametrize(
    ("words", "drawn", "printed"),
    [
        (
            ["transcribe", "--model", "demo"],
            ["loading demo: compiling decode", "of 3661 s"],
            b"Hello there,\n",
        ),
        (["export", "demo", "--output"], ["exporting demo: compiling decode"], b""),
    ],
    ids=["transcribe", "export"],
)
def test_progress_is_drawn_on_a_terminal_and_kept_out_of_a_pipe(words, drawn, printed, recording):
    seen, terminal = pty.openpty()
    command = [sys.executable, str(FAKES), *words, recording("a.wav")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=terminal, env=os.environ | WIDE
    )
    os.close(terminal)
    shown = read_all(seen)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert [text for text in drawn if text not in shown] == []
    assert out.startswith(printed)
    assert b"compiling" not in out
    assert b"\x1b" not in out
    piped = subprocess.run(command, capture_output=True, check=True)
    assert b"compiling" not in piped.stdout + piped.stderr


@pytest.mark.parametrize(
    ("words", "terminal_type"), [(["--quiet"], "xterm"), ([], "dumb")], ids=["quiet", "dumb"]
)
def test_no_progress_where_it_is_not_wanted_or_cannot_be_redrawn(words, terminal_type, recording):
    seen, terminal = pty.openpty()
    environment = os.environ | {"TERM": terminal_type}
    process = start(recording("a.wav"), *words, stderr=terminal, env=environment)
    os.close(terminal)
    shown = read_all(seen)
    process.communicate()
    assert (process.returncode, shown) == (0, "")


def test_transcript_and_progress_share_one_terminal(recording):
    seen, terminal = pty.openpty()
    process = start(
        recording("a.wav"), stdout=terminal, stderr=terminal, env=os.environ | {"TERM": "xterm"}
    )
    os.close(terminal)
    shown = read_all(seen)
    process.communicate()
    assert process.returncode == 0
    # The bar is wiped before a line is printed: each line of text begins a line of its own.
    for line in ("Hello there,", "Grüße aus 東京"):
        assert any(part.split("\x1b[2K")[-1].startswith(line) for part in shown.split("\n"))


def test_a_terminal_is_no_recording(recording):
    seen, terminal = pty.openpty()
    process = start("-", stdin=terminal)
    os.close(terminal)
    _, err = process.communicate()
    os.close(seen)
    assert process.returncode == 2
    assert b"pipe one in" in err
