"""A cluster's only server of kvcast: what others serve stays, and what was left is taken over."""

import subprocess
import sys

import httpx
import pytest

from cluster.nodes import nodes, run
from cluster.served import begun, complete, free_port, serving

pytestmark = pytest.mark.slow

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
        with serving(cluster.address, tmp_path) as url:
            assert complete(url, max_tokens=1).status_code == 200
            # Ray itself may listen at a port that becomes free, but speaks no HTTP there.
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{command.url}/health")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/health")
