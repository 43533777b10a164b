"""The library's C++ under sanitizers, driven by a program of its own (driver.cpp)."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvcast.errors import LibraryMissingError
from kvcast.native.compiler import SOURCES, find_compiler

pytestmark = pytest.mark.slow
DRIVER = Path(__file__).parent / "driver.cpp"
FLAGS = ("-std=c++17", "-g", "-O1", "-fno-math-errno", "-ffp-contract=off", "-pthread", "-w")


def compiled(sanitizers: str, folder: Path) -> Path:
    """The driver with the library's sources; skips where the sanitizers are not installed."""
    try:
        compiler = find_compiler()
    except LibraryMissingError as error:
        pytest.skip(str(error))
    words = [*compiler.command, *FLAGS, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    tiny = folder / "tiny.cpp"
    tiny.write_text("int main() { return 0; }\n")
    trial = [*words, tiny, "-o", folder / "tiny"]
    if subprocess.run(trial, capture_output=True, check=False).returncode:
        pytest.skip(f"{compiler.command[0]} has no -fsanitize={sanitizers} here")

    def compile_one(source: Path) -> Path:
        to = folder / f"{source.stem}.o"
        subprocess.run([*words, f"-I{SOURCES}", "-c", source, "-o", to], check=True)
        return to

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, [*SOURCES.glob("*.cpp"), DRIVER]))
    subprocess.run([*words, *objects, "-o", folder / "driver"], check=True)
    return folder / "driver"


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_a_driver_finds_nothing(sanitizers: str, tmp_path: Path) -> None:
    driver = compiled(sanitizers, tmp_path)
    for seed in range(3):
        done = subprocess.run([driver, str(seed)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
