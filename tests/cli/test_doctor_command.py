"""`kvcast doctor` reports working and broken packages, however they are broken."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cli.fakes import schema
from kit.dimensions import SMALL
from kit.models import bundle
from kvcast.bundle.manifest import read_bundle
from kvcast.cli import main
from kvcast.cli.doctor import _about_library, _about_model
from kvcast.errors import LibraryMissingError
from kvcast.loading import doctor
from kvcast.loading.examination import CacheFolder, Examined, NativeLibrary
from kvcast.runtimes.native.build import library_path
from kvcast.spec.runtimes import RUNTIMES

SCHEMA = schema("doctor")
ABSENT = "raise ModuleNotFoundError('none', name='{name}')"
ENDS = "import os; os.kill(os.getpid(), 6)"
HANGS = "import time; time.sleep(600)"
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
BROKEN = "raise OSError('libtiny.so: cannot open\\nshared object file')"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put packages before the installed ones: `installed(torch="code that runs on import")`."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "cache"))

    def install(**packages: str) -> None:
        # No test needs the real ones, which take seconds to import.
        asked = dict.fromkeys(("torch", "executorch", "av", "mistral_common"), ABSENT) | packages
        for name, content in asked.items():
            folder = tmp_path / "packages" / name
            folder.mkdir(parents=True)
            (folder / "__init__.py").write_text(content.format(name=name))

    return install


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch):
    """Ask about these runtimes and packages alone: each question takes a process."""
    ask = doctor._ask

    def narrow(*names: str) -> None:
        def asked(question: str, *words: str) -> tuple[Any, str]:
            if question in ("library", "bundle", "model") or not {*words}.isdisjoint(names):
                return ask(question, *words)
            return None, "not asked"

        kept = {name: row for name, row in RUNTIMES.items() if name in names}
        monkeypatch.setattr(doctor, "RUNTIMES", kept)
        monkeypatch.setattr(doctor, "_ask", asked)

    return narrow


@pytest.fixture
def compiled() -> Path:
    """The library that this run compiles once; ask for it before `installed`."""
    return library_path()


def examined(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict]:
    code = main(["doctor", "--json", *words])
    printed = capsys.readouterr()
    assert printed.err == ""
    document = json.loads(printed.out)
    jsonschema.validate(document, SCHEMA)
    return code, document | {runtime["name"]: runtime for runtime in document["runtimes"]}


@pytest.mark.slow
def test_without_torch_onnx_works_and_other_runtimes_name_their_extra(installed, capsys):
    installed()
    code, document = examined(capsys)
    assert code == 0
    assert document["well"] is document["onnx"]["usable"] is True
    assert "onnxruntime" in document["onnx"]["versions"]
    assert document["onnx"]["no_export"] == document["native"]["no_export"] == ""
    assert document["eager"] == {
        "name": "eager",
        "usable": False,
        "versions": {},
        "problem": "torch is not installed: pip install 'kvcast[export]'",
        "no_export": None,
    }
    assert "pip install 'kvcast[executorch]'" in document["executorch"]["problem"]
    assert document["cuda"] == {"devices": [], "problem": "torch is not installed"}


def test_a_hanging_package_times_out(installed, monkeypatch):
    monkeypatch.setattr(doctor, "_SECONDS", 1)
    installed(av=HANGS)
    assert doctor._ask("part", "av") == (None, "no answer within 1 s")


def test_a_package_that_ends_its_process_or_fails_is_one_line(installed, only, capsys):
    installed(torch=ENDS, mistral_common=BROKEN, onnx_ir=ABSENT)
    only("eager", "onnx", "mistral_common")
    code, document = examined(capsys)
    assert (code, document["well"], document["onnx"]["usable"]) == (0, True, True)
    assert document["eager"]["problem"].startswith("its process ended with signal 6")
    lacks = "exporting to ONNX Runtime needs onnx_ir: pip install 'kvcast[onnx]'"
    assert document["onnx"]["no_export"] == lacks
    [mistral] = [part for part in document["parts"] if part["name"] == "mistral"]
    assert mistral["problem"].startswith("OSError: libtiny.so: cannot open shared object file")


def test_without_a_runtime_that_can_be_the_default_the_exit_code_is_1(
    installed, only, capsys, monkeypatch
):
    installed(onnxruntime=BROKEN)
    only("onnx", "native")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "onnx        no: OSError: libtiny.so" in shown
    assert "pip install 'kvcast[onnx]'" in shown
    assert "native      no: " in shown
    assert "CXX=no-such-compiler " in shown
    assert "Traceback" not in shown


@pytest.mark.slow
def test_a_bundle_is_opened_after_its_checksums(installed, only, capsys):
    small_bundle = bundle(SMALL)
    installed()
    only("onnx")
    code, document = examined(capsys, str(small_bundle))
    # It has no tokenizer: its files are right, and opening it says what lacks.
    assert (code, document["bundle"]["runtime"]) == (1, read_bundle(small_bundle).runtime)
    assert "tokenizer" in document["bundle"]["problem"]
    assert main(["doctor", str(small_bundle / "onnx")]) == 1
    assert "holds no model that kvcast can read" in " ".join(capsys.readouterr().out.split())
    # Its proof was made when it was exported, by the model in fp32.
    assert examined(capsys, "--prove", str(small_bundle))[1]["model"]["problem"].endswith(
        "is a bundle for onnx: its proof is in its bundle.json"
    )


@needs_compiler
def test_a_checkpoint_is_described_and_proven_without_torch(
    compiled, installed, only, capsys, monkeypatch
):
    installed()
    only("native")
    monkeypatch.setenv("KVCAST_CACHE", str(compiled.parents[1]))
    code, document = examined(capsys, "--prove", "demo-t5")
    model = document["model"]
    assert (code, document["well"], document["bundle"], model["problem"]) == (0, True, None, "")
    assert (model["family"], model["quantize"]) == ("t5", "int8")
    stored = {(row["stored"], row["held"]): row for row in model["weights"]}
    assert stored["F16", "INT8"]["stored_bytes"] > 1.8 * stored["F16", "INT8"]["held_bytes"]
    assert sum(row["tensors"] for row in model["weights"]) == 35
    assert model["proof"]["tokens"] == model["proof"]["tokens_equal"] == 56
    told = list(_about_model(Examined(**model)))
    assert told[0].startswith("yes: t5, int8, opened in ")
    assert "23 tensors in F16, 1.9 MB -> INT8, 986.1 kB, rounded" in told


def test_a_proof_that_fails_is_an_exit_code():
    proof = {"tokens": 56, "tokens_equal": 55, "max_logit_error": 3.0, "logit_deviation": 1.0}
    model = Examined(path="m", family="t5", proof=proof)
    assert not model.well
    assert replace(model, proof=proof | {"tokens_equal": 56}).well
    assert "55 of 56 tokens are the plain kernels'" in " ".join(_about_model(model))


def test_a_proof_needs_a_model(capsys):
    assert main(["doctor", "--prove"]) == 2
    assert "--prove needs a MODEL" in capsys.readouterr().err


def test_a_missing_library_is_reported_and_not_compiled(installed, tmp_path):
    installed()
    library = doctor._library()
    if shutil.which("g++"):
        assert (library.origin, library.path, library.problem) == ("none", "", "")
        assert about(library).startswith("not compiled yet")
    assert not (tmp_path / "cache").exists()


def test_without_a_compiler_the_error_names_it(installed, monkeypatch):
    installed()
    monkeypatch.setenv("CXX", "false")
    library = doctor._library()
    assert "CXX=false does not run: install g++" in library.problem
    assert about(library).startswith("no: kvcast's native library is not compiled")


@needs_compiler
def test_the_library_is_named_with_its_instructions(compiled):
    library = doctor._library()
    assert (library.origin, library.path, library.problem) == ("compiled", str(compiled), "")
    assert library.instructions[-1] == "plain"
    assert f"uses {library.instructions[0]}" in about(library)
    assert "GEMM" in library.kernels
    assert library.kernels in about(library)


@needs_compiler
def test_instructions_that_do_not_run_here_end_every_default_run(
    compiled, installed, only, capsys, monkeypatch
):
    installed()
    only("onnx", "native")
    monkeypatch.setenv("KVCAST_CACHE", str(compiled.parents[1]))
    monkeypatch.setenv("KVCAST_INSTRUCTIONS", "altivec")
    code, document = examined(capsys)
    assert document["onnx"]["usable"]
    assert document["library"]["problem"].startswith("KVCAST_INSTRUCTIONS is 'altivec': ")
    # Where a processor runs the plain set alone, ONNX Runtime is the default anyway.
    ends = len(document["library"]["instructions"]) > 1
    assert (code, document["well"]) == (int(ends), not ends)
    assert document["native"]["problem"].startswith("KVCAST_INSTRUCTIONS is 'altivec': ")
    assert "pip install" not in document["native"]["problem"]


def test_no_package_cures_a_compiler(installed, monkeypatch):
    installed()
    monkeypatch.setenv("CXX", command := "g++ 'quickly")
    runtime = doctor._runtime("native")
    assert not runtime.usable
    assert f"CXX={command} " in runtime.problem
    assert ": pip install" not in runtime.problem
    assert "Error" not in runtime.problem


@needs_compiler
def test_a_failed_compilation_is_reported_with_its_log(installed, tmp_path, monkeypatch):
    installed()
    broken = tmp_path / "broken++"
    broken.write_text('#!/bin/sh\ncase "$*" in *--version*) ;; *) echo no; exit 1;; esac\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(LibraryMissingError):
        library_path()
    [log] = (tmp_path / "cache/native").glob("*.log")
    library = doctor._library()
    assert f"could not be compiled with {broken}: {log} says why" in library.problem
    assert about(library).startswith("no: ")
    assert doctor._runtime("native").problem == library.problem


def test_instructions_that_could_be_used_are_named_too():
    library = NativeLibrary(
        origin="shipped", path="l", instructions=("amx", "avx512_bf16", "plain"), threads=2
    )
    assert "uses amx (it could use avx512_bf16, plain); 2 threads" in about(library)
    alone = replace(library, instructions=("plain",))
    assert "uses plain; 2 threads" in about(alone)


@needs_compiler
@pytest.mark.usefixtures("compiled")
def test_the_library_uses_the_instructions_that_are_asked_for(monkeypatch):
    monkeypatch.setenv("KVCAST_INSTRUCTIONS", "plain")
    assert doctor._library().instructions[0] == "plain"


def about(library: NativeLibrary) -> str:
    return " ".join(_about_library(library))


def test_an_unwritable_cache_is_reported(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "KVCAST_CACHE" in doctor._cache(tmp_path / "file").problem
    (tmp_path / "held").write_bytes(bytes(7))
    assert doctor._cache(tmp_path) == CacheFolder(folder=str(tmp_path), bytes=8)
    assert doctor._cache(tmp_path / "not" / "yet").problem == ""
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("instructions", "bf16", "int8"),
    [
        (("amx_bf16", "amx_int8", "avx512_bf16"), "matrix units", "matrix units"),
        (("avx512_bf16", "avx_vnni"), "dot products", r"dot products (avx_vnni)"),
        (("asimddp",), "slower than fp32", "dot products (asimddp)"),
        (("asimddp", "i8mm"), "slower than fp32", "matrix units (i8mm)"),
        (("avx2",), "slower than fp32", "little gain"),
        ((), "unknown", "unknown"),
    ],
)
def test_instructions_are_explained(instructions, bf16, int8):
    told = doctor.processor(instructions)
    assert bf16 in told.bf16
    assert int8 in told.int8


def test_an_untested_version_is_reported():
    assert doctor._untested_versions({"onnxruntime": "1.2.3"}).startswith(
        "onnxruntime 1.2.3 is not a tested version ("
    )
    assert doctor._untested_versions({"g++": "12"}) == ""
