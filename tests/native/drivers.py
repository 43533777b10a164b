"""Compiles driver.cpp with the library's sources into one program."""

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvcast.native.compiler import SOURCES

_DRIVER = Path(__file__).parent / "driver.cpp"
_FLAGS = ("-std=c++17", "-fno-math-errno", "-ffp-contract=off", "-pthread", "-w")


def compile_driver(command: Sequence[str], folder: Path) -> Path:
    """Return the program; skips where the command cannot compile anything."""
    words = [*command, *_FLAGS]
    folder.mkdir(parents=True, exist_ok=True)
    tiny = folder / "tiny.cpp"
    tiny.write_text("int main() { return 0; }\n")
    try:
        done = subprocess.run([*words, tiny, "-o", folder / "tiny"], capture_output=True)
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not installed")
    if done.returncode:
        pytest.skip(f"{' '.join(command)} cannot compile here: {done.stderr.decode()[:200]}")

    def compile_one(source: Path) -> Path:
        to = folder / f"{source.stem}.o"
        subprocess.run([*words, f"-I{SOURCES}", "-c", source, "-o", to], check=True)
        return to

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, [*SOURCES.glob("*.cpp"), _DRIVER]))
    program = folder / "driver"
    subprocess.run([*words, *objects, "-o", program], check=True)
    return program
