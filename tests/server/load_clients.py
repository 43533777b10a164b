"""Clients for locust: chats, translations, embeddings, recordings, live audio; some leave early.

A few are greedy: they request many texts with all logprobs, send schemas that take for ever,
huge bodies and heads, and halves of heads.

Every answer is compared with the one that the model gave alone; the text of a live session, whose
hypotheses lie where the sound happens to arrive, by its word error. What is wrong, other than a
queue that is full, is a failure in locust's statistics; a full queue is counted as `refused`.
"""

import base64
import json
import os
import random
import socket
import time
from pathlib import Path

import gevent
import jiwer
import numpy as np
import soundfile
from locust import HttpUser, constant, task
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.sync.client import ClientConnection, connect

EXPECTED = json.loads(Path(os.environ["EXPECTED"]).read_text("utf-8"))
RECORDING = Path(os.environ["RECORDING"]).read_bytes()
SOUND = soundfile.read(os.environ["RECORDING"], dtype="int16")[0].tobytes()
"""The same recording, as 16-bit PCM at 16 kHz."""
PIECE = 16_000
"""Bytes of half a second."""
WORD_ERROR = 0.05
HUNGRY = {
    "model": "demo-chat",
    "messages": [{"role": "user", "content": "Tell a long story."}],
    "temperature": 1.0,
}
GIVES_UP = 0.1
"""Share of requests whose client leaves before the answer."""


class Client(HttpUser):
    wait_time = constant(0)

    @task(6)
    def chats(self) -> None:
        question = random.choice(list(EXPECTED["chat"]))
        body = {
            "model": "demo-chat",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 12,
        }
        if random.random() < 0.5:
            self._compare("/v1/chat/completions", EXPECTED["chat"][question], _message, json=body)
        else:
            self._stream(body | {"stream": True}, EXPECTED["chat"][question])

    @task(3)
    def translates_dates(self) -> None:
        source = random.choice(list(EXPECTED["text2text"]))
        body = {"model": "demo-t5", "input": source}
        self._compare("/v1/text2text", EXPECTED["text2text"][source], _target, json=body)

    @task(3)
    def embeds(self) -> None:
        text = random.choice(list(EXPECTED["embeddings"]))
        body = {"model": "demo-unilm", "input": text}
        self._compare("/v1/embeddings", EXPECTED["embeddings"][text], _vector, _close, json=body)

    @task(1)
    def speaks(self) -> None:
        vad = random.random() < 0.5
        files = {"file": ("a.flac", RECORDING)}
        form = {"model": "demo"} | ({"vad": "true"} if vad else {})
        expected = EXPECTED["vad" if vad else "speech"]
        name = "transcriptions with vad" if vad else "transcriptions"
        path = "/v1/audio/transcriptions"
        self._compare(path, expected, lambda it: it["text"], files=files, data=form, name=name)

    @task(1)
    def talks_live(self) -> None:
        began = time.perf_counter()
        failure, name = None, "live"
        try:
            name = "live" if self._talk() else "live, given up"
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == CloseCode.TRY_AGAIN_LATER:
                self._count_refused()
                return
            failure = closed
        except Exception as error:  # whatever goes wrong is locust's to count
            failure = error
        self._count(name, 1000 * (time.perf_counter() - began), failure)

    def _talk(self) -> bool:
        address = self.host.replace("http://", "ws://")
        url = f"{address}/v1/realtime?intent=transcription&model=demo"
        with connect(url, open_timeout=900, ping_timeout=None) as connection:
            if json.loads(connection.recv())["type"] == "error":
                connection.recv()  # raises: it is closed
            sound = {"format": {"type": "audio/pcm", "rate": 16_000}, "turn_detection": None}
            session = {"type": "transcription", "audio": {"input": sound}}
            _send(connection, "session.update", session=session)
            for at in range(0, len(SOUND), PIECE):
                piece = base64.b64encode(SOUND[at : at + PIECE]).decode()
                _send(connection, "input_audio_buffer.append", audio=piece)
                if random.random() < GIVES_UP / 50:
                    return False
            _send(connection, "input_audio_buffer.commit")
            text = _transcript(connection)
        error = jiwer.wer(_words(EXPECTED["speech"]), _words(text))
        if error > WORD_ERROR:
            raise AssertionError(f"word error {error:.3f}: {text!r}")
        return True

    def _compare(self, path, expected, read, alike=None, **request) -> None:
        with self.client.post(path, **request, timeout=900, catch_response=True) as answer:
            if answer.status_code == 429:
                self._refused(answer)
            elif answer.status_code != 200:
                answer.failure(f"{answer.status_code} {answer.error or answer.text}")
            elif not (alike or _same)(read(answer.json()), expected):
                answer.failure(f"wrong: {read(answer.json())!r}, not {expected!r}")

    def _stream(self, body, expected) -> None:
        path, gives_up = "/v1/chat/completions", random.random() < 2 * GIVES_UP
        with self.client.post(
            path, json=body, name="stream", stream=True, timeout=900, catch_response=True
        ) as answer:
            if answer.status_code == 429:
                self._refused(answer)
                return
            text = ""
            for line in answer.iter_lines():
                data = line.removeprefix(b"data: ")
                if not data or data == b"[DONE]":
                    continue
                document = json.loads(data)
                if "error" in document:
                    answer.failure(str(document))
                    return
                for choice in document["choices"]:
                    text += choice["delta"].get("content") or ""
                if gives_up and text:
                    break
            if not (expected.startswith(text) if gives_up else text == expected):
                answer.failure(f"wrong: {text!r}, not {expected!r}")

    def _refused(self, answer) -> None:
        if answer.headers.get("retry-after"):
            answer.success()
            self._count_refused()
        else:
            answer.failure("429 without Retry-After")

    def _count_refused(self) -> None:
        self._count("refused", 0, None)
        gevent.sleep(0.1)

    def _count(self, name: str, milliseconds: float, failure: Exception | None) -> None:
        self.environment.events.request.fire(
            request_type="",
            name=name,
            response_time=milliseconds,
            response_length=0,
            exception=failure,
        )


class Greedy(HttpUser):
    wait_time = constant(1)
    fixed_count = int(os.environ["GREEDY"])

    def on_start(self) -> None:
        """Hold connections that never ask, and keep a process busy with a schema."""
        address = self.host.removeprefix("http://").split(":")
        self._held = [socket.create_connection((address[0], int(address[1]))) for _ in range(20)]
        for connection in self._held:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: loc")
        patterns = [{"pattern": f"(a|b)*a(a|b){{{10 + i}}}c"} for i in range(100)]
        schema = {"type": "string", "allOf": patterns, "title": str(random.random())}
        shape = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        self._ask("schema", {400, 429}, json=HUNGRY | {"response_format": shape})

    @task
    def asks_for_many_texts(self) -> None:
        told = {"n": 16, "max_tokens": 10, "logprobs": True, "top_logprobs": 20}
        self._ask("n", {200, 429}, json=HUNGRY | told)
        self._ask("n at once", {200, 429}, json=HUNGRY | told | {"temperature": 0})
        self._ask("more than n", {400}, json=HUNGRY | {"n": 128})

    @task
    def sends_what_is_huge(self) -> None:
        ids = {"model": "demo-chat", "prompt": [[300] * 4000] * 250}
        self._ask("ids", {400, 429}, "/v1/completions", json=ids)
        text = {"model": "demo-unilm", "input": "hello " * 300_000}
        self._ask("text", {400, 429}, "/v1/embeddings", json=text)
        self._ask("headers", {431}, "/health", headers={"x": "y" * 70_000})

    def _ask(self, name: str, expected: set[int], path="/v1/chat/completions", **request) -> None:
        name = f"greedy: {name}"
        with self.client.post(
            path, name=name, timeout=900, catch_response=True, **request
        ) as answer:
            if answer.status_code in expected:
                answer.success()
            else:
                answer.failure(f"{answer.status_code} {answer.error or answer.text[:200]}")


def _send(connection: ClientConnection, kind: str, **fields) -> None:
    connection.send(json.dumps({"type": kind, **fields}))


def _transcript(connection: ClientConnection) -> str:
    while not (event := json.loads(connection.recv(timeout=900)))["type"].endswith(".completed"):
        if event["type"] == "error":
            raise AssertionError(str(event))
    return event["transcript"]


def _words(text: str) -> str:
    return " ".join("".join(c for c in text.lower() if c.isalpha() or c == " ").split())


def _same(actual, expected) -> bool:
    return actual == expected


def _close(actual, expected) -> bool:
    """Compare vectors; a batch of other lengths sums in another order."""
    return np.allclose(actual, expected, atol=1e-5)


def _vector(document):
    return document["data"][0]["embedding"]


def _message(document):
    return document["choices"][0]["message"]["content"]


def _target(document):
    return document["choices"][0]["text"]
