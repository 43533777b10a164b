"""Starts servers for tests, in this process or as a command."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import uvicorn

from kvcast.engine import Engine
from kvcast.server.app import create
from kvcast.server.model_registry import Models, Served, kind_of
from kvcast.server.params import ServeParams
from kvcast.server.uvicorn_server import configuration


def until(condition: Callable[[], Any], what: str = "it did not come to pass") -> None:
    for _ in range(60_000):  # ten minutes: a busy machine starts Ray slowly
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(what)


class Server:
    def __init__(self, models: Mapping[str, Any], params: ServeParams) -> None:
        self.engines = {
            name: Engine(model, rows=params.rows, queue=params.queue)
            for name, model in models.items()
        }
        served = [
            Served(name=name, engine=engine, kind=kind_of(engine.model))
            for name, engine in self.engines.items()
        ]
        self.draining = False
        openers = {
            engine: lambda _, model=engine.model: Engine(model, rows=params.rows)
            for engine in self.engines.values()
        }
        self.models = Models(served, openers)
        app = create(self.models, params, lambda: self.draining)
        self._server = uvicorn.Server(configuration(app, params))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        # A client that nobody closes leaves a socket to the garbage collector, which warns.
        self._clients = ExitStack()

    def start(self) -> None:
        self._thread.start()
        until(lambda: self._server.started)

    def stop(self) -> None:
        self._clients.close()
        for engine in (*self.engines.values(), *self.models.engines):
            engine.close()
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()

    def status(self, name: str) -> Any:
        return self.engines[name].status()

    @property
    def tasks(self) -> int:
        return len(self._server.server_state.tasks)

    @property
    def loop(self) -> Any:
        return self._server.servers[0].get_loop()

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    def client(self, **options: Any) -> Any:
        import openai

        given = {"api_key": "none", "max_retries": 0, "timeout": 60} | options
        client = openai.OpenAI(base_url=f"{self.url}/v1", **given)
        self._clients.callback(client.close)
        return client

    def http(self, **options: Any) -> httpx.Client:
        client = httpx.Client(base_url=self.url, timeout=60, **options)
        self._clients.callback(client.close)
        return client


@contextmanager
def serving(models: Mapping[str, Any], **params: Any) -> Iterator[Server]:
    server = Server(models, ServeParams(**{"rows": 4} | params))
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Command:
    def __init__(self, *words: str, environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvcast", "serve", "--port", "0", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    @property
    def url(self) -> str:
        where = re.compile(r"serving .* at (http://[^ \n\"]+)")
        until(lambda: self.process.poll() is not None or where.search(self.log), self.log)
        address = where.search(self.log)
        assert address, self.log
        return address[1]

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        code = self.process.wait(60)
        self._reader.join(10)
        return code


@contextmanager
def command(*words: str, **options: Any) -> Iterator[Command]:
    """Run `kvcast serve` with these arguments at a free port."""
    running = Command(*words, **options)
    try:
        yield running
    finally:
        running.process.kill()
        running.ended()
        running.process.stdout.close()
        running.process.stderr.close()
