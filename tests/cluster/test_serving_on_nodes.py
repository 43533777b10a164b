"""A server of two replicas: what clients get when one dies, and when there are too many of them."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from cluster.nodes import Nodes, nodes, run, start, until
from kit.tiny_gguf import tiny_llama

pytestmark = pytest.mark.slow

LONG = {"model": "tiny.gguf", "prompt": "hello", "max_tokens": 15_000, "logit_bias": {"2": -100}}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@dataclass(frozen=True)
class Command:
    """`kvcast serve`, and where it says what it says."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def said(self) -> str:
        return self.log.read_text()

    def end(self) -> None:
        """End it as SIGTERM does."""
        self.process.terminate()
        assert self.process.wait(120) == 0
        assert "Traceback" not in self.said()


@contextmanager
def begun(address: str, folder: Path, *words: Any, **settings: Any) -> Iterator[Command]:
    """Serve a tiny model from a cluster, until the command is killed at the latest."""
    model = tiny_llama(folder / "tiny.gguf", context_length=20_000)
    given = [model, "--runtime", "native", "--quantize", "none"]
    words = words if "--port" in words else (*words, "--port", free_port())
    port = words[words.index("--port") + 1]
    with tempfile.NamedTemporaryFile("w", dir=folder) as log:
        streams = {"stdout": log, "stderr": log}
        process = start("serve", *given, "--ray", address, *words, **streams, **settings)
        found = Command(process, f"http://127.0.0.1:{port}", Path(log.name))
        try:
            until(lambda: "serving " in found.said() or process.poll() is not None)
            assert found.said() == f"kvcast: serving tiny.gguf at {found.url}\n"
            yield found
        finally:
            process.kill()
            process.wait()


@contextmanager
def serving(cluster: Nodes, folder: Path, *words: Any) -> Iterator[str]:
    with begun(cluster.address, folder, *words) as command:
        yield command.url
        command.end()


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


def streamed(url: str, began: threading.Semaphore) -> Any:
    """Return the last event of a text that takes long."""
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=LONG | {"stream": True}, timeout=300
    ) as response:
        found = events(response)
        first = next(found)
        began.release()
        return [first, *found][-1]


def busy() -> list[psutil.Process]:
    """Return the replicas that compute."""
    before = {one.pid: one.cpu_times().user for one in replicas()}
    time.sleep(1)
    return [one for one in replicas() if one.cpu_times().user - before[one.pid] > 0.1]


def test_one_of_two_replicas_dies(tmp_path):
    with nodes() as cluster, serving(cluster, tmp_path, "--replicas", "2") as url:
        began = threading.Semaphore(0)
        with ThreadPoolExecutor(40) as pool:
            streams = [pool.submit(streamed, url, began) for _ in range(8)]
            [began.acquire() for _ in range(8)]
            until(lambda: len(busy()) == 2)
            whole = [pool.submit(complete, url, temperature=0) for _ in range(8)]
            time.sleep(1)
            killed = replicas()[0]
            killed.kill()
            last = [one.result() for one in streams]
            answers = [one.result() for one in whole]
        lost = [one["error"]["code"] for one in last if "error" in one]
        assert set(lost) == {"replica_lost"}
        assert 0 < len(lost) < 8
        reasons = {one["choices"][0]["finish_reason"] for one in last if "error" not in one}
        assert reasons == {"length"}
        # None of these had begun to be answered.
        assert {one.status_code for one in answers} == {200}
        assert len({one.json()["choices"][0]["text"] for one in answers}) == 1
        until(lambda: len(replicas()) == 2)  # it is replaced


def test_requests_under_way_decide_how_many_replicas_there_are(tmp_path):
    words = ("--replicas", "1-2", "--rows", "1")
    with nodes() as cluster, serving(cluster, tmp_path, *words) as url:
        assert len(replicas()) == 1
        with ThreadPoolExecutor(8) as pool:
            ended = threading.Event()

            def ask() -> None:
                while not ended.is_set():
                    complete(url, max_tokens=5000)

            asking = [pool.submit(ask) for _ in range(6)]
            try:
                until(lambda: len(replicas()) == 2)
            finally:
                ended.set()
            [one.result() for one in asking]


def test_requests_under_way_end_and_others_are_refused(tmp_path):
    with begun("local", tmp_path, start_new_session=True) as command:
        began = threading.Semaphore(0)
        with ThreadPoolExecutor() as pool:
            stream = pool.submit(streamed, command.url, began)
            began.acquire()
            # As `timeout` does: Ray's processes are not of the group.
            os.killpg(command.process.pid, signal.SIGTERM)
            until(lambda: httpx.get(f"{command.url}/ready").status_code == 503)
            late = complete(command.url)
            assert not stream.done()
            last = stream.result()
        assert command.process.wait(120) == 0
    assert (late.status_code, late.json()["error"]["code"]) == (503, "unavailable")
    assert last["choices"][0]["finish_reason"] == "length"


def test_a_second_signal_ends_at_once(tmp_path):
    with begun("local", tmp_path) as command:
        began = threading.Semaphore(0)
        with ThreadPoolExecutor() as pool:
            stream = pool.submit(streamed, command.url, began)
            began.acquire()
            command.process.terminate()
            until(lambda: httpx.get(f"{command.url}/ready").status_code == 503)
            command.process.terminate()
            assert command.process.wait() == 128 + signal.SIGTERM
            with suppress(httpx.HTTPError):
                stream.result()


def test_a_cluster_that_ends_with_the_command_is_not_waited_for(tmp_path):
    with begun("local", tmp_path) as command:
        # As systemd does.
        for one in psutil.Process(command.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                one.terminate()
        command.end()
        assert "Traceback" not in command.said()


OTHERS = """
import sys, ray
from ray import serve
ray.init(address=sys.argv[1], log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
@serve.deployment(ray_actor_options={"num_cpus": 0})
def other(request):
    return "here"
serve.run(other.bind(), name="others", route_prefix="/others")
"""


def test_what_others_serve_from_the_cluster_stays(tmp_path):
    port = free_port()
    with nodes() as cluster:
        words = [sys.executable, "-c", OTHERS, cluster.address, str(port)]
        subprocess.run(words, check=True, capture_output=True)
        there = ["serve", "demo", "--ray", cluster.address, "--port"]
        code, out, err = run(*there, free_port())
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"listens at 127.0.0.1:{port}: give --host 127.0.0.1 --port {port}" in err
        code, out, err = run("serve", tmp_path / "none", *there[2:], port)
        assert (code, out) == (1, "")
        assert "no model" in err
        with begun(cluster.address, tmp_path, "--port", port) as command:
            assert complete(command.url, max_tokens=1).status_code == 200
            command.end()
        answer = httpx.get(f"http://127.0.0.1:{port}/others")
        assert (answer.status_code, answer.text) == (200, "here")


def test_what_a_killed_command_left_is_taken_over(tmp_path):
    with nodes() as cluster:
        with begun(cluster.address, tmp_path) as command:
            code, _, err = run("serve", "demo", "--ray", cluster.address, "--port", free_port())
            assert code == 2
            assert f"serves kvcast already, by process {command.process.pid} of " in err
        assert complete(command.url, max_tokens=1).status_code == 200
        # Elsewhere, since nobody else uses what was left.
        with serving(cluster, tmp_path) as url:
            assert complete(url, max_tokens=1).status_code == 200
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{command.url}/health")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


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
