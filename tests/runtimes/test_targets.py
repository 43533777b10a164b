"""Bundles of AOTInductor through the public functions: exported, proven, opened, refused."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

import kvcast
from kit.dimensions import LLAMA
from kit.models import bundle, exported
from kit.written_dates import dates_split, write_date
from kvcast.bundle.manifest import MANIFEST, read_bundle
from kvcast.bundle.packages import read_on_trust
from kvcast.cli import main
from kvcast.errors import KvcastError, UsageError
from kvcast.machine.resources import instruction_sets
from kvcast.runtimes.aoti.lowering import PACKAGE
from kvcast.runtimes.self_test import compile_tiny, find_compiler
from kvcast.runtimes.target import TARGETS
from kvcast.spec.runtimes import RUNTIMES, PrecisionRequest
from runtimes.aoti.small_package import compiled_products

compiled = pytest.fixture(compiled_products)


@pytest.fixture
def compiled_demo():
    return exported("demo-t5", "aoti", quantize="none")


@pytest.mark.slow
def test_a_compiled_bundle_is_proven_and_writes_the_right_dates(compiled_demo):
    manifest = read_bundle(compiled_demo)
    assert manifest.processor == instruction_sets()
    record = manifest.verification
    assert record["tokens_equal"] == record["tokens"] > 0
    _, held_back = dates_split()
    days = held_back[:: len(held_back) // 40]
    model = kvcast.load(compiled_demo, threads=1)
    for beam in (1, 3):
        texts = model.generate([write_date(day, "{d} {month} {y}") for day in days], beam=beam)
        assert [text.text for text in texts] == [day.isoformat() for day in days]


@pytest.mark.slow
def test_what_is_trusted_runs_and_is_told(compiled_demo, tmp_path, capsys):
    unvouched = shutil.copytree(compiled_demo, tmp_path / "unvouched")
    (unvouched / MANIFEST).unlink()
    described = read_on_trust(unvouched / PACKAGE)
    assert described == replace(read_bundle(compiled_demo), verification={})
    words = ["generate", "3 March 2021", "--trust", "--model"]
    for model in (unvouched, unvouched / PACKAGE):
        assert main([*words, str(model)]) == 0
        printed = capsys.readouterr()
        assert printed.out == "2021-03-03\n"
        assert "model.pt2 is opened on trust: there is no bundle.json to verify it" in printed.err
    assert main([*words, str(compiled_demo), "--quantize", "none"]) == 0
    assert "trust" not in capsys.readouterr().err


@pytest.mark.parametrize("runtime", ["onnx", "eager"])
def test_a_bundle_runs_on_no_other_runtime(runtime, compiled):
    line = f"exported with --runtime aoti: use that, not --runtime {runtime}"
    with pytest.raises(UsageError, match=line):
        kvcast.load(compiled, runtime=runtime)


@pytest.mark.parametrize(
    ("fields", "options", "line"),
    [
        (
            *(
                {"runtime": "aoti", "processor": [*instruction_sets(), "avx9000"]},
                {"runtime": "aoti"},
            ),
            "a processor with avx9000, which this one lacks",
        ),
        ({"runtime": "abacus"}, {}, "abacus"),
    ],
    ids=["processor", "runtime"],
)
def test_code_of_another_processor_or_runtime_is_refused(tmp_path, fields, options, line):
    folder = shutil.copytree(bundle(LLAMA), tmp_path / "bundle")
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | fields))
    with pytest.raises(KvcastError, match=line):
        kvcast.load(folder, **options)


@pytest.mark.parametrize(
    ("precision", "line"),
    [
        ({"quantize": "none", "cache": "int8"}, "caches in --dtype fp32: drop --cache int8"),
        ({"quantize": "int8", "cache": "fp32"}, "caches in --dtype bf16: drop --cache fp32"),
        ({"quantize": "8da8w"}, "quantize of AOTInductor must be one of none, int8, int4"),
        ({"dtype": "fp64"}, "dtype must be one of fp32, bf16, fp16"),
        ({"device": "tpu"}, "device must be one of cpu, cuda"),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(tmp_path, precision, line):
    with pytest.raises(UsageError, match=line):
        kvcast.export_bundle("demo-t5", tmp_path / "bundle", runtime="aoti", **precision)
    assert not (tmp_path / "bundle").exists()


def test_matrices_are_in_fp32_unless_asked_for_otherwise_and_the_rest_follows():
    target = RUNTIMES["aoti"]
    assert target.choose_precision(PrecisionRequest()).exact
    assert target.choose_precision(PrecisionRequest(quantize="int4")).dtype == "bf16"
    assert target.choose_precision(PrecisionRequest(quantize="int8", dtype="fp32")).cache == "fp32"
    assert target.choose_precision(PrecisionRequest(dtype="fp16", cache="fp16")).quantize == "none"


def test_without_a_cuda_device_nothing_is_compiled_for_one_or_loaded(
    compiled, monkeypatch, tmp_path
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(KvcastError, match="--device cuda needs a CUDA device"):
        kvcast.export_bundle("demo-t5", tmp_path / "b", runtime="aoti", device="cuda")
    assert not (tmp_path / "b").exists()
    manifest = replace(read_bundle(compiled), device="cuda")
    with pytest.raises(KvcastError, match="compiled for a CUDA device, and there is none here"):
        TARGETS["aoti"].open("decoder", compiled, manifest, 1)


def test_quantised_matrices_on_a_cuda_device_are_refused_before_a_model_is_looked_for(tmp_path):
    with pytest.raises(UsageError, match="int8 matrices run on the CPU only: add --quantize none"):
        kvcast.export_bundle(
            "no such model", tmp_path / "b", runtime="aoti", device="cuda", quantize="int8"
        )


def test_a_missing_compiler_is_told_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(KvcastError, match="compiling needs g"):
        kvcast.export_bundle("demo-t5", tmp_path / "b", runtime="aoti", quantize="none")


def test_any_compiler_serves_that_aotinductor_would_use(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    compiler = tmp_path / "clang++"
    # Unlike g++, it has no -dumpfullversion.
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *-dumpversion) echo 14.0.6 ;; *-shared*) ;; *) exit 1 ;; esac\n'
    )
    compiler.chmod(0o755)
    assert compile_tiny() == {"clang++": "14.0.6"}
    monkeypatch.setenv("CXX", str(compiler))
    (tmp_path / "g++").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "g++").chmod(0o755)
    assert find_compiler() == str(compiler)


@pytest.mark.parametrize("name", ["native.bundles", "aoti.target", "onnx.target"])
def test_a_module_that_a_target_needs_can_be_imported_first(name):
    program = f"import kvcast.runtimes.{name}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
