"""Many clients at once, by locust: no failure, no wrong answer, no growth of memory.

Memory is compared between two rests, one after the first minute of load and one at the end: what
requests under way hold comes and goes, more of it on a slower machine. Ten minutes show a leak, ten
seconds only that nothing large is kept.
"""

import csv
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import kvcast
from kit.marks import slow, soak
from server.serving import command, until

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "examples/sense-and-sensibility.flac"
QUEUE = 12
QUESTIONS = ("What is the capital of France?", "Name three colours.", "Who wrote Emma?", "Hello!")
DATES = ("3 March 2021", "4 July 1999", "May 5, 2010")
MODELS = ("demo-chat", "demo-t5", "demo-unilm", "demo")
OPTIONS = {"quantize": "none", "threads": 1}


def alone() -> dict[str, Any]:
    chat, dates = kvcast.load("demo-chat", **OPTIONS), kvcast.load("demo-t5", **OPTIONS)
    speech, vectors = kvcast.load("demo", **OPTIONS), kvcast.load("demo-unilm", **OPTIONS)
    asked = {"max_new_tokens": 12, "chat": True}
    return {
        "chat": {text: chat.generate(text, **asked).text for text in QUESTIONS},
        "text2text": {text: dates.generate(text).text for text in DATES},
        "embeddings": {text: vectors.embed([text])[0].tolist() for text in QUESTIONS},
        "speech": heard(speech),
        "vad": heard(speech, vad=True),
    }


def heard(model: Any, **options: Any) -> str:
    segments = model.transcribe(str(RECORDING), **options)
    return "".join(segment.text for segment in segments).strip()


@pytest.mark.parametrize(
    ("clients", "greedy", "warm", "seconds", "grown", "busy", "kinds"),
    [slow(64, 1, 10, 8, 1.15, 1.5, 1), soak(128, 3, 60, 600, 1.05, 1.25, 4)],
)
def test_many_clients_at_once(tmp_path, clients, greedy, warm, seconds, grown, busy, kinds):
    (tmp_path / "expected.json").write_text(json.dumps(alone()))
    words = (*MODELS, "--quantize", "none", "--threads", "1", "--quiet", "--queue", str(QUEUE))
    with command(*words, "--live-sessions", "4") as running:
        memory = psutil.Process(running.process.pid).memory_info
        loads, resting, busiest = [], [], 0
        for load in (warm, seconds):
            with _sampled(lambda: memory().rss) as resident:
                loads.append(_load(running.url, tmp_path, clients, greedy, load))
            until(lambda: _idle(running.url))
            resting.append(memory().rss)
            busiest = max(resident)
        engines = httpx.get(f"{running.url}/v1/engine").json()["models"]
        print(json.dumps({"loads": loads, "engines": engines}, indent=1))
        print(json.dumps({"bytes at rest": resting, "at most": busiest}))
        [delay] = re.findall(
            r"^kvcast:loop_delay_seconds_max (.+)$",
            httpx.get(f"{running.url}/metrics").text,
            re.MULTILINE,
        )
        print(json.dumps({"longest delay of the loop": float(delay)}))
        assert all(not engine["busy"] for engine in engines)
        assert sum(engine["finished"].get("cancelled", 0) for engine in engines) > 0
        assert "Traceback" not in running.log
        assert "status=200" in running.log
        assert "status=5" not in running.log
        running.signal()
        assert running.ended() == 0
    first, after = resting
    assert after < grown * first
    assert busiest < busy * first
    rows = loads[0].keys() | loads[1].keys()
    assert {"live", "stream", "transcriptions with vad", "/v1/embeddings", "refused"} <= rows
    hungry = {"greedy: schema", "greedy: n", "greedy: ids", "greedy: headers"}
    assert len(hungry & rows) >= kinds
    for load in loads:
        total = load["Aggregated"]
        assert int(total["Failure Count"]) == 0
        assert int(total["Request Count"]) > clients / 2


@contextmanager
def _sampled(memory: Callable[[], int]) -> Iterator[list[int]]:
    samples: list[int] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.5):
            samples.append(memory())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _idle(url: str) -> bool:
    models = httpx.get(f"{url}/v1/engine").json()["models"]
    return not any(model["running"] or model["waiting"] for model in models)


def _load(
    url: str, folder: Path, clients: int, greedy: int, seconds: int
) -> dict[str, dict[str, str]]:
    words = [sys.executable, "-m", "locust", "-f", str(Path(__file__).with_name("load_clients.py"))]
    words += ["--headless", "-u", str(clients), "-r", str(clients), "-t", f"{seconds}s"]
    results = folder / "load"
    words += ["--host", url, "--csv", str(results), "--stop-timeout", "600", "--only-summary"]
    paths = {"EXPECTED": str(folder / "expected.json"), "RECORDING": str(RECORDING)}
    paths["GREEDY"] = str(greedy)
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, **paths}
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    with Path(f"{results}_stats.csv").open() as file:
        return {row["Name"]: row for row in csv.DictReader(file)}
