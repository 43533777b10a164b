"""A server of two replicas: what clients get when one dies, and when there are too many of them."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from cluster.nodes import Nodes, nodes, run, start, until
from tiny_gguf import tiny_llama

pytestmark = pytest.mark.slow

LONG = {"model": "tiny.gguf", "prompt": "hello", "max_tokens": 15_000, "logit_bias": {"2": -100}}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def serving(cluster: Nodes, folder: Path, *words: str) -> Iterator[str]:
    """Serve a tiny model from the cluster, and end it as SIGTERM does."""
    port, log = free_port(), (folder / "log").open("w+")
    model = tiny_llama(folder / "tiny.gguf", context_length=20_000)
    given = [model, "--runtime", "native", "--quantize", "none", "--port", port]
    process = start("serve", *given, "--ray", cluster.address, *words, stdout=log, stderr=log)
    try:
        for _ in range(1200):
            time.sleep(0.1)
            told = Path(log.name).read_text()
            if "serving " in told or process.poll() is not None:
                break
        assert told == f"kvcast: serving tiny.gguf at http://127.0.0.1:{port}\n"
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(60) == 0
        assert "Traceback" not in Path(log.name).read_text()
    finally:
        process.kill()
        process.wait()
        log.close()


def replicas() -> list[psutil.Process]:
    """Return the processes with the model, the busiest first."""
    found = [
        one
        for one in psutil.Process().children(recursive=True)
        if one.is_running() and "ServeReplica:kvcast:Replicas" in " ".join(one.cmdline())
    ]
    return sorted(found, key=lambda one: -one.cpu_times().user)


def events(response: httpx.Response) -> Iterator[Any]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def complete(url: str, **options: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json=LONG | options, timeout=300)


def test_a_replica_that_dies(tmp_path):
    with nodes() as cluster, serving(cluster, tmp_path, "--replicas", "2") as url:
        expected = complete(url, temperature=0).json()["choices"][0]["text"]
        with ThreadPoolExecutor() as pool:
            whole = [pool.submit(complete, url, temperature=0) for _ in range(2)]
            with httpx.stream(
                "POST", f"{url}/v1/completions", json=LONG | {"stream": True}, timeout=300
            ) as response:
                found = events(response)
                next(found)
                for process in replicas():  # a stream's replica is not known
                    process.kill()
                *_, last = found
            assert last["error"]["code"] == "replica_lost"
            # None of the others had begun to be answered.
            answers = [one.result() for one in whole]
        assert [one.status_code for one in answers] == [200, 200]
        assert {one.json()["choices"][0]["text"] for one in answers} == {expected}


def test_a_model_that_cannot_be_opened_is_one_line(tmp_path):
    model = tmp_path / "none"
    code, out, err = run("serve", model, "--ray", "local", "--port", free_port())
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"kvcast: no model '{model}': ")


def test_too_many_requests_are_told_to_come_again(tmp_path):
    words = ("--rows", "1", "--queue", "1", "--replicas", "1")
    with nodes() as cluster, serving(cluster, tmp_path, *words) as url:
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: complete(url, max_tokens=5000), range(12)))
        assert {one.status_code for one in answers} == {200, 429}
        refused = [one for one in answers if one.status_code == 429]
        assert all(one.headers["retry-after"] for one in refused)
        assert {one.json()["error"]["type"] for one in refused} == {"rate_limit_error"}
        assert len(answers) - len(refused) >= 3


def test_a_client_that_leaves_frees_the_row(tmp_path):
    with nodes() as cluster, serving(cluster, tmp_path, "--replicas", "1") as url:

        def engine() -> dict[str, Any]:
            return httpx.get(f"{url}/v1/engine", timeout=60).json()["models"][0]

        asked = LONG | {"stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=300) as response:
            found = events(response)  # closed with the last reference, and so is the response
            next(found)
            assert (engine()["running"], engine()["finished"]) == (1, {})
        until(lambda: engine()["running"] == 0)
        assert engine()["finished"] == {"cancelled": 1}
