"""A server on two nodes: responses when a replica dies, and when there are too many clients.

All servers belong to one cluster, and tests that ask for equal options to one server.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from cluster.nodes import Nodes, nodes
from cluster.served import complete, last_event, serving, stream
from server.serving import until

TWO = ("--replicas", "2")
FULL = ("--rows", "1", "--queue", "1", "--replicas", "1")
GROWS = ("--rows", "1", "--replicas", "1-2")

pytestmark = pytest.mark.slow


def with_options(*words: str) -> Any:
    return pytest.mark.parametrize("url", [words], ids=" ".join, indirect=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes() as running:
        yield running


@pytest.fixture(scope="module")
def url(request, cluster, tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    with serving(cluster.address, folder, *request.param) as address:
        yield address


def replicas() -> list[psutil.Process]:
    processes = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.is_running() and "ServeReplica:kvcast:Replicas" in " ".join(process.cmdline())
    ]
    return sorted(processes, key=lambda process: -process.cpu_times().user)


def busy() -> list[psutil.Process]:
    before = {process.pid: process.cpu_times().user for process in replicas()}
    time.sleep(1)
    return [
        process
        for process in replicas()
        if process.cpu_times().user - before.get(process.pid, 0.0) > 0.1
    ]


@with_options(*TWO)
def test_one_of_two_replicas_dies(url: str):
    began = threading.Semaphore(0)
    with ThreadPoolExecutor(40) as pool:
        streams = [pool.submit(last_event, url, began) for _ in range(4)]
        [began.acquire() for _ in range(4)]
        until(lambda: len(busy()) == 2)
        whole = [pool.submit(complete, url, temperature=0) for _ in range(4)]
        time.sleep(1)
        killed = replicas()[0]
        killed.kill()
        events = [last.result() for last in streams]
        answers = [answer.result() for answer in whole]
    lost = [event["error"]["code"] for event in events if "error" in event]
    assert set(lost) == {"replica_lost"}
    assert 0 < len(lost) < 4
    reasons = {event["choices"][0]["finish_reason"] for event in events if "error" not in event}
    assert reasons == {"length"}
    # None of these had begun to be answered.
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1
    until(lambda: len(replicas()) == 2)  # it is replaced


@with_options(*TWO)
def test_all_replicas_die(url: str):
    expected = complete(url, temperature=0).json()["choices"][0]["text"]
    with ThreadPoolExecutor() as pool:
        whole = [pool.submit(complete, url, temperature=0) for _ in range(2)]
        with stream(url) as events:
            next(events)
            for process in replicas():  # a stream's replica is not known
                process.kill()
            *_, last = events
        assert last["error"]["code"] == "replica_lost"
        # None of the others had begun to be answered.
        answers = [answer.result() for answer in whole]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert {answer.json()["choices"][0]["text"] for answer in answers} == {expected}


@with_options(*GROWS)
def test_running_requests_decide_how_many_replicas_there_are(url: str):
    assert len(replicas()) == 1
    with ThreadPoolExecutor(8) as pool:
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                complete(url, max_tokens=1000)

        asking = [pool.submit(ask) for _ in range(6)]
        try:
            until(lambda: len(replicas()) == 2)
        finally:
            ended.set()
        [asked.result() for asked in asking]


@with_options(*FULL)
def test_a_client_that_leaves_frees_the_row(url: str):
    def engine() -> dict[str, Any]:
        return httpx.get(f"{url}/v1/engine", timeout=60).json()["models"][0]

    before = engine()["finished"].get("cancelled", 0)
    with stream(url) as events:
        next(events)
        assert engine()["running"] == 1
        assert engine()["finished"].get("cancelled", 0) == before
    until(lambda: engine()["running"] == 0)
    assert engine()["finished"]["cancelled"] == before + 1


@with_options(*FULL)
def test_too_many_requests_get_429(url: str):
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: complete(url), range(12)))
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = [answer for answer in answers if answer.status_code == 429]
    assert all(answer.headers["retry-after"] for answer in refused)
    assert {answer.json()["error"]["type"] for answer in refused} == {"rate_limit_error"}
    assert len(answers) - len(refused) >= 3
