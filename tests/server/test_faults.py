"""Threats to a server: exponential schemas, long prompts, floods; unloaded models."""

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from kit.text_models import saying
from server.serving import Server, serving
from server.test_chat_completions import WEATHER, ask

POSITIONS = 300


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {"world": saying("Hello, world"), "short": saying("ab" * POSITIONS, POSITIONS)}
    with serving(models, max_upload=16) as running:
        yield running


def asked(server: Server, schema: dict[str, Any], **options: Any) -> Any:
    shape = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return ask(server.client(), response_format=shape, max_tokens=50, **options)


def doubling(depth: int) -> dict[str, Any]:
    """A schema whose expansion has 2 ** depth parts."""
    parts = {f"level{i}": {"allOf": [{"$ref": f"#/$defs/level{i + 1}"}] * 2} for i in range(depth)}
    return {"$defs": parts | {f"level{depth}": {"type": "object"}}, "$ref": "#/$defs/level0"}


def together(count: int) -> dict[str, Any]:
    patterns = [{"type": "string", "pattern": f"^(a|b{i}|c*d)*x{{{i}}}"} for i in range(count)]
    return {"type": "object", "properties": {"a": {"allOf": patterns}}, "required": ["a"]}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE = {"doubling": doubling(40), "together": together(150), "nested": nested(150)}


@pytest.mark.parametrize("name", HOSTILE)
def test_exponential_schemas_leave_other_requests_alone(server: Server, name: str):
    outcomes: list[Any] = []

    def send() -> None:
        try:
            outcomes.append(asked(server, HOSTILE[name]))
        except openai.APIStatusError as error:
            outcomes.append(error)

    hostile = threading.Thread(target=send)
    hostile.start()
    for _ in range(5):
        assert ask(server.client()).choices[0].message.content == "Hello, world"
    hostile.join()
    [outcome] = outcomes
    if isinstance(outcome, openai.APIStatusError):
        assert outcome.status_code == 400
        assert "\n" not in outcome.message


def test_tools_with_such_schemas_are_refused_as_well(server: Server):
    function = {"name": "weather", "parameters": together(150)}
    tool = {"type": "function", "function": function}
    with pytest.raises(openai.BadRequestError):
        ask(server.client(), tools=[tool], tool_choice="required")
    many = [WEATHER | {"function": {"name": f"tool{i}", "parameters": {}}} for i in range(2000)]
    assert ask(server.client(), tools=many).choices[0].message.content == "Hello, world"


def test_prompts_at_the_limit(server: Server):
    client = server.client()
    around = len("u.!a.")
    for length, cut in ((POSITIONS - 1 - around, 1), (POSITIONS - 11 - around, 11)):
        messages = [{"role": "user", "content": "x" * length}]
        [choice] = ask(client, "short", messages=messages).choices
        assert (len(choice.message.content), choice.finish_reason) == (cut, "length")
    messages = [{"role": "user", "content": "x" * (POSITIONS - around)}]
    with pytest.raises(openai.BadRequestError, match=f"has {POSITIONS} tokens"):
        ask(client, "short", messages=messages)


CHAT, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SURROGATE, NUMBERS = '"\\ud800"', ("NaN", "-Infinity", "1e400")
BODIES = {
    CHAT: [
        '{"model": "world", "messages": [{"role": "user", "content": %s}]}',
        '{"model": "world", "messages": [{"role": "user", "content": "a"}], "user": %s}',
    ],
    TEXTS: ['{"model": "world", "prompt": %s}', '{"model": %s, "prompt": "a."}'],
    RESPONSES: [
        '{"model": "world", "input": "a", "instructions": %s}',
        '{"model": "world", "input": "a", "metadata": {"a": %s}}',
        '{"model": "world", "input": "a", "stream": true, "tool_choice": "none", "tools": [%s]}',
    ],
    "/v1/text2text": ['{"model": "t5", "input": %s}'],
    "/v1/embeddings": ['{"model": "unilm", "input": [%s]}'],
}


@pytest.mark.parametrize("path", BODIES)
def test_invalid_json_is_refused_in_every_field(server: Server, path: str):
    with server.http(headers={"content-type": "application/json"}) as http:
        for body in BODIES[path]:
            for value in (SURROGATE, *NUMBERS):
                answer = http.post(path, content=body % value)
                error = answer.json()["error"]
                assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
                assert error["message"].startswith("the body has"), error


def test_bodies_that_take_long_to_read_are_refused_unread(server: Server):
    with server.http(headers={"content-type": "application/json"}) as http:
        for values in ("[1]," * 300_000 + "[1]", "1," * 1_100_000 + "1"):
            answer = http.post(CHAT, content=BODIES[CHAT][0] % f"[{values}]")
            assert answer.status_code == 400
            assert "the body has more than" in answer.json()["error"]["message"]


def test_tools_in_a_response_may_be_nested(server: Server):
    with server.http() as http:
        for depth, status in ((150, 200), (300, 400)):
            tool = {"type": "function", "name": "a", "parameters": nested(depth)}
            asked = {"model": "world", "input": "a", "tools": [tool], "tool_choice": "none"}
            assert http.post(RESPONSES, json=asked).status_code == status


def test_an_upload_of_unknown_length_is_refused_as_it_comes(server: Server):
    sent, whole = 0, 2 << 30

    def parts() -> Iterator[bytes]:
        nonlocal sent
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        while sent < whole:
            sent += 1 << 20
            yield bytes(1 << 20)

    kind = {"content-type": "multipart/form-data; boundary=x"}
    with server.http() as http, contextlib.suppress(httpx.TransportError):
        answer = http.post("/v1/audio/transcriptions", content=parts(), headers=kind)
        assert answer.status_code == 413
        assert "larger than 16 MiB" in answer.json()["error"]["message"]
    assert sent < 64 << 20  # sockets hold some of it


def test_a_server_may_take_shorter_prompts_than_the_model():
    with serving({"world": saying("hi")}, max_prompt=20) as server:
        client = server.client()
        with pytest.raises(openai.BadRequestError, match="this server takes 20") as refused:
            ask(client, messages=[{"role": "user", "content": "x" * 20}])
        assert refused.value.code == "context_length_exceeded"
        for prompt in ("x" * 21, [3] * 21):
            with pytest.raises(openai.BadRequestError, match="this server takes 20"):
                client.completions.create(model="world", prompt=prompt)


def loaded(server: Server) -> dict[str, bool]:
    with server.http() as http:
        models = http.get("/v1/models").json()["data"]
    return {model["id"]: model["loaded"] for model in models}


def said(server: Server, model: str) -> str:
    return ask(server.client(), model).choices[0].message.content


def post(server: Server, path: str, model: str) -> Any:
    with server.http() as http:
        return http.post(f"/v1/models/{path}", json={"model": model})


def test_a_model_is_unloaded_and_the_next_request_loads_it():
    with serving({"one": saying("first"), "two": saying("second")}) as server:
        engine = weakref.ref(server.engines.pop("one"))
        answer = post(server, "unload", "one")
        assert (answer.status_code, answer.json()["loaded"]) == (200, False)
        assert post(server, "unload", "one").status_code == 200
        assert loaded(server) == {"one": False, "two": True}
        gc.collect()
        assert engine() is None
        with server.http() as http:
            assert [each["id"] for each in http.get("/v1/engine").json()["models"]] == ["two"]
            assert http.get("/health").status_code == 200
        assert said(server, "two") == "second"
        assert said(server, "one") == "first"
        assert loaded(server) == {"one": True, "two": True}
        post(server, "unload", "one")
        assert post(server, "load", "one").json()["loaded"] is True
        assert post(server, "load", "one").status_code == 200
        for path in ("load", "unload"):
            assert post(server, path, "three").json()["error"]["code"] == "model_not_found"


@pytest.mark.slow
def test_a_model_is_unloaded_once_its_requests_are_over():
    with serving({"long": saying("ab" * 300)}) as server:
        stream = ask(server.client(), "long", stream=True)
        text = next(stream).choices[0].delta.content or ""
        assert post(server, "unload", "long").json()["loaded"] is False
        assert text + "".join(part.choices[0].delta.content or "" for part in stream) == "ab" * 300
    with serving({"long": saying("ab" * 300)}, drain=0) as server:
        stream = ask(server.client(), "long", stream=True)
        next(stream)
        post(server, "unload", "long")
        with pytest.raises(openai.APIError, match="ended"):
            list(stream)


def test_models_without_requests_are_unloaded():
    with serving({"one": saying("first"), "two": saying("second")}) as server:
        server.models.unload_idle(1e9)
        assert loaded(server) == {"one": True, "two": True}
        assert said(server, "one") == "first"
        server.models.unload_idle(0)  # since the last look "one" had a request
        assert loaded(server) == {"one": True, "two": False}
        server.models.unload_idle(0)
        assert loaded(server) == {"one": False, "two": False}
        assert said(server, "one") == "first"
