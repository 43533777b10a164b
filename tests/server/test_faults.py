"""What is meant to break a server: schemas that grow without end, prompts at the limit, floods."""

import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from letters_models import saying
from server.serving import Server, serving
from server.test_chat_completions import HELLO, WEATHER

POSITIONS = 300


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {"world": saying("Hello, world"), "short": saying("ab" * POSITIONS, POSITIONS)}
    with serving(models) as running:
        yield running


def asked(server: Server, schema: dict[str, Any], **options: Any) -> Any:
    shape = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return server.client().chat.completions.create(
        model="world", messages=HELLO, response_format=shape, max_tokens=50, **options
    )


def doubling(depth: int) -> dict[str, Any]:
    """A schema whose expansion has 2 ** depth parts."""
    parts = {f"level{i}": {"allOf": [{"$ref": f"#/$defs/level{i + 1}"}] * 2} for i in range(depth)}
    return {"$defs": parts | {f"level{depth}": {"type": "object"}}, "$ref": "#/$defs/level0"}


def together(count: int) -> dict[str, Any]:
    """A text that must match many patterns at once."""
    patterns = [{"type": "string", "pattern": f"^(a|b{i}|c*d)*x{{{i}}}"} for i in range(count)]
    return {"type": "object", "properties": {"a": {"allOf": patterns}}, "required": ["a"]}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE = {"doubling": doubling(40), "together": together(150), "nested": nested(150)}


@pytest.mark.parametrize("name", HOSTILE)
def test_schemas_of_exponential_size_harm_nobody_else(server: Server, name: str):
    outcomes: list[Any] = []

    def ask() -> None:
        try:
            outcomes.append(asked(server, HOSTILE[name]))
        except openai.APIStatusError as error:
            outcomes.append(error)

    hostile = threading.Thread(target=ask)
    hostile.start()
    for _ in range(5):
        answer = server.client().chat.completions.create(
            model="world", messages=HELLO, temperature=0
        )
        assert answer.choices[0].message.content == "Hello, world"
    hostile.join()
    [outcome] = outcomes
    if isinstance(outcome, openai.APIStatusError):
        assert outcome.status_code == 400
        assert "\n" not in outcome.message


def test_tools_with_such_schemas_are_refused_as_well(server: Server):
    function = {"name": "weather", "parameters": together(150)}
    with pytest.raises(openai.BadRequestError):
        server.client().chat.completions.create(
            model="world",
            messages=HELLO,
            tools=[{"type": "function", "function": function}],
            tool_choice="required",
        )
    many = [WEATHER | {"function": {"name": f"tool{i}", "parameters": {}}} for i in range(2000)]
    answer = server.client().chat.completions.create(
        model="world", messages=HELLO, tools=many, temperature=0
    )
    assert answer.choices[0].message.content == "Hello, world"


def test_prompts_at_the_limit(server: Server):
    client = server.client()
    around = len("u.!a.")
    for length, cut in ((POSITIONS - 1 - around, 1), (POSITIONS - 11 - around, 11)):
        messages = [{"role": "user", "content": "x" * length}]
        [choice] = client.chat.completions.create(
            model="short", messages=messages, temperature=0
        ).choices
        assert (len(choice.message.content), choice.finish_reason) == (cut, "length")
    messages = [{"role": "user", "content": "x" * (POSITIONS - around)}]
    with pytest.raises(openai.BadRequestError, match=f"has {POSITIONS} tokens"):
        client.chat.completions.create(model="short", messages=messages)


def test_a_server_may_take_shorter_prompts_than_the_model():
    with serving({"world": saying("hi")}, max_prompt=20) as server:
        client = server.client()
        with pytest.raises(openai.BadRequestError, match="this server takes 20") as refused:
            client.chat.completions.create(
                model="world", messages=[{"role": "user", "content": "x" * 20}]
            )
        assert refused.value.code == "context_length_exceeded"
        for prompt in ("x" * 21, [3] * 21):
            with pytest.raises(openai.BadRequestError, match="this server takes 20"):
                client.completions.create(model="world", prompt=prompt)
