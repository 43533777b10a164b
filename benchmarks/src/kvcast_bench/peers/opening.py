"""Programs that open a model in a new process, time after time. See `kvcast_bench.fresh`."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.machine.resources import instruction_sets
from kvcast_bench.backend import Backend

_CHUNK = 2**24


class Opener(Backend):
    """Opens the model anew in each turn. `kind` is the requested quantisation, if any."""

    program = "kvcast"
    packages = ("kvcast",)

    @override
    def unfit(self) -> str | None:
        return None

    @override
    def load(self) -> None:
        """Read the files, so that each turn finds them in the page cache."""
        path = Path(self.model.folder)
        for file in [path] if path.is_file() else filter(Path.is_file, path.rglob("*")):
            with file.open("rb") as stream:
                while stream.read(_CHUNK):
                    pass

    def answer(self, prompt: str, audio: str | None) -> dict[str, Any]:
        """Open and answer in a new process; return seconds since its start, text and memory."""
        request = {
            "program": self.program,
            "path": self.model.folder,
            "threads": self.model.threads,
            "quantize": self.kind or None,
            "prompt": prompt,
            "audio": audio,
        }
        start = time.perf_counter()
        with subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-m", "kvcast_bench.fresh", json.dumps(request)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            ready, ready_seconds = process.stdout.readline(), time.perf_counter() - start
            line, first_seconds = process.stdout.readline(), time.perf_counter() - start
            _, complaints = process.communicate()
        if not ready or not line:
            reason = (complaints.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            raise KvcastError(reason)
        return {"ready": ready_seconds, "first": first_seconds, **json.loads(line)}


class LlamaOpener(Opener):
    """llama.cpp through llama-cpp-python, with a context of 512 positions."""

    program = "llama"
    packages = ("llama-cpp-python",)
    settings = "n_ctx 512, maps the file, repacks matrices as it chooses"

    @override
    def unfit(self) -> str | None:
        if Path(self.model.folder).suffix != ".gguf":
            return "reads GGUF files"
        if "amx_int8" in instruction_sets():
            return "matrices in AMX's order end its process with a signal"
        return None
