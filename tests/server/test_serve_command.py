"""`kvcast serve` as a process: start, drain, end, refusals, commands of the docs."""

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from kvcast.cli import main, serve
from kvcast.errors import InputOutputError
from kvcast.server.model_registry import Models
from kvcast.server.params import ServeParams
from kvcast.server.uvicorn_server import bound, run
from server.serving import Command, command, until

DEMO = ("demo-t5", "--threads", "1", "--quiet")
LONG = {"model": "demo-t5", "input": ["3 March 2021"] * 30, "n": 16, "temperature": 1.5}


def asked(url: str, **options: Any) -> Any:
    return httpx.post(f"{url}/v1/text2text", json=LONG | options, timeout=60)


def _client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=60, headers={"authorization": "Bearer secret"})


def test_it_serves_until_it_is_asked_to_end():
    words, key = (*DEMO, "--alias", "dates=demo-t5", "--log-json"), {"KVCAST_API_KEY": "secret"}
    with command(*words, environment=key) as running, _client(running.url) as http:
        assert http.get("/v1/models", headers={"authorization": "Bearer other"}).status_code == 401
        body = {"model": "dates", "input": "3 March 2021", "temperature": 0}
        answer = http.post("/v1/text2text", json=body)
        assert answer.json()["choices"][0]["text"] == "2021-03-03"
        assert "serving demo-t5, dates at http://127.0.0.1:" in running.log
        status = http.get("/v1/engine").json()["models"]
        names = [(model["id"], model["alias_of"]) for model in status]
        assert names == [("demo-t5", None), ("dates", "demo-t5")]
        running.signal()
        assert running.ended() == 0
        assert json.loads(running.log.splitlines()[-1])["message"] == "stopped"
        lines = [json.loads(line) for line in running.log.splitlines()]
        [request] = [line for line in lines if line.get("path") == "/v1/text2text"]
        assert (request["status"], request["model"]) == (200, "dates")
        used = answer.json()["usage"]
        assert request["prompt_tokens"] == used["prompt_tokens"]
        assert request["completion_tokens"] == used["completion_tokens"]
        assert 0 < request["first_token"] < request["seconds"]
        assert request["tokens_per_second"] > 0
        assert "ignored" not in request
        assert all({"time", "level", "message"} <= line.keys() for line in lines)


def test_requests_under_way_end_and_new_ones_are_refused():
    with command(*DEMO, "--drain", "600") as running:
        url, answers = running.url, []
        thread = threading.Thread(target=lambda: answers.append(asked(url)))
        thread.start()
        until(lambda: httpx.get(f"{url}/v1/engine").json()["models"][0]["running"])
        running.signal()
        until(lambda: _stops(running))
        assert thread.is_alive()
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
            pytest.raises((openai.APIConnectionError, openai.InternalServerError)),
        ):
            client.models.list()
        thread.join()
        assert [answer.status_code for answer in answers] == [200]
        assert len(answers[0].json()["choices"]) == 16 * 30
        assert re.search(r"draining \d+ requests?, 600 s at most", running.log)
        assert running.ended() == 0


@pytest.mark.slow
def test_the_drain_has_an_end_and_so_has_patience():
    for ends, code in ((1, 0), (2, 128 + signal.SIGTERM)):
        with command(*DEMO, "--drain", "1" if ends == 1 else "60") as running:
            url = running.url
            thread = threading.Thread(target=_until_cut, args=(url,))
            thread.start()
            until(lambda at=url: httpx.get(f"{at}/v1/engine").json()["models"][0]["running"])
            for _ in range(ends):
                running.signal()
                until(lambda server=running: server.process.poll() is not None or _stops(server))
            assert running.ended() == code
            thread.join()


def _stops(running: Command) -> bool:
    try:
        return httpx.get(f"{running.url}/ready").status_code == 503
    except httpx.TransportError:
        return True


def _until_cut(url: str) -> None:
    try:
        while asked(url).status_code == 200:
            continue
    except httpx.TransportError:
        return


@pytest.mark.slow
def test_a_killed_server_leaves_nothing_behind(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    for _ in range(2):
        with command(*DEMO, "--port", port, environment={"TMPDIR": str(tmp_path)}) as running:
            url = running.url
            assert url.endswith(port)
            thread = threading.Thread(target=_until_cut, args=(url,))
            thread.start()
            until(lambda at=url: httpx.get(f"{at}/v1/engine").json()["models"][0]["running"])
            running.signal(signal.SIGKILL)
            assert running.ended() == -signal.SIGKILL
            thread.join()
    # A library keeps its own notes there; an upload or a bundle would be larger.
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 100_000


def test_a_port_taken_during_loading_is_reported():
    with socket.socket() as early:
        early.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        early.bind(("127.0.0.1", 0))  # bound, as those are that still open their models
        params = ServeParams(port=early.getsockname()[1])
        late = bound(params)
        early.listen()
        with pytest.raises(InputOutputError, match="cannot listen at 127"):
            run(Models([]), params, late, lambda: None)


def test_the_first_lines_say_where_everything_is_and_what_to_try():
    with command("demo-t5", "--threads", "1") as running:
        until(lambda: "for caches" in running.log)
        greeting, places, tried, reserved = running.log.splitlines()[-4:]
        assert greeting == f"kvcast: serving demo-t5 at {running.url}"
        assert f"page {running.url}/, documentation {running.url}/docs" in places
        assert f"OpenAI base URL {running.url}/v1" in places
        words = shlex.split(tried.removeprefix("kvcast: try: "))
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["choices"][0]["message"]["role"] == "assistant"
        assert re.fullmatch(r"kvcast: 1 threads, at most [\d.]+ [MG]B for caches", reserved)


def test_a_taken_port_is_reported_before_loading(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "demo-t5", "--port", str(taken.getsockname()[1])]) == 74
    assert "cannot listen at 127.0.0.1" in capsys.readouterr().err


WRONG = {
    "named twice": ["demo-t5", "demo-t5"],
    "not one of the models": ["demo-t5", "--alias", "a=demo"],
    "must be NAME=MODEL or auto": ["demo-t5", "--alias", "a"],
    "the name demo-t5": ["demo-t5", "demo-unilm", "--alias", "demo-t5=demo-unilm"],
    "rows": ["demo-t5", "--rows", "0"],
    "port": ["demo-t5", "--port", "70000"],
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_usage_is_one_line(said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", *WRONG[said]]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_model_that_is_missing(capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "./nowhere", "--port", "0", "--quiet"]) == 66
    assert "nowhere" in capsys.readouterr().err


def test_without_the_extra_the_error_names_it(monkeypatch, capsys):
    for name in [*sys.modules]:
        if name.startswith("kvcast.server"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "demo-t5"]) == 1
    assert "pip install 'kvcast[server]'" in capsys.readouterr().err


def test_requests_beyond_the_drain_get_503():
    with command(*DEMO, "--drain", "0.1") as running:
        url, answers = running.url, []
        many = {"n": 16, "input": ["3 March 2021"] * 256}
        ask = threading.Thread(target=lambda: answers.append(asked(url, **many)))
        ask.start()
        until(lambda: httpx.get(f"{url}/v1/engine").json()["models"][0]["running"])
        running.signal()
        ask.join()
        assert running.ended() == 0
    [answer] = answers
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"
    assert "Traceback" not in running.log


def test_caches_of_several_models_share_the_memory_left(monkeypatch: pytest.MonkeyPatch):
    class Promised:
        def status(self) -> Any:
            return SimpleNamespace(cache_bytes=600)

    monkeypatch.setattr("kvcast.engine.engine.available_bytes", lambda: 1500)
    engine = Promised()
    for before, budget in (
        ([], 500),
        ([engine], 300),
        ([engine, engine], 300),
        ([engine, Promised()], 100),
    ):
        assert serve._cache_memory(ServeParams(), before) == budget
    assert serve._cache_memory(ServeParams(cache_memory=3), [engine]) == 3 << 20


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/serve.md").read_text("utf-8")
BLOCKS = re.findall(r"```(sh|python)\n(.*?)\n```", PAGE, re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"
SAID = {
    "sense-and-sensibility": "Dashwood had then leisure",
    "demo-chat": "2 + 3 = 5",
    "text2text": "2021-03-03",
}


def test_there_are_blocks_of_both_kinds():
    assert {kind for kind, _ in BLOCKS} == {"sh", "python"}
    assert all(any(name in block for name in SAID) for _, block in BLOCKS)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with command("demo", "demo-chat", "demo-t5", "demo-unilm", "--quiet") as running:
        yield running.url


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(address: str, number: int):
    kind, block = BLOCKS[number]
    if kind == "sh" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert ADDRESS in block
    block = block.replace(ADDRESS, address)
    words = ["bash", "-c", block] if kind == "sh" else [sys.executable, "-W", "error", "-c", block]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert next(text for name, text in SAID.items() if name in block) in done.stdout
