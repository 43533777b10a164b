"""Models of speech beside Whisper on a cluster: a folder, and a server's answers."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

import kvcast
from cluster.nodes import Nodes, nodes, run
from cluster.served import begun
from kit.recordings import speech_folder

RATE = 16_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes() as running:
        yield running


def noise(seconds: float, seed: int) -> Any:
    return np.random.default_rng(seed).normal(0, 0.1, round(RATE * seconds)).astype(np.float32)


def test_a_folder_has_the_transcripts_of_one_machine(tmp_path: Path, cluster: Nodes):
    model = speech_folder("parakeet_tdt", tmp_path / "parakeet")
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    for seed in range(3):
        soundfile.write(sounds / f"{seed}.wav", noise(2.0, seed), RATE)
    given = ["transcribe", sounds, "--model", model, "--runtime", "native", "--threads", "1"]
    given += ["--word-timestamps", "--quiet", "--format", "json", "--json"]
    for place, words in (("here", []), ("there", ["--ray", cluster.address])):
        code, out, err = run(*given, "--output-dir", tmp_path / place, *words)
        assert (code, err) == (0, "")
        assert json.loads(out)["done"] == 3
    for seed in range(3):
        here, there = (
            json.loads((tmp_path / place / f"{seed}.json").read_text())
            for place in ("here", "there")
        )
        assert here == there
        assert here["segments"][0]["words"]


def test_a_server_on_a_cluster_answers_as_the_model_does(tmp_path: Path, cluster: Nodes):
    folder = speech_folder("moonshine_streaming", tmp_path / "moonshine")
    model = kvcast.load(folder, runtime="native", quantize="none", threads=1)
    samples = (np.round(noise(1.5, 0) * 32768) / 32768).astype(np.float32)
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
