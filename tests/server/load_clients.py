"""Clients for locust: they chat, translate dates and send recordings, and some give up.

Every answer is compared with the one that the model gave alone. What is wrong, other than a queue
that is full, is a failure in locust's statistics.
"""

import json
import os
import random
from pathlib import Path

from locust import HttpUser, constant, task

EXPECTED = json.loads(Path(os.environ["EXPECTED"]).read_text("utf-8"))
RECORDING = Path(os.environ["RECORDING"]).read_bytes()
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

    @task(1)
    def speaks(self) -> None:
        files, form = {"file": ("a.flac", RECORDING)}, {"model": "demo"}
        path = "/v1/audio/transcriptions"
        self._compare(path, EXPECTED["speech"], lambda it: it["text"], files=files, data=form)

    def _compare(self, path, expected, found, **request) -> None:
        with self.client.post(path, **request, timeout=900, catch_response=True) as answer:
            if answer.status_code == 429:
                _refused(answer)
            elif answer.status_code != 200:
                answer.failure(f"{answer.status_code} {answer.text}")
            elif found(answer.json()) != expected:
                answer.failure(f"wrong: {found(answer.json())!r}, not {expected!r}")

    def _stream(self, body, expected) -> None:
        path, gives_up = "/v1/chat/completions", random.random() < 2 * GIVES_UP
        with self.client.post(
            path, json=body, name="stream", stream=True, timeout=900, catch_response=True
        ) as answer:
            if answer.status_code == 429:
                _refused(answer)
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


def _refused(answer) -> None:
    """Take a full queue for what it is, if it says when to come again."""
    if answer.headers.get("retry-after"):
        answer.success()
    else:
        answer.failure("429 without Retry-After")


def _message(document):
    return document["choices"][0]["message"]["content"]


def _target(document):
    return document["choices"][0]["text"]
