"""The event loop goes on whatever is asked: long answers and bodies are made and read beside it."""

import asyncio
import json
import random
import string
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kit.text_models import saying
from kvcast.server.bodies import MOST_VALUES, encoded, parsed, pieces
from server.serving import Server, serving

HELLO = [{"role": "user", "content": "hello"}]
MANY = {"n": 64, "temperature": 0, "logprobs": True, "top_logprobs": 20}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving({"world": saying("hello there, " * 5)}, max_n=64) as running:
        yield running


def anything(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(7 if depth else 4)
    if kind < 4:
        return [None, rng.random(), rng.randrange(-9, 10**9), 'a"é\u2028😀'][kind]
    size = rng.choice([0, 1, 3, 40])
    if kind == 4:
        return {f"{i}é": anything(rng, depth - 1) for i in range(size)}
    return [anything(rng, depth - 1) for _ in range(size)]


@pytest.mark.parametrize("seed", range(6))
def test_pieces_are_the_whole_document_and_no_call_encodes_much(seed: int):
    document = {"a": anything(random.Random(seed), 5), "b": [[1.5] * 900] * 9, "c": [{}] * 700}
    whole = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    parts = list(pieces(document))
    assert "".join(parts) == whole == encoded(document)
    assert max(map(len, parts)) < 20_000 < len(whole)


def test_numbers_that_are_none_are_never_written():
    for depth in (1, 900):
        with pytest.raises(ValueError, match="not JSON compliant"):
            encoded([[1.0] * depth, float("nan")])


LONG = {
    "lists": [[[i] * 100 for i in range(100)] for _ in range(20)],
    "one list": list(range(150_000)),
    "objects": {"a": [{"b": [1.5, {"c": None}]}] * 20_000, "d": string.printable * 100},
    "text": {"prompt": 'a\\"\n' * 300_000},
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_document_is_read_as_json_reads_it(name: str):
    text = json.dumps(LONG[name], indent=1)
    assert parsed(text) == LONG[name]
    for wrong in (text[:-1], text + "]", text.replace(": ", " ", 1), "[" + text + ",]"):
        if wrong != text:
            with pytest.raises(ValueError, match="is not JSON"):
                parsed(wrong)


@contextmanager
def turns(server: Server) -> Iterator[list[float]]:
    """Collect the processor time that the loop's thread takes between its looks at other work.

    It is that of the longest callback, and of those that were ready with it. How long the thread
    waits for a processor, or for others, is no part of it.
    """
    loop = server.loop
    taken: list[float] = []

    async def look() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.001)
            taken.append(time.thread_time() - began)

    watching = asyncio.run_coroutine_threadsafe(look(), loop)
    yield taken
    watching.cancel()


ASKED = {
    "an answer": ("chat/completions", {"messages": HELLO} | MANY),
    "a stream": ("chat/completions", {"messages": HELLO, "stream": True} | MANY),
    "a completion": ("completions", {"prompt": "hello", "n": 64, "temperature": 0, "logprobs": 20}),
    "a text": ("completions", {"prompt": "hello " * 300_000}),
    "a schema": (
        "completions",
        {
            "prompt": "hello",
            "max_tokens": 1,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "schema": {
                        "type": "object",
                        "properties": {f"p{i}": {"type": "integer"} for i in range(2500)},
                    }
                },
            },
        },
    ),
    "a body": ("completions", {"prompt": [[5] * 3000] * 250}),
    "tools": (
        "chat/completions",
        {
            "messages": HELLO,
            "tool_choice": "required",
            "tools": [
                {"type": "function", "function": {"name": f"f{i}", "parameters": {"enum": [0] * 9}}}
                for i in range(4000)
            ],
        },
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_no_turn_of_the_loop_is_long(server: Server, name: str):
    path, body = ASKED[name]
    with turns(server) as taken, server.http() as http:
        answer = http.post(f"/v1/{path}", json={"model": "world", "max_tokens": 80} | body)
    assert answer.status_code in {200, 400}, answer.text
    content = max(answer.content, json.dumps(body).encode(), key=len).removeprefix(b"data: ")
    began = time.thread_time()
    for part in content.split(b"\n\ndata: "):  # as much work, in one go
        if part.startswith(b"{"):
            json.dumps(json.loads(part))
    assert max(taken) < max(0.05, (time.thread_time() - began) / 3)
    assert len(taken) > 10


def test_a_document_with_too_many_values_is_refused_unread():
    with pytest.raises(ValueError, match="more than"):
        parsed("[" + "," * (MOST_VALUES + 1) + "]")
