"""A cluster has one server of kvcast: others' applications stay, a killed one is replaced."""

import io
import json
import subprocess
import sys

import httpx
import numpy as np
import pytest
import soundfile

import kvcast
from cluster.nodes import nodes, run
from cluster.served import begun, complete, free_port, serving
from kit.recordings import speech_folder

RATE = 16_000

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


def test_other_applications_of_the_cluster_stay(tmp_path):
    port = free_port()
    with nodes(0) as cluster:
        words = [sys.executable, "-c", OTHERS, cluster.address, str(port)]
        subprocess.run(words, check=True, capture_output=True)
        there = ["serve", "demo", "--ray", cluster.address, "--port"]
        code, out, err = run(*there, free_port())
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"listens at 127.0.0.1:{port}: give --host 127.0.0.1 --port {port}" in err
        model = tmp_path / "none"
        code, out, err = run("serve", model, *there[2:], port)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith(f"kvcast: no model '{model}': ")
        with begun(cluster.address, tmp_path, "--port", port) as command:
            assert complete(command.url, max_tokens=1).status_code == 200
            command.end()
        answer = httpx.get(f"http://127.0.0.1:{port}/others")
        assert (answer.status_code, answer.text) == (200, "here")


@pytest.fixture(scope="module")
def cluster():
    with nodes() as running:
        yield running


def test_a_killed_commands_server_is_replaced(tmp_path, cluster):
    with begun(cluster.address, tmp_path) as command:
        code, _, err = run("serve", "demo", "--ray", cluster.address, "--port", free_port())
        assert code == 2
        assert f"serves kvcast already, by process {command.process.pid} of " in err
    # It answers until the cluster notices.
    assert complete(command.url, max_tokens=1).status_code in (200, 404)
    # Elsewhere, since nobody else uses what was left.
    with serving(cluster.address, tmp_path) as url:
        assert complete(url, max_tokens=1).status_code == 200
        # Ray itself may listen at a port that becomes free, but speaks no HTTP there.
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{command.url}/health")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health")


def test_a_server_on_a_cluster_answers_as_the_model_does(tmp_path, cluster):
    folder = speech_folder("moonshine_streaming", tmp_path / "moonshine")
    model = kvcast.load(folder, runtime="native", quantize="none", threads=1)
    samples = (
        np.round(np.random.default_rng(0).normal(0, 0.1, RATE * 3 // 2) * 32768) / 32768
    ).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV")
    with begun(cluster.address, tmp_path, model=folder) as command:
        for stream in ("false", "true"):
            answer = httpx.post(
                f"{command.url}/v1/audio/transcriptions",
                files={"file": ("a.wav", file.getvalue())},
                data={"model": "moonshine", "stream": stream, "response_format": "json"},
                timeout=120,
            )
            assert answer.status_code == 200, answer.text
            last = answer.text.removesuffix("\n\n").rsplit("data: ", 1)[-1]
            expected = "".join(segment.text for segment in model.transcribe(samples)).strip()
            assert json.loads(last)["text"] == expected
        command.end()
