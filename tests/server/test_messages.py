"""Anthropic's messages by its official client: texts, streams, tools, errors."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from kit.text_models import saying
from server.serving import Server, serving
from server.test_chat_completions import THOUGHT, TWO, Opening, echo

GREEDY = {"temperature": 0}
HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "name": "weather",
    "description": "of a town",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"type": "string", "enum": ["Nantes", "Rennes"]}},
        "required": ["town"],
        "additionalProperties": False,
    },
}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {
        "world": saying("Hello, world"),
        "echo": saying(echo),
        "caller": saying("Let me see.\n" + TWO),
        "thinks": saying(THOUGHT),
        "open": saying(THOUGHT.removeprefix("<think>\n"), tokenizer=Opening()),
    }
    with serving(models, api_key=("secret",)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0)


def ask(client: anthropic.Anthropic, model: str = "world", **options: Any) -> Any:
    given = {"messages": HELLO, "max_tokens": 100, "extra_body": GREEDY} | options
    return client.messages.create(model=model, **given)


def test_a_message_with_its_usage(client: anthropic.Anthropic):
    answer = ask(client, system="be brief")
    assert [(block.type, block.text) for block in answer.content] == [("text", "Hello, world")]
    assert (answer.role, answer.stop_reason) == ("assistant", "end_turn")
    assert answer.stop_sequence is None
    usage = answer.usage
    read = usage.input_tokens + usage.cache_read_input_tokens
    assert read == len("s.be brief!u.hello!a.")
    assert usage.output_tokens == len("Hello, world")
    counted = client.messages.count_tokens(model="world", messages=HELLO, system="be brief")
    assert counted.input_tokens == read


def test_blocks_are_turns(client: anthropic.Anthropic):
    said = [{"type": "text", "text": "Bonjour"}]
    answer = ask(client, "echo", messages=[{"role": "user", "content": said}])
    assert answer.content[0].text == "Bonjour"


@pytest.mark.parametrize(
    ("options", "text", "reason", "stop"),
    [
        ({"max_tokens": 5}, "Hello", "max_tokens", None),
        ({"stop_sequences": ["wor", ","]}, "Hello", "stop_sequence", ","),
        ({"stop_sequences": ["none"]}, "Hello, world", "end_turn", None),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_why_a_message_ends(client, options, text, reason, stop, streams):
    given = {"model": "world", "messages": HELLO, "max_tokens": 100, "extra_body": GREEDY} | options
    if streams:
        with client.messages.stream(**given) as stream:
            assert "".join(stream.text_stream) == text
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(**given)
    assert answer.content[0].text == text
    assert (answer.stop_reason, answer.stop_sequence) == (reason, stop)


@pytest.mark.parametrize("streams", [False, True])
def test_a_model_calls_tools_and_reads_their_results(client: anthropic.Anthropic, streams: bool):
    given = {"messages": HELLO, "max_tokens": 500, "extra_body": GREEDY, "tools": [WEATHER, NOW]}
    if streams:
        with client.messages.stream(model="caller", **given) as stream:
            kinds = [event.type for event in stream]
            answer = stream.get_final_message()
        assert kinds[0] == "message_start"
        assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    else:
        answer = ask(client, "caller", **given)
    text, weather, now = answer.content
    assert (text.type, answer.stop_reason) == ("text", "tool_use")
    assert (weather.name, weather.input) == ("weather", {"town": "Nantes"})
    assert (now.name, now.input) == ("now", {})
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": f"of {call.name}"}
        for call in (weather, now)
    ]
    turns = [
        *HELLO,
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
        {"role": "user", "content": [*results, {"type": "text", "text": "and so?"}]},
    ]
    again = ask(client, "echo", messages=turns, tools=[WEATHER, NOW])
    assert again.content[0].text == "and so?"


@pytest.mark.parametrize("model", ["thinks", "open"])
@pytest.mark.parametrize("streams", [False, True])
def test_reasoning_is_a_block_where_it_is_wanted(client, model: str, streams: bool):
    given = {"model": model, "messages": HELLO, "max_tokens": 60, "extra_body": GREEDY}
    for budget, blocks in (
        (400, [("thinking", "first this"), ("text", "yes")]),
        (4, [("thinking", "fir" if model == "thinks" else "firs")]),
    ):
        given["thinking"] = {"type": "enabled", "budget_tokens": budget}
        if streams:
            with client.messages.stream(**given) as stream:
                answer = stream.get_final_message()
        else:
            answer = client.messages.create(**given)
        assert [(block.type, getattr(block, block.type)) for block in answer.content] == blocks
    del given["thinking"]
    answer = client.messages.create(**given)
    assert [block.type for block in answer.content] == ["text"]


def test_a_call_can_be_required(client: anthropic.Anthropic):
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    answer = ask(client, "caller", tools=[WEATHER, NOW], tool_choice=choice)
    assert [block.name for block in answer.content if block.type == "tool_use"] == ["weather"]
    assert ask(client, "world", tools=[WEATHER], tool_choice={"type": "none"}).content[0].text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "a"}]}, "role must be user or assistant"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "I"}]}, "last message must be"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "type 'image'"),
        ({"messages": [{"role": "user", "content": [5]}]}, "blocks with a type"),
        ({"messages": [{"role": "user", "content": None}]}, "blocks with a type"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "a"}]},
            "of type 'web_search_20250305' are not supported",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "which is no tool"),
        ({"tools": [WEATHER], "tool_choice": {"type": "some"}}, "of type auto, any, tool"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"system": [{"type": "image"}]}, "blocks of text"),
    ],
    ids=str,
)
def test_a_wrong_request_is_refused_as_anthropic_does(client, options, says):
    with pytest.raises(anthropic.BadRequestError) as error:
        ask(client, **options)
    assert error.value.body["type"] == "error"
    assert error.value.body["error"]["type"] == "invalid_request_error"
    assert says in error.value.body["error"]["message"]


def test_keys_models_and_sizes_are_refused_in_its_form(server: Server, client):
    with pytest.raises(anthropic.NotFoundError) as error:
        ask(client, "gone")
    assert error.value.body["error"]["type"] == "not_found_error"
    wrong = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError) as refused:
        ask(wrong)
    assert refused.value.body["error"]["type"] == "authentication_error"
    bearer = {"authorization": "Bearer secret"}
    body = {"model": "world", "max_tokens": 5, "messages": HELLO}
    assert httpx.post(f"{server.url}/v1/messages", json=body, headers=bearer).status_code == 200
