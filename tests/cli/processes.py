"""Runs `kvcast` with scripted models in a subprocess, and reads its pseudo-terminal."""

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, str(Path(__file__).with_name("scripted_program.py"))]
TRANSCRIBE = ("transcribe", "--model", "demo")
LIVE = (*TRANSCRIBE, "--live", "-")


def start(*words: str | Path, environment: dict[str, str] | None = None, **streams: Any) -> Any:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.Popen([*PROGRAM, *words], **streams, env=os.environ | (environment or {}))


def read_all(terminal: int) -> str:
    shown = b""
    try:
        while chunk := os.read(terminal, 4096):
            shown += chunk
    except OSError:  # how Linux reports that a terminal has no writers any more
        pass
    os.close(terminal)
    return shown.decode()


def on_terminal(
    *words: str | Path, streams: Sequence[str] = ("stdout", "stderr"), **settings: Any
) -> tuple[Any, str]:
    seen, terminal = pty.openpty()
    process = start(*words, **dict.fromkeys(streams, terminal), **settings)
    os.close(terminal)
    shown = read_all(seen)
    out, err = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, out, err), shown
