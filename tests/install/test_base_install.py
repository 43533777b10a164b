"""The base install opens checkpoints, and with ONNX Runtime bundles, where there is no torch."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from install.wheels import ROOT, Install
from kit.models import exported

pytestmark = pytest.mark.slow
LOCKED = ("-c", ROOT / "requirements.lock")
EXAMPLE = ROOT / "examples/sense-and-sensibility.flac"
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
NO_COMPILER = {"PATH": "/nonexistent", "CXX": "false"}
EXPORT_ONLY = ("torch", "onnx", "onnx_ir", "transformers")


@pytest.fixture(scope="module")
def base_python(install: Install, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("base-install"), *LOCKED)


@pytest.fixture(scope="module")
def server_python(install, base_python, tmp_path_factory) -> Path:
    """As in an image: the base dependencies, the server's, and ONNX Runtime."""
    folder = tmp_path_factory.mktemp("server-install")
    return install(folder, *LOCKED, extras="[server,onnxruntime]", beside=base_python)


@pytest.fixture(scope="module")
def bundle() -> Path:
    return exported("demo")


def kvcast(python: Path) -> list[str | Path]:
    """Return the command of the installed package, whatever PYTHONPATH names."""
    return [python, "-E", "-m", "kvcast"]


def run(python: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*kvcast(python), *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


@contextmanager
def serving(python: Path, model: Path, log: Path) -> Iterator[str]:
    with log.open("w") as written:
        words = [*kvcast(python), "serve", model, "--port", "0", "--threads", "1"]
        process = subprocess.Popen(words, stdout=written, stderr=written)
        try:
            while "http://" not in log.read_text() and process.poll() is None:
                time.sleep(0.1)
            assert process.poll() is None, log.read_text()
            yield log.read_text().split(" at ")[1].split()[0]
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("installed", "names"),
    [("base_python", (*EXPORT_ONLY, "onnxruntime")), ("server_python", EXPORT_ONLY)],
)
def test_extras_are_absent(installed, names, request):
    python = request.getfixturevalue(installed)
    code = f"import importlib.util as u; print([n for n in {names!r} if u.find_spec(n)])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_server_needs_no_torch(server_python: Path, bundle: Path, tmp_path: Path) -> None:
    with serving(server_python, bundle, tmp_path / "log") as url:
        assert httpx.get(f"{url}/ready", timeout=60).json() == {"status": "ready"}
        [model] = httpx.get(f"{url}/v1/models", timeout=60).json()["data"]
        answer = httpx.post(
            f"{url}/v1/audio/transcriptions",
            files={"file": ("a.flac", EXAMPLE.read_bytes())},
            data={"model": model["id"]},
            timeout=600,
        )
    assert answer.status_code == 200, answer.text
    assert "He was not an ill-disposed young man." in answer.json()["text"]


def test_a_bundle_generates_without_torch(server_python: Path) -> None:
    done = run(server_python, "generate", "--model", exported("demo-t5"), "--quiet", "3 March 2021")
    assert (done.stdout, done.stderr) == ("2021-03-03\n", "")


@needs_compiler
def test_a_model_runs_with_the_library_of_a_wheel(base_python: Path, tmp_path: Path) -> None:
    bundle = exported("demo-t5", runtime="native", quantize="int8")
    words = ("generate", "--quiet", "--model", bundle, "3 March 2021")
    done = run(base_python, *words, **NO_COMPILER, KVCAST_CACHE=str(tmp_path))
    assert (done.stdout, done.stderr) == ("2021-03-03\n", "")
    assert not (tmp_path / "native").exists()


@needs_compiler
def test_a_model_is_verified_without_torch(base_python: Path, tmp_path: Path) -> None:
    words = ("verify", "demo-t5", "--quantize", "none", "--threads", "1", "--positions", "24")
    done = run(base_python, *words, "--json", KVCAST_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    outcomes = {check["name"]: check["outcome"] for check in report["checks"]}
    assert "native fp32" in report["reference"]
    assert outcomes["teacher-forced"] == outcomes["chunks"] == outcomes["beams"] == "passed"


def test_a_checkpoint_is_opened_directly_without_torch(base_python: Path, tmp_path: Path) -> None:
    from kvcast.checkpoints.source import locate

    cache = {**NO_COMPILER, "KVCAST_CACHE": str(tmp_path)}
    done = run(base_python, "transcribe", "--model", locate("demo"), EXAMPLE, **cache)
    assert (done.returncode, done.stderr) == (0, "")
    assert "He was not an ill-disposed young man." in done.stdout
    words = ("--model", locate("demo-chat"), "--quiet", "--chat", "What is 2 + 3?")
    done = run(base_python, "generate", *words, **cache)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 + 3 = 5" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "extra", "code"),
    [
        (("--runtime", "onnx"), "onnx", 1),
        (("--runtime", "eager"), "export", 1),
        (("--vad",), "vad", 66),
    ],
)
def test_options_name_the_extra_that_they_need(base_python, tmp_path, options, extra, code):
    from kvcast.checkpoints.source import locate

    words = ("transcribe", "--model", locate("demo"), *options, EXAMPLE)
    done = run(base_python, *words, KVCAST_CACHE=str(tmp_path))
    assert done.returncode == code
    assert done.stderr.count("\n") == 1
    assert f"pip install 'kvcast[{extra}]'" in done.stderr


def test_a_bundle_names_the_runtime_that_it_needs(base_python: Path, bundle: Path) -> None:
    done = run(base_python, "transcribe", "--model", bundle, EXAMPLE)
    assert done.returncode == 1
    assert done.stderr == ("kvcast: ONNX Runtime is not installed: pip install 'kvcast[onnx]'\n")
