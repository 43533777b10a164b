"""Clients of a server that follows a script: what they take note of, and what ends them."""

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Barrier, Thread

import pytest

from kit.errors import one_line
from kvcast.errors import KvcastError
from kvcast_bench.clients import Post, ask

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}
MET = Barrier(2, timeout=60)


def chunk(text: str) -> dict[str, object]:
    return {"choices": [{"text": text}], "usage": None}


class Script(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/refused":
            self.send_error(429, "too many")
            return
        if self.path == "/meet":  # answers only when two ask at once
            MET.wait()
        if self.path == "/form":
            lines = [json.dumps({"text": f"{b'tone' in body} {b'de' in body}"})]
        elif self.path == "/quiet":
            lines = [json.dumps({"text": ""})]
        elif self.path == "/broken":
            lines = [
                f"data: {json.dumps(event)}\n\n" for event in (chunk("a"), {"error": "no room"})
            ]
        elif self.path == "/silent":
            lines = ["data: [DONE]\n\n"]
        else:
            asked = json.loads(body)["prompt"]
            events = [chunk(asked), chunk(""), chunk("!"), {"choices": [], "usage": USAGE}]
            lines = [*(f"data: {json.dumps(event)}\n\n" for event in events), "data: [DONE]\n\n"]
        whole = "".join(lines).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(whole)))
        self.end_headers()
        for line in lines:
            self.wfile.write(line.encode())
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Script) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def text(prompt: str, path: str = "/texts") -> Post:
    return Post(path=path, document={"prompt": prompt})


def test_pieces_with_text_are_noted_and_usage_is_read(url: str):
    served = ask(url, [[text("one")]])
    (answer,) = served.answers
    assert answer.text == "one!"
    assert len(answer.times) == 2
    assert (answer.tokens, answer.prompt_tokens, answer.cached_tokens) == (3, 7, 5)
    assert 0 < answer.first <= answer.last <= served.seconds
    assert served.processor > 0


def test_a_client_asks_again_when_it_is_answered(url: str):
    answers = ask(url, [[text("a"), text("b")], [text("c"), text("d")]]).answers
    assert [answer.text for answer in answers] == ["a!", "b!", "c!", "d!"]
    assert answers[1].sent >= answers[0].times[-1]
    assert answers[3].sent >= answers[2].times[-1]


def test_clients_ask_at_the_same_time(url: str):
    assert len(ask(url, [[text("a", "/meet")], [text("b", "/meet")]]).answers) == 2


def test_a_form_has_a_file(url: str):
    posts = [[Post(path="/form", form={"language": "de"}, file=b"tone")]]
    assert ask(url, posts).answers[0].text == "True True"


def test_a_clip_may_say_nothing(url: str):
    (answer,) = ask(url, [[Post(path="/quiet", form={}, file=b"hum")]]).answers
    assert (answer.text, len(answer.times)) == ("", 1)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/refused", "answered with status 429: .*too many"),
        ("/broken", "answered no room"),
        ("/silent", "answered with no text"),
    ],
)
def test_a_server_that_fails_is_one_line(path: str, message: str, url: str):
    assert re.search(message, one_line(KvcastError, ask, url, [[text("a", path)]]))


def test_nobody_there_is_one_line():
    with pytest.raises(KvcastError, match="the server does not answer: "):
        ask("http://127.0.0.1:9", [[text("a")]])
