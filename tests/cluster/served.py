"""`kvcast serve --ray` with a tiny model, and its clients' requests."""

import json
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from cluster.nodes import start
from kit.tiny_gguf import tiny_llama
from server.serving import until

LONG = {"model": "tiny", "prompt": "hello", "max_tokens": 5000, "logit_bias": {"2": -100}}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@dataclass(frozen=True)
class Command:
    process: subprocess.Popen[str]
    url: str
    log: Path

    def said(self) -> str:
        return self.log.read_text()

    def end(self) -> None:
        self.process.terminate()
        assert self.process.wait(120) == 0
        assert "Traceback" not in self.said()


@contextmanager
def begun(
    address: str, folder: Path, *words: Any, model: Path | None = None, **settings: Any
) -> Iterator[Command]:
    """Serve a model, by default a tiny one, from a cluster; it is killed at the latest."""
    model = model or tiny_llama(folder / "tiny.gguf", context_length=8_000)
    given = [model, "--runtime", "native", "--quantize", "none"]
    words = words if "--port" in words else (*words, "--port", free_port())
    port = words[words.index("--port") + 1]
    with tempfile.NamedTemporaryFile("w", dir=folder) as log:
        streams = {"stdout": log, "stderr": log}
        process = start("serve", *given, "--ray", address, *words, **streams, **settings)
        command = Command(process, f"http://127.0.0.1:{port}", Path(log.name))
        try:
            until(lambda: command.said().endswith("\n") or process.poll() is not None)
            name = model.name.removesuffix(".gguf")
            assert command.said() == f"kvcast: serving {name} at {command.url}\n"
            yield command
        finally:
            process.kill()
            process.wait()


@contextmanager
def serving(address: str, folder: Path, *words: Any) -> Iterator[str]:
    with begun(address, folder, *words) as command:
        yield command.url
        command.end()


def complete(url: str, **options: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json=LONG | options, timeout=300)


@contextmanager
def stream(url: str) -> Iterator[Iterator[Any]]:
    asked = LONG | {"stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=300) as response:
        yield (
            json.loads(line.removeprefix("data: "))
            for line in response.iter_lines()
            if line.startswith("data: {")
        )


def last_event(url: str, began: threading.Semaphore) -> Any:
    with stream(url) as events:
        first = next(events)
        began.release()
        return [first, *events][-1]
