"""Servers that are started: their processes, and what is said of those that cannot serve."""

import io
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import soundfile
from fastapi.testclient import TestClient

from kit.tiny_gguf import tiny_llama
from kvcast.errors import KvcastError
from kvcast_bench.models import CausalModel, SpeechModel
from kvcast_bench.peers import servers
from kvcast_bench.peers.kvcast import Kvcast
from kvcast_bench.peers.servers import KvcastServer, LlamaServer, _ServerProcess
from kvcast_bench.peers.table import SERVED_SPEECH, SERVED_TEXTS
from kvcast_bench.peers.wrapper import create

READY = """
import http.server, sys
class It(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "it"}]}')
    def log_message(self, *_):
        pass
sys.stdin.read()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), It).serve_forever()
"""


class Started(_ServerProcess):
    script = READY

    def command(self, port: int) -> list[str]:
        return [sys.executable, "-c", self.script, str(port)]


class Ending(Started):
    script = "import sys; sys.exit('no room\\nfor it')"


def test_a_server_is_started_and_ended():
    server = Started(model=SpeechModel(folder="x", threads=1), name="it")
    server.load()
    (pid,) = server.processes
    assert psutil.pid_exists(pid)
    server.close()
    assert not psutil.pid_exists(pid)


def test_a_server_that_ends_says_its_last_line():
    server = Ending(model=SpeechModel(folder="x", threads=1), name="it")
    with pytest.raises(KvcastError, match=r"^the server ended with status 1: for it$"):
        server.load()


@pytest.mark.parametrize("peers", [SERVED_TEXTS, SERVED_SPEECH], ids=["texts", "speech"])
def test_every_peer_can_be_sent_to_a_process(peers: Any):
    for name, make in peers.items():
        peer = pickle.loads(pickle.dumps(make(model=CausalModel(folder="x", threads=1))))
        assert peer.name == name
        assert peer.packages
        assert peer.dtype
        assert peer.settings


def test_kvcast_serves_what_the_other_benchmarks_measure():
    model = CausalModel(folder="folder", threads=3)
    server = KvcastServer(Kvcast(model, "native", "int4", "kvcast-int4"))
    words = server.command(4711)
    assert words[1:5] == ["-m", "kvcast", "serve", "folder"]
    options = dict(zip(words[6::2], words[7::2], strict=True))
    expected = {"--port": "4711", "--threads": "3", "--runtime": "native", "--quantize": "int4"}
    assert options == expected


def llama(folder: Path) -> LlamaServer:
    model = CausalModel(folder=str(folder), threads=1)
    return LlamaServer(model=model, name="it", precision="int8", kind="Q8_0")


def test_without_llama_server_it_says_where_to_find_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(servers.shutil, "which", lambda _: None)
    assert "no llama-server on the path" in str(llama(Path("x")).unfit())


def test_llama_server_needs_a_vocabulary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(servers.shutil, "which", lambda _: "llama-server")
    assert llama(tmp_path).unfit() == "needs a GGUF file, whose vocabulary it reads"
    assert llama(tiny_llama(tmp_path / "tiny.gguf")).unfit() is None


def test_slots_share_the_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(servers.shutil, "which", lambda _: "llama-server")
    server = llama(tiny_llama(tmp_path / "tiny.gguf"))
    monkeypatch.setattr(server, "files", lambda: tmp_path)
    monkeypatch.setattr(servers, "_version", lambda: "b1")
    server.size(4, 300)
    assert server.settings == "llama-server b1; 4 slots of 512 positions"
    words = server.command(1)
    assert words[words.index("--parallel") + 1] == "4"
    assert words[words.index("--ctx-size") + 1] == str(4 * 512)


@dataclass
class FakeSpeech:
    name: str = "it"
    asked: list[Any] = field(default_factory=list)

    def transcribe(self, samples: Any, language: str, beam: int) -> str:
        self.asked.append((len(samples), language, beam))
        return " one two"


def test_the_smallest_server_answers_what_its_clients_ask():
    wav, speech = io.BytesIO(), FakeSpeech()
    soundfile.write(wav, np.zeros(160, np.float32), 16_000, format="WAV")
    with TestClient(create(speech)) as client:  # type: ignore[arg-type]
        assert client.get("/health").is_success
        assert client.get("/v1/models").json()["data"][0]["id"] == "it"
        answer = client.post(
            "/v1/audio/transcriptions",
            files={"file": ("a.wav", wav.getvalue())},
            data={"language": "de", "beam": "5"},
        )
    assert answer.json() == {"text": " one two"}
    assert speech.asked == [(160, "de", 5)]
