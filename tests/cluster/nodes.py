"""Clusters of this machine, whose nodes can be killed; none of their processes outlives a test."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Ray Serve kills a proxy that is not ready in 5 seconds, which a busy machine may need.
os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "60"


class Nodes:
    """A cluster of a head and other nodes, each with one core."""

    def __init__(self, others: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what Ray imports; tests raise warnings
            from ray.cluster_utils import Cluster
        # A killed node is noticed after five checks, by default every 3 seconds.
        checks = {"health_check_period_ms": 1000}
        head = {"num_cpus": 1, "include_dashboard": False, "_system_config": checks}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._others: list[Any] = []
        self._wanted = others
        self.refill()
        self.address: str = self._cluster.address

    def refill(self) -> None:
        while len(self._others) < self._wanted:
            self._others.append(self._cluster.add_node(num_cpus=1))

    def kill_one(self) -> None:
        """Kill a node that is not the head, with all its processes, as when its machine dies."""
        self._cluster.remove_node(self._others.pop(), allow_graceful=False)

    def close(self) -> None:
        started = psutil.Process().children(recursive=True)
        self._cluster.shutdown()
        _, alive = psutil.wait_procs(started, timeout=5)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=20)


@contextmanager
def nodes(others: int = 1) -> Iterator[Nodes]:
    before = set(psutil.Process().children(recursive=True))
    cluster = None
    try:
        cluster = Nodes(others)
        yield cluster
    finally:
        if cluster is not None:
            cluster.close()
        for process in set(psutil.Process().children(recursive=True)) - before:
            process.kill()


def start(*words: Any, **settings: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kvcast", *map(str, words)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **streams | settings)


def run(*words: Any, while_running: Callable[[], None] = lambda: None) -> tuple[int, str, str]:
    process = start(*words)
    try:
        while_running()
        out, err = process.communicate(timeout=400)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err
