"""Building blocks of every target's `self_test`: tiny programs; run in a separate process."""

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kvcast.errors import KvcastError

# An ONNX model of one node, y = x + x, for fp32 x [1]; as onnx.helper writes it.
_DOUBLE = (
    b'\x08\x08\x12\x00:5\n\x0e\n\x01x\n\x01x\x12\x01y"\x03Add\x12\x01gZ\x0f\n\x01x\x12\n\n'
    b"\x08\x08\x01\x12\x04\n\x02\x08\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01"
    b"B\x04\n\x00\x10\x11"
)
_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class SelfTestResult:
    versions: dict[str, str]
    no_export: str = ""  # why exporting to it fails here; empty if it works


def versions(*names: str) -> dict[str, str]:
    """Return versions of installed packages; raises KvcastError for the first missing one."""
    try:
        return {name: version(name) for name in names}
    except PackageNotFoundError as error:
        raise KvcastError(f"{error.name} is not installed") from None


def import_all(*modules: str) -> dict[str, str]:
    for name in modules:
        import_module(name)
    return {name: version(name.replace("_", "-")) for name in modules}


def cuda_devices() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def double_on_onnx() -> None:
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(_DOUBLE, providers=["CPUExecutionProvider"])
    (sums,) = session.run(None, {"x": np.ones(1, np.float32)})
    _check(sums.tolist() == [2.0])


def double_on_torch() -> None:
    import torch

    _check(bool((torch.ones(2, 3) @ torch.ones(3, 2) == 3).all()))


def find_compiler() -> str | None:
    candidates = (os.environ.get("CXX"), "g++", "clang++")
    return next((name for name in candidates if name and shutil.which(name)), None)


def compile_tiny() -> dict[str, str]:
    """Compile a C++ library as AOTInductor does; return the compiler's version, or KvcastError."""
    compiler = find_compiler()
    if compiler is None:
        raise KvcastError("compiling needs g++: install it (Debian: apt install g++)")
    with tempfile.TemporaryDirectory(prefix="kvcast-") as folder:
        source = Path(folder) / "tiny.cpp"
        source.write_text("#include <cmath>\n#include <vector>\nint tiny() { return 1; }\n")
        output = ["-shared", "-fPIC", "-o", str(source.with_suffix(".so"))]
        # g++ prints its full version for the first, clang++ for the second.
        version_flags = ["-dumpfullversion", "-dumpversion"]
        try:
            for words in ([compiler, str(source), *output], [compiler, *version_flags]):
                done = subprocess.run(  # noqa: S603 - the user's compiler
                    words, capture_output=True, text=True, check=True, timeout=_SECONDS
                )
        except subprocess.CalledProcessError as error:
            said = error.stderr.strip().splitlines() or ["it gives no reason"]
            raise KvcastError(f"{compiler} cannot compile C++ here: {said[0]}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KvcastError(f"{compiler} does not run: {error}") from None
    return {Path(compiler).name: done.stdout.strip()}


def _check(correct: bool) -> None:
    if not correct:
        raise KvcastError("it computes wrong results: install it again")
