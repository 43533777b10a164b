"""A server on a cluster that is begun for it: signals, and failures at its start."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import psutil
import pytest

from cluster.nodes import run
from cluster.served import begun, complete, free_port, last_event
from server.serving import until

pytestmark = pytest.mark.slow


def test_running_requests_end_and_others_are_refused(tmp_path):
    with begun("local", tmp_path, "--drain", 600, start_new_session=True) as command:
        began = threading.Semaphore(0)
        with ThreadPoolExecutor() as pool:
            stream = pool.submit(last_event, command.url, began)
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
            stream = pool.submit(last_event, command.url, began)
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
        for child in psutil.Process(command.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.terminate()
        command.end()
        assert "Traceback" not in command.said()


@pytest.mark.soak  # as on a cluster with other applications
def test_a_model_that_cannot_be_opened_is_one_line(tmp_path):
    model = tmp_path / "none"
    code, out, err = run("serve", model, "--ray", "local", "--port", free_port())
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"kvcast: no model '{model}': ")
