"""Which library is opened, from where, and what is said where there is none."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcast.errors import LibraryMissingError
from kvcast.runtimes.native import build, compiler
from kvcast.runtimes.native.build import (
    ABI,
    check_compiler,
    find_library,
    is_there,
    library_path,
    open_library,
    write_shipped,
)

NO_COMPILER = "there is no C.. compiler"
SOURCE = 'extern "C" __attribute__((visibility("default"))) int kvcast_abi() { return %d; }\n'

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library without kernels, with cache and package folders of its own."""
    folder = tmp_path / "src"
    folder.mkdir()
    for name in ("schema.cpp", "export.hpp", "instructions.def"):
        shutil.copy(compiler.SOURCES / name, folder)
    (folder / "one.cpp").write_text(SOURCE % ABI)
    (folder / "none.hpp").write_text("")
    monkeypatch.setattr(build, "SOURCES", folder)
    # Nothing is computed here, so the compiler need not take its time.
    monkeypatch.setattr(compiler, "_FLAGS", tuple(f for f in compiler._FLAGS if f != "-O3"))
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "lib")
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return folder


@pytest.fixture
def remove_compilers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setenv("PATH", "/nonexistent")


def kept(sources: Path) -> list[str]:
    return sorted(path.suffix for path in (sources.parent / "cache/native").iterdir())


@needs_compiler
def test_the_first_use_compiles_and_the_next_does_not(sources: Path) -> None:
    times: list[str] = []
    assert find_library() is None
    assert open_library(lambda: times.append("compiled")).kvcast_abi() == ABI
    assert open_library(lambda: times.append("compiled")).kvcast_abi() == ABI
    assert times == ["compiled"]
    existing = find_library()
    assert existing is not None
    assert not existing.shipped
    assert kept(sources) == [".json", ".lock", ".so"]
    assert (sources.parent / "cache/native").stat().st_mode & 0o777 == 0o700


@needs_compiler
@pytest.mark.parametrize("changed", ["one.cpp", "none.hpp", "instructions.def", "flags"])
def test_other_sources_or_flags_are_another_library(
    sources: Path, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = library_path()
    if changed == "flags":
        monkeypatch.setattr(compiler, "_FLAGS", (*compiler._FLAGS, "-g"))
    else:
        append(sources / changed)
    assert find_library() is None
    assert library_path() != before


def append(source: Path) -> None:
    with source.open("a") as file:
        file.write("// more\n")


@needs_compiler
def test_a_compiled_library_outlives_the_compiler(
    sources: Path, remove_compilers: Callable[[], None]
) -> None:
    before = library_path()
    remove_compilers()
    assert library_path() == before


@needs_compiler
def test_a_shipped_library_is_taken_if_it_is_of_these_sources(
    sources: Path, tmp_path: Path, remove_compilers: Callable[[], None]
) -> None:
    write_shipped(build.SHIPPED, tmp_path / "log")
    remove_compilers()
    existing = find_library()
    assert existing is not None
    assert existing.shipped
    assert open_library().kvcast_abi() == ABI
    append(sources / "one.cpp")
    assert find_library() is None
    shutil.rmtree(sources)
    existing = find_library()
    assert existing is not None
    assert existing.shipped


@needs_compiler
@pytest.mark.parametrize("record", ['{"abi": 0}', "", "[1]", '{"abi"', None])
def test_a_library_of_unknown_origin_and_a_record_without_one_do_not_count(
    sources: Path, tmp_path: Path, remove_compilers: Callable[[], None], record: str | None
) -> None:
    write_shipped(build.SHIPPED, tmp_path / "log")
    remove_compilers()
    assert find_library() is not None
    path = build.SHIPPED / "libkvcast.json"
    assert json.loads(path.read_text())["abi"] == ABI
    if record is None:
        (build.SHIPPED / build.LIBRARY).unlink()
    else:
        path.write_text(record)
    assert find_library() is None


def refused(match: str) -> str:
    with pytest.raises(LibraryMissingError, match=match) as error:
        open_library()
    text = str(error.value)
    assert "\n" not in text
    return text


def test_without_a_compiler_one_line_says_what_to_do(
    sources: Path, remove_compilers: Callable[[], None]
) -> None:
    remove_compilers()
    text = refused(NO_COMPILER)
    assert "install g++ or clang++, or use --runtime onnx" in text
    assert "pip install 'kvcast[onnx]'" in text
    assert not (sources.parent / "cache").exists()


@pytest.mark.parametrize(
    ("command", "match"),
    [
        ("false --quickly", "CXX=false --quickly does not run"),
        ("g++ 'quickly", "CXX=g.. 'quickly cannot be read.*No closing quotation"),
        ("sleeping++", "sleeping.. does not answer --version within 0.1 s"),
    ],
)
def test_a_chosen_compiler_that_does_not_run_is_named(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, match: str
) -> None:
    if command == "sleeping++":
        monkeypatch.setattr(compiler, "_SECONDS", 0.1)
        command = script(tmp_path / command, "exec sleep 600")
    monkeypatch.setenv("CXX", command)
    refused(match)
    assert not is_there()


def script(path: Path, line: str) -> str:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


@needs_compiler
def test_no_compiler_is_started_where_its_library_is(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "started"
    path = tmp_path / "other++"
    monkeypatch.setenv("CXX", script(path, f'echo >> {log}; exec g++ "$@"'))
    before = library_path()
    log.unlink()
    assert library_path() == before
    assert not log.exists()
    # Another compiler of that name makes another library.
    script(path, 'exec g++ -O1 "$@"')
    assert find_library() is None
    assert library_path() != before


def test_without_sources_and_library_one_line_says_what_to_do(sources: Path) -> None:
    shutil.rmtree(sources)
    refused("install kvcast anew")


@needs_compiler
@pytest.mark.parametrize(
    ("line", "logged"),
    [
        ("int main( { return nonsense; }", "error"),
        ("int there(); int here() { return there(); }", "there"),
    ],
)
def test_what_the_compiler_says_is_in_a_log(
    sources: Path, capfd: pytest.CaptureFixture[str], line: str, logged: str
) -> None:
    (sources / "two.cpp").write_text(f"{line}\n")
    text = refused("cannot be compiled with g")
    [log] = (sources.parent / "cache/native").glob("*.log")
    assert str(log) in text
    assert logged in log.read_text()
    assert capfd.readouterr() == ("", "")
    assert kept(sources) == [".lock", ".log"]
    said = re.escape(f"could not be compiled with g++: {log}")
    with pytest.raises(LibraryMissingError, match=said):
        check_compiler()
    assert not is_there()


@needs_compiler
def test_a_library_of_another_version_is_refused(sources: Path) -> None:
    (sources / "one.cpp").write_text(SOURCE % (ABI + 1))
    refused(f"functions of version {ABI + 1} and not {ABI}")


HEADS, TOKENS = "FIELD(int, heads)", "FIELD(int, tokens)"
STRIDE, HEAD_STRIDE = "FIELD(size_t, stride)", "FIELD(size_t, head_stride)"


@needs_compiler
@pytest.mark.parametrize(
    ("words", "swapped"),
    [
        (f"{HEADS}\n            {TOKENS}", f"{TOKENS} {HEADS}"),
        (f"{STRIDE} {HEAD_STRIDE}", f"{HEAD_STRIDE} {STRIDE}"),
        ("VALUE(LT, 7) VALUE(GE, 8)", "VALUE(LT, 8) VALUE(GE, 7)"),
        (HEADS, ""),
    ],
)
def test_a_library_that_reads_words_in_another_order_is_refused(
    sources: Path, words: str, swapped: str
) -> None:
    definition = sources / "instructions.def"
    text = definition.read_text()
    assert words in text
    definition.write_text(text.replace(words, swapped, 1))
    refused("reads other instructions")


def replace(path: Path, content: bytes) -> None:
    """Write another file: this process may have opened the one that is there."""
    path.unlink()
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    """The process that opened it would be killed."""
    replace(path, path.read_bytes()[: path.stat().st_size // 2])


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    replace(path, content)


def lose_its_record(path: Path) -> None:
    path.with_suffix(".json").unlink()


@needs_compiler
@pytest.mark.parametrize("damage", [cut_off, change, lose_its_record])
def test_a_damaged_library_is_compiled_again(
    sources: Path, damage: Callable[[Path], None], remove_compilers: Callable[[], None]
) -> None:
    path = library_path()
    before = path.read_bytes()
    damage(path)
    assert find_library() is None
    assert open_library().kvcast_abi() == ABI
    assert len(path.read_bytes()) == len(before)
    damage(path)
    remove_compilers()
    refused(NO_COMPILER)


@needs_compiler
@pytest.mark.parametrize("damage", [cut_off, change])
def test_a_damaged_library_of_a_wheel_is_named(
    sources: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    write_shipped(build.SHIPPED, tmp_path / "log")
    library = build.SHIPPED / build.LIBRARY
    damage(library)
    assert f"{library} is damaged: install kvcast anew, or use --runtime onnx" in refused("damaged")
    assert not is_there()


NO_EXEC = "it.so: failed to map segment from shared object"


@needs_compiler
def test_a_cache_from_which_nothing_may_run_is_named(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: str) -> None:
        raise OSError(NO_EXEC)

    path = library_path()
    monkeypatch.setattr("ctypes.CDLL", load)
    text = refused(f"cannot be loaded: {NO_EXEC}")
    assert f"remove {path}, or set KVCAST_CACHE" in text


@needs_compiler
@pytest.mark.parametrize(
    ("place", "mode"), [("", 0o722), ("", 0o702), ("file", 0o722), ("above", 0o707)]
)
def test_a_library_that_others_can_write_is_refused(sources: Path, place: str, mode: int) -> None:
    path = library_path()
    changed = {"": path.parent, "file": path, "above": path.parent.parent}[place]
    changed.chmod(mode)
    assert str(changed) in refused("can be written by others")


@needs_compiler
def test_folders_above_may_be_shared_as_tmp_is(sources: Path) -> None:
    path = library_path()
    path.parent.parent.chmod(0o1777)
    assert find_library() is not None


@needs_compiler
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_library_of_another_user_is_refused(sources: Path) -> None:
    path = library_path()
    os.chown(path, 12345, -1)
    assert str(path) in refused("belongs to another user")


@needs_compiler
def test_a_cache_that_cannot_be_written_is_named(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources.parent / "cache").write_text("a file where the folder should be")
    assert "set KVCAST_CACHE" in refused("cannot write")


# It links no sooner than the test lets it.
SLOW_COMPILER = """\
case "$*" in *-shared*) echo >> {log}; while [ ! -e {go} ]; do sleep 0.05; done;; esac
exec g++ "$@"
"""
OPENS = """
import sys
from pathlib import Path
from kvcast.runtimes.native import build
build.SOURCES, build.SHIPPED = Path(sys.argv[1]), Path(sys.argv[1]) / "none"
print(build.open_library().kvcast_abi())
"""


@needs_compiler
def test_several_processes_compile_once_and_a_killed_one_leaves_nothing_that_counts(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, go = tmp_path / "linked", tmp_path / "go"
    line = SLOW_COMPILER.format(log=log, go=go)
    monkeypatch.setenv("CXX", script(tmp_path / "slow++", line))

    def start() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", OPENS, sources],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    killed = start()
    while not log.exists():
        assert killed.poll() is None
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    go.touch()
    assert find_library() is None
    assert kept(sources) == [".lock", ".part"]
    answers = [process.communicate()[0] for process in [start() for _ in range(4)]]
    assert answers == [f"{ABI}\n"] * 4
    assert log.read_text() == "\n\n"
    assert kept(sources) == [".json", ".lock", ".so"]


@needs_compiler
def test_the_library_of_this_version_opens() -> None:
    assert open_library().kvcast_abi() == ABI
