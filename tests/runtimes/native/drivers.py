"""Compiles one of the programs here with the library's sources.

AMX is emulated in them where the processor has none, and AVX2's VNNI by that of AVX-512.
"""

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvcast.machine.resources import instruction_sets
from kvcast.runtimes.native.compiler import SOURCES

_HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-fno-math-errno", "-ffp-contract=off", "-pthread", "-w")
_EMULATED = tuple(
    f"-DKVCAST_EMULATE_{name}"
    for name, flag in (("AMX", "amx_int8"), ("AVX_VNNI", "avx_vnni"))
    if flag not in instruction_sets()
)


def compile_object(command: Sequence[str], source: Path, to: Path) -> Path:
    subprocess.run([*command, f"-I{SOURCES}", "-c", source, "-o", to], check=True)
    return to


def compile_programs(
    command: Sequence[str], folder: Path, sources: Sequence[str] = ("driver.cpp",)
) -> list[Path]:
    """Return a program for each source; skips where the command cannot compile anything."""
    words = [*command, *FLAGS, *_EMULATED]
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
        to = folder / f"{source.parent.name}_{source.stem}.o"
        return compile_object(words, source, to)

    # All side by side, the largest first: none is alone at the end.
    everything = [*SOURCES.rglob("*.cpp"), *(_HERE / source for source in sources)]
    everything.sort(key=lambda path: path.stat().st_size, reverse=True)
    with ThreadPoolExecutor(2) as pool:
        compiled = dict(zip(everything, pool.map(compile_one, everything), strict=True))
    mains = [compiled.pop(_HERE / source) for source in sources]
    objects = list(compiled.values())
    programs = [folder / Path(source).stem for source in sources]
    for main, program in zip(mains, programs, strict=True):
        subprocess.run([*words, *objects, main, "-o", program], check=True)
    return programs
