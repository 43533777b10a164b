"""Middleware before every route: keys, hosts, sizes, slow uploads, origins, the log."""

import contextlib
import json
import logging
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from kit.text_models import saying
from kvcast.server import middleware, request_bodies, uvicorn_server
from kvcast.server.metrics import LogFormatter, install
from server.serving import Server, serving, until

HELLO = [{"role": "user", "content": "a private matter"}]
ROOT = Path(__file__).parents[2]
WHOLE = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
ASKED = {"model": "world", "messages": HELLO, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving({"world": saying("Hello, world")}, max_body=1, max_upload=2) as running:
        yield running


def test_only_keys_that_are_known_come_in():
    with serving({"world": saying("hi")}, api_key=("first", "second")) as server:
        for key in ("first", "second"):
            assert server.client(api_key=key).models.list().data
        for key in ("third", "firs", "firstt"):
            with pytest.raises(openai.AuthenticationError, match="API key") as refused:
                server.client(api_key=key).chat.completions.create(**ASKED)
            assert refused.value.code == "invalid_api_key"
        with server.http() as http:
            assert http.get("/v1/models").headers["www-authenticate"] == "Bearer"
            assert http.get("/metrics").status_code == 401
            assert http.get("/v1/nothing").status_code == 401
            assert [http.get(path).status_code for path in ("/health", "/ready")] == [200, 200]


def test_a_key_comes_with_its_scheme():
    with serving({"world": saying("hi")}, api_key="first") as server, server.http() as http:

        def asked(authorization: str) -> int:
            return http.get("/v1/models", headers={"authorization": authorization}).status_code

        for let_in in ("Bearer first", "bearer first", "BEARER  first"):
            assert asked(let_in) == 200, let_in
        for refused in ("first", "Basic first", "Bearer", "Bearerfirst", "Bearer first second"):
            assert asked(refused) == 401, refused
        assert http.get("/docs").status_code == http.get("/openapi.json").status_code == 401


def test_methods_that_a_path_has(server: Server):
    with server.http() as http:
        for path in ("/", "/health", "/ready"):
            answer = http.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
        for path, allowed in (("/v1/models", "GET"), ("/v1/chat/completions", "POST")):
            answer = http.delete(path)
            assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_foreign_host_name_is_refused_at_a_local_address(server: Server):
    with server.http() as http:
        for name in ("localhost", f"localhost:{server.port}", "127.0.0.1", "[::1]:80", "10.0.0.1"):
            assert http.get("/health", headers={"host": name}).status_code == 200, name
        answer = http.get("/v1/models", headers={"host": "evil.example"})
        assert answer.status_code == 421
        assert answer.json()["error"]["type"] == "invalid_request_error"
    with serving({"a": saying("a")}, allow_host="box.lan") as named, named.http() as http:
        assert http.get("/health", headers={"host": "box.lan"}).status_code == 200


def test_pages_from_elsewhere_may_not_ask_unless_allowed(server: Server):
    asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
    with server.http() as http:
        answer = http.options("/v1/chat/completions", headers=asked)
        assert "access-control-allow-origin" not in answer.headers
    allowed = serving({"a": saying("a")}, cors_origin="https://app.example")
    with allowed as open_to, open_to.http() as http:
        answer = http.options("/v1/chat/completions", headers=asked)
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        shown = http.get("/v1/models", headers=asked).headers["access-control-expose-headers"]
        assert shown == "x-request-id, x-ignored-fields, retry-after"
        other = http.options("/v1/models", headers=asked | {"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


def test_bodies_that_are_too_large_are_refused_as_they_come(server: Server):
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 100 << 20:
            sent += 1 << 16
            yield bytes(1 << 16)

    with server.http() as http:
        for path in ("/v1/chat/completions", "/v1/audio/transcriptions"):
            sent, most = 0, 24 << 20  # sockets hold some of it
            kind = {"content-type": "multipart/form-data; boundary=x"}
            with contextlib.suppress(Exception):
                answer = http.post(path, content=endless(), headers=kind)
                assert answer.status_code == 413
            assert sent < most
        head = {"content-length": str(2 << 30), "content-type": "application/json"}
        with raw(server, "/v1/chat/completions", head) as connection:
            assert b" 413 " in connection.recv(100)


@contextlib.contextmanager
def raw(server: Server, path: str, headers: dict[str, str]) -> Iterator[socket.socket]:
    lines = [f"POST {path} HTTP/1.1", "host: localhost"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        yield connection


def test_uploads_that_stop_half_way_are_ended(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(middleware, "SILENCE", 0.3)
    headers = {"content-length": "1000", "content-type": "multipart/form-data; boundary=x"}
    with raw(server, "/v1/audio/transcriptions", headers) as connection:
        connection.sendall(b"--x\r\n")
        answer = connection.recv(1000)
    assert b" 408 " in answer
    with raw(server, "/v1/audio/transcriptions", headers):
        pass  # leaves at once
    assert server.client().models.list().data


def test_a_body_that_trickles_is_cut_off():
    headers = {"content-length": "100000", "content-type": "application/json"}
    with (
        serving({"world": saying("hi")}, timeout=0.3) as server,
        raw(server, "/v1/chat/completions", headers) as connection,
    ):
        connection.settimeout(0.02)
        answer = b""
        for _ in range(3000):
            connection.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(1000)
                break
        assert b" 408 " in answer
        assert b"did not come within 0.3 seconds" in answer


FORM = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="a"'
MALFORMED = {
    "no boundary": ("multipart/form-data", b"--x\r\n"),
    "no end": (FORM, b"--x\r\nContent-"),
    "no parts": (FORM, b"--x--"),
    "garbage": (FORM, bytes(range(256)) * 10),
    "json": ("application/json", b'{"model": "world"}'),
    "many fields": (FORM, (PART + b"\r\n\r\nb\r\n") * 5000 + b"--x--"),
    "many files": (FORM, (PART + b'; filename="b"\r\n\r\nc\r\n') * 5 + b"--x--"),
    "a large field": (FORM, PART[:-3] + b'"model"\r\n\r\n' + b"b" * 1_500_000 + b"--x--"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_forms_are_refused(server: Server, name: str):
    kind, body = MALFORMED[name]
    with server.http() as http:
        headers = {"content-type": kind}
        answer = http.post("/v1/audio/transcriptions", headers=headers, content=body)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


HEADS = {
    "a URL": (b"GET /health?" + b"x" * 9000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 414),
    "a URL without end": (b"GET /health?" + b"x" * 90_000, 414),
    "headers": (b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 20_000, 431),
    "a header": (
        b"GET /health HTTP/1.1\r\nhost: localhost\r\na: " + b"b" * 70_000 + b"\r\n\r\n",
        431,
    ),
    "a header without end": (b"GET /health HTTP/1.1\r\na: " + b"b" * 200_000, 431),
    "the head of a WebSocket": (
        b"GET /v1/realtime HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: x3JJHMbDL1EzLkh9GBhXDw==\r\n"
        b"host: localhost\r\n" + b"a: b\r\n" * 12_000 + b"\r\n",
        431,
    ),
    "a large one within bounds": (
        b"GET /health?" + b"x" * 8000 + b" HTTP/1.1\r\nhost: localhost\r\na: "
        b"" + b"b" * 60_000 + b"\r\n\r\n",
        200,
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_bounded(server: Server, name: str):
    head, status = HEADS[name]
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head)
        assert connection.recv(1000).startswith(b"HTTP/1.1 %d " % status)


def check_health(connection: socket.socket) -> None:
    """Request /health, and read the whole response: its body may come after its head."""
    connection.sendall(WHOLE)
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(4000)
    assert b" 200 " in answer


@pytest.mark.parametrize("before", [b"", WHOLE], ids=["first", "second"])
@pytest.mark.parametrize("half", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: lo"])
def test_half_a_head_is_not_waited_for(server, monkeypatch, before, half):
    monkeypatch.setattr(uvicorn_server, "HEAD_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        if before:
            check_health(connection)
            half = half or b"\r\n"
        if half:
            connection.sendall(half)
        if half.strip():
            assert b" 408 " in connection.recv(4000)
        assert connection.recv(100) == b""  # closed without a word, where nothing was asked


def test_a_connection_at_rest_is_kept_for_longer_than_clients_keep_theirs(server: Server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        check_health(connection)
        connection.settimeout(httpx.Limits().keepalive_expiry + 0.5)
        with pytest.raises(TimeoutError):  # else b"": closed
            connection.recv(4000)


def test_connections_are_bounded():
    with serving({"world": saying("hi")}, max_connections=5) as server:
        check_bound(server, 5, "many connections:")
    with serving({"world": saying("hi")}, max_connections_per_address=3) as server:
        check_bound(server, 3, "from this address")


def check_bound(server: Server, most: int, said: str) -> None:
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.port)
        for _ in range(most):
            first = stack.enter_context(socket.create_connection(address, timeout=30))
            check_health(first)
        other = stack.enter_context(socket.create_connection(address, timeout=30))
        answer = other.recv(4000).decode()
        assert " 429 " in answer
        assert "retry-after" in answer
        assert said in answer
        first.close()
        until(lambda: server.connections < most)
        with server.http() as http:
            assert http.get("/health").status_code == 200


def test_the_bodies_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    take = middleware.Bodies.take

    def noted(bodies: middleware.Bodies, size: int) -> None:
        sizes.append(size)
        take(bodies, size)

    monkeypatch.setattr(middleware.Bodies, "take", noted)
    headers = {"content-type": "multipart/form-data; boundary=x"}
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="b"\r\n\r\n'
    path, body = "/v1/audio/transcriptions", part + bytes(2_000_000)
    with serving({"world": saying("hi")}, max_uploads_bytes=3_000_000) as server:

        def status() -> int:
            with server.http() as http:
                whole = body + b"\r\n--x--"
                return http.post(path, headers=headers, content=whole).status_code

        assert status() == 400  # there is no model
        until(lambda: sum(sizes) == 0)  # an answer comes before its request is over
        with raw(server, path, headers | {"content-length": "2500000"}) as first:
            first.sendall(body)
            until(lambda: sum(sizes) == len(body))
            assert status() == 429
            assert server.client().chat.completions.create(**ASKED)  # a small one has room
        until(lambda: status() == 400)


def test_a_large_body_is_in_a_file_until_it_is_read(server, monkeypatch):
    monkeypatch.setattr(request_bodies, "SPOOLED", 1000)
    rolled: list[int] = []
    plain = tempfile.SpooledTemporaryFile.rollover
    monkeypatch.setattr(
        tempfile.SpooledTemporaryFile,
        "rollover",
        lambda spooled: (rolled.append(spooled.tell()), plain(spooled))[1],
    )
    for size, files in ((100, 0), (900_000, 1)):
        asked = ASKED | {"user": "x" * size}
        assert server.client().chat.completions.create(**asked).choices[0].message.content
        assert len(rolled) == files


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"a"', b"\xff", b'{"model": 1}', b"[" * 50_000]
)
def test_malformed_json_is_refused(server: Server, body: bytes):
    with server.http() as http:
        headers = {"content-type": "application/json"}
        answer = http.post("/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_full_disk_is_reported_without_paths(server: Server, monkeypatch: pytest.MonkeyPatch):
    import tempfile

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device", "/var/tmp/secret")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    with server.http() as http:
        answer = http.post(
            "/v1/audio/transcriptions", data={"model": "world"}, files={"file": b"abc"}
        )
    assert answer.status_code == 507
    assert "secret" not in answer.text
    assert "no room" in answer.json()["error"]["message"]


def test_a_slow_reader_blocks_no_other_client():
    with serving({"long": saying("ab" * 900), "world": saying("hi")}) as server:
        body = json.dumps(ASKED | {"model": "long", "stream": True, "logprobs": True}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        with raw(server, "/v1/chat/completions", headers) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(body)
            assert slow.recv(1)
            for _ in range(3):
                time.sleep(0.05)
                assert slow.recv(1)
                answer = server.client().chat.completions.create(**ASKED)
                assert answer.choices[0].message.content == "hi"
            until(lambda: server.status("long").running == 0)  # the text is done, and waits


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(LogFormatter(as_json=True).format(record))


@pytest.fixture
def log() -> Iterator[Records]:
    records, logger = Records(), logging.getLogger("kvcast.server")
    logger.addHandler(records)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield records
    logger.setLevel(level)
    logger.removeHandler(records)


def test_a_request_is_one_log_line_without_its_content(server: Server, log: Records):
    raw_answer = server.client().chat.completions.with_raw_response.create(**ASKED)
    until(lambda: log.lines)
    [line] = log.lines
    fields = json.loads(line)
    assert (fields["status"], fields["path"]) == (200, "/v1/chat/completions")
    assert fields["request"] == raw_answer.headers["x-request-id"]
    assert "private" not in line
    assert "Hello" not in line
    with pytest.raises(openai.NotFoundError):
        server.client().chat.completions.create(**ASKED | {"model": "nope"})
    until(lambda: len(log.lines) == 2)
    assert json.loads(log.lines[1])["error"] == "model_not_found"


def test_content_is_logged_if_that_is_asked_for(log: Records):
    with serving({"world": saying("Hello, world")}, log_content=True) as server:
        server.client().chat.completions.create(**ASKED)
        until(lambda: log.lines)
    assert "Hello, world" in log.lines[0]
    assert "private" in log.lines[0]


def test_libraries_and_warnings_are_in_the_log_as_well(capfd: pytest.CaptureFixture[str]):
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        install(as_json=True)
        install(as_json=True)  # the second one takes the place of the first
        logging.getLogger("python_multipart.multipart").warning("Skipping data after last boundary")
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("kvcast.server").info("request", extra={"fields": {"status": 200}})
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(False)  # where another server's test has captured them
            logging.captureWarnings(True)  # again, as pytest has its own way
            warnings.warn("it is old", stacklevel=1)
            logging.captureWarnings(False)
    finally:
        root.handlers = before
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    expected = ("Skipping data", "Invalid HTTP request", "request", "it is old")
    assert len(lines) == len(expected)
    assert all(said in line["message"] for said, line in zip(expected, lines, strict=True))


def test_lines_of_text_stay_lines():
    record = logging.LogRecord("a", logging.INFO, "", 0, "request", (), None)
    record.fields = {"path": '/a\n level=error "x"', "status": 200}
    line = LogFormatter(as_json=False).format(record)
    assert "\n" not in line
    assert line.endswith('info path="/a\\n level=error \\"x\\"" status=200')


def test_an_internal_error_reveals_nothing(log: Records, caplog: Any):
    def broken() -> None:
        raise RuntimeError(f"at {ROOT}/secret.py")

    with serving({"world": saying("hi", before_step=broken)}) as server:
        with pytest.raises(openai.InternalServerError) as failed:
            server.client().chat.completions.create(**ASKED)
        assert failed.value.type == "server_error"
        assert "secret" not in failed.value.message
        assert "secret" in caplog.text
        assert server.client().models.list().data


def test_while_it_drains_nothing_new_begins(server: Server):
    server.draining = True
    try:
        with pytest.raises(openai.InternalServerError, match="stops") as refused:
            server.client().chat.completions.create(**ASKED)
        assert refused.value.status_code == 503
        with server.http() as http:
            assert http.get("/ready").status_code == 503
            assert http.get("/health").status_code == 200
    finally:
        server.draining = False
