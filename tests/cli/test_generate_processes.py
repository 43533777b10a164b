"""`kvcast generate` as a process: standard input, pipes that close, signals, full disks."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.generate_fakes import PIECES, TEXT, FakeTextModel
from kvcast.cli import main

COMMAND = [sys.executable, str(Path(__file__).with_name("generate_fakes.py")), "generate"]


def start(*words: str | bytes, **settings) -> subprocess.Popen:
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
    return subprocess.Popen([*COMMAND, *words], **settings)


@pytest.fixture
def _interruptible():
    """A shell's background jobs ignore Ctrl-C, and so would what the tests start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_prompt_is_piped_in_and_text_is_utf_8_in_any_locale():
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    process = start("-", "--quiet", stdin=subprocess.PIPE, env=environment)
    assert process.communicate("Grüße\n".encode()) == (f"{TEXT}\n".encode(), b"")
    assert process.returncode == 0


def test_prompts_are_piped_in_and_objects_piped_out():
    process = start("--prompts", "-", "--quiet", stdin=subprocess.PIPE)
    out, err = process.communicate('{"prompt": "東京", "id": 1}\n"b"\n'.encode())
    assert (process.returncode, err) == (0, b"")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["東京#0", "b#0"]


@pytest.mark.parametrize(
    ("words", "content", "code"),
    [
        (["-"], b"", 2),
        (["-"], b"\xff", 74),
        (["--prompts", "-"], b"", 2),
        (["--prompts", "-"], b'"a"\n{"prompt"}\n', 74),
        ([os.fsdecode(b"\xff")], b"", 2),
    ],
)
def test_bad_input_is_one_line(words, content: bytes, code: int, open_as, monkeypatch, capfd):
    open_as(FakeTextModel())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert main(["generate", *words]) == code
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("kvcast: ")


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_while_text_streams_keeps_what_came():
    process = start("slow")
    first = process.stdout.read(len(PIECES[0]))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, first + out) == (130, f"{PIECES[0]}\n".encode())
    assert err == b"kvcast: interrupted\n"


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_between_prompts_keeps_the_objects_that_were_printed():
    process = start("--prompts", "-", stdin=subprocess.PIPE)
    process.stdin.write(b"a\nslow\n")
    process.stdin.close()
    process.stdin = None
    first = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, first["prompt"], out) == (130, "a", b"")
    assert err == b"kvcast: interrupted\n"


@pytest.mark.parametrize("words", [["a"], ["a", "--json"]])
def test_a_reader_that_leaves_ends_the_run_quietly(words: list[str]):
    reading, writing = os.pipe()
    os.close(reading)
    process = start(*words, stdout=writing)
    os.close(writing)
    _, err = process.communicate()
    assert (process.returncode, err) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
@pytest.mark.parametrize("words", [["a"], ["a", "--json"]])
def test_a_full_disk_on_standard_output_ends_the_run_with_74(words: list[str]):
    with Path("/dev/full").open("wb") as full:
        process = start(*words, stdout=full)
        _, err = process.communicate()
    assert process.returncode == 74
    assert err == b"kvcast: cannot write standard output: No space left on device\n"


def test_a_closed_standard_output_is_told():
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "a"], stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 74
    assert done.stderr.startswith("kvcast: standard output is closed")
    assert done.stderr.count("\n") == 1


def test_help_imports_nothing_heavy():
    program = (
        "import sys\nfrom kvcast.cli import main\n"
        "try: main(['generate', '--help'])\nexcept SystemExit: pass\n"
        "print('loaded:', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.rsplit("loaded:", 1)[1].split())
    assert "argparse" in loaded
    assert loaded & {"numpy", "torch", "onnxruntime", "rich", "tokenizers", "jinja2"} == set()
