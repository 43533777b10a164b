"""Builds wheels of this tree, and environments that they are installed into."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip")

Install = Callable[..., Path]
"""`environment` with the wheel of this run."""


def build_wheel(folder: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    words = (*PIP, "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    environ = os.environ | settings
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environ)


def environment(
    wheel: Path, folder: Path, *options: str | Path, extras: str = "", beside: Path | None = None
) -> Path:
    """Install a wheel into an environment of its own; returns its Python.

    Args:
        wheel: its file.
        folder: where to make the environment.
        options: pip's.
        extras: what follows the wheel's name.
        beside: the Python of another environment, whose packages are seen as well.

    """
    words = [sys.executable, "-m", "venv", "--without-pip", folder / "venv"]
    subprocess.run(words, check=True)
    python = folder / "venv/bin/python"
    if beside is not None:
        own, others = map(_packages, (python, beside))
        (own / "beside.pth").write_text(f"{others}\n")
    words = [*PIP, "--python", python, "install", "-q", *options, f"{wheel}{extras}"]
    subprocess.run(words, check=True)
    return python


def _packages(python: Path) -> Path:
    [folder] = python.parents[1].glob("lib/*/site-packages")
    return folder
