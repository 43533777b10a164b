"""Chat completions by the official client: messages, streams, tools, formats, errors."""

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from kit.letters import LetterTokenizer
from kit.text_models import saying
from kvcast.chat.tool_calls import HERMES
from server.serving import Server, serving, until

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a town",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "enum": ["Nantes", "Rennes"]}},
            "required": ["town"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
CALL = HERMES.call.replace("NAME", "weather").replace("ARGUMENTS", '{"town": "Nantes"}')
TWO = f"{CALL}\n" + HERMES.call.replace("NAME", "now").replace("ARGUMENTS", "{}")


def echo(prompt: str) -> str:
    return prompt.split("u.")[-1].rstrip("!")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {
        "world": saying("Hello, world"),
        "echo": saying(echo),
        "caller": saying("Let me see.\n" + TWO),
        "ready": saying(CALL),
        "json": saying('{"name": "Ada", "age": 36} and more'),
        "endless": saying("ab" * 900, before_step=lambda: time.sleep(0.005)),
    }
    with serving(models) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return server.client()


def ask(client: openai.OpenAI, model: str = "world", **options: Any) -> Any:
    given = {"messages": HELLO, "temperature": 0} | options
    return client.chat.completions.create(model=model, **given)


def deltas(client: openai.OpenAI, **options: Any) -> list[Any]:
    return list(ask(client, stream=True, **options))


def test_a_message_with_its_usage(client: openai.OpenAI):
    answer = ask(client)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello, world")
    assert choice.finish_reason == "stop"
    assert answer.usage.prompt_tokens == len("u.hello!a.")
    assert answer.usage.completion_tokens == len("Hello, world")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_tokens_from_the_prefix_cache_are_counted(client: openai.OpenAI):
    messages = [{"role": "system", "content": "be brief"}, *HELLO]
    ask(client, "echo", messages=messages)
    later = ask(client, "echo", messages=messages)
    assert later.usage.prompt_tokens_details.cached_tokens == later.usage.prompt_tokens - 1


def test_a_stream_has_the_same_text(client: openai.OpenAI):
    chunks = deltas(client, model="world", stream_options={"include_usage": True})
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello, world"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


FUNCTION = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


@pytest.mark.parametrize(
    "turns",
    [
        [{"role": "assistant", "content": "hi"}],
        [
            {"role": "assistant", "tool_calls": [FUNCTION]},
            {"role": "tool", "tool_call_id": "1", "content": "rain"},
        ],
    ],
    ids=["answer", "a tool's result"],
)
def test_conversations_of_several_turns_and_parts(client: openai.OpenAI, turns: list[Any]):
    last = {"role": "user", "content": [{"type": "text", "text": "third"}]}
    answer = ask(client, "echo", messages=[*HELLO, *turns, last], tools=[WEATHER])
    assert answer.choices[0].message.content == "third"


def test_limits_of_length_and_stop_strings(client: openai.OpenAI):
    for name in ("max_tokens", "max_completion_tokens"):
        cut = ask(client, **{name: 5}).choices[0]
        assert (cut.message.content, cut.finish_reason) == ("Hello", "length")
    stopped = ask(client, stop=[", ", "x"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("Hello", "stop")


@pytest.mark.parametrize("temperature", [0, 0.01])
def test_several_texts(client: openai.OpenAI, temperature: float):
    asked = {"n": 3, "temperature": temperature}
    answer = ask(client, **asked)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {"Hello, world"}
    assert answer.usage.completion_tokens == 3 * len("Hello, world")
    streamed = {0: "", 1: "", 2: ""}
    for chunk in deltas(client, **asked):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert set(streamed.values()) == {"Hello, world"}


def test_seeds_and_biases_choose_tokens(client: openai.OpenAI):
    flat = {str(token): 30.0 for token in range(3, 30)}
    asked = {"temperature": 2, "max_tokens": 8, "logit_bias": flat}
    answers = [ask(client, seed=seed, **asked) for seed in (1, 1, 2, -1)]
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[0] == texts[1]
    assert len(set(texts)) >= 2


def test_logprobs_and_top_logprobs_of_tokens(client: openai.OpenAI):
    answer = ask(client, max_tokens=3, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert [entry.token for entry in content] == list("Hel")
    assert all(entry.top_logprobs[0].token == entry.token for entry in content)
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    assert all(-1e-6 < entry.logprob <= 0 for entry in content)
    assert bytes(content[0].bytes) == b"H"
    chunks = deltas(client, max_tokens=3, logprobs=True)
    logprobs = [c.choices[0].logprobs for c in chunks if c.choices]
    assert "".join(e.token for each in logprobs if each for e in each.content) == "Hel"


def test_the_model_decides_to_call_tools(client: openai.OpenAI):
    [choice] = ask(client, "caller", tools=[WEATHER, NOW]).choices
    assert choice.message.content == "Let me see."
    calls = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["weather", "now"]
    assert json.loads(calls[0].function.arguments) == {"town": "Nantes"}
    assert choice.finish_reason == "tool_calls"
    assert len({call.id for call in calls}) == 2
    [choice] = ask(client, "caller", tools=[WEATHER, NOW], parallel_tool_calls=False).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["weather"]


def test_calls_in_a_stream(client: openai.OpenAI):
    chunks = deltas(client, model="caller", tools=[WEATHER, NOW])
    parts = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(part.content or "" for part in parts) == "Let me see."
    calls = [call for part in parts for call in part.tool_calls or ()]
    assert [(call.index, call.function.name) for call in calls] == [(0, "weather"), (1, "now")]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_can_be_demanded_of_a_model_that_would_not(client: openai.OpenAI, choice: Any):
    answer = ask(client, tools=[WEATHER], tool_choice=choice)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["town"] in {"Nantes", "Rennes"}


def test_a_tool_whose_schema_no_text_can_be_held_to_cannot_be_demanded(client: openai.OpenAI):
    function = {"name": "weather", "parameters": {"type": "object", "minProperties": 3}}
    tool = {"type": "function", "function": function}
    assert ask(client, tools=[tool]).choices[0].message.content == "Hello, world"
    with pytest.raises(openai.BadRequestError, match="minProperties 3") as refused:
        ask(client, tools=[tool], tool_choice="required")
    assert refused.value.param == "tools"
    asked = {"input": "hello", "tools": [{"type": "function", **function}]}
    with pytest.raises(openai.BadRequestError, match="minProperties 3"):
        client.responses.create(model="world", tool_choice="required", **asked)


def test_with_tool_choice_none_a_call_is_content(client: openai.OpenAI):
    answer = ask(client, "caller", tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.content == "Let me see.\n" + TWO
    assert answer.choices[0].message.tool_calls is None


class Person(BaseModel):
    name: str
    age: int


def test_parse_returns_the_schemas_object(client: openai.OpenAI):
    answer = client.chat.completions.parse(
        model="json", messages=HELLO, response_format=Person, temperature=0
    )
    assert answer.choices[0].message.parsed == Person(name="Ada", age=36)


@pytest.mark.parametrize("form", ["json_schema", "json_object"])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_answer_has_a_format_where_no_tool_is_called(client: openai.OpenAI, form: str, api: str):
    schema = {"name": "person", "schema": Person.model_json_schema()}
    for model in ("json", "ready"):
        if api == "chat":
            shape = {"type": form} | ({"json_schema": schema} if form == "json_schema" else {})
            [choice] = ask(client, model, tools=[WEATHER], response_format=shape).choices
            text = choice.message.content
            calls = [call.function.name for call in choice.message.tool_calls or ()]
        else:
            shape = {"type": form} | (schema if form == "json_schema" else {})
            tool = {"type": "function", **WEATHER["function"], "strict": True}
            answer = client.responses.create(
                model=model, input="hello", tools=[tool], temperature=0, text={"format": shape}
            )
            text = answer.output_text or None
            calls = [item.name for item in answer.output if item.type == "function_call"]
        if model == "json":
            assert (json.loads(text), calls) == ({"name": "Ada", "age": 36}, [])
        else:
            assert (text, calls) == (None, ["weather"])


def test_json_objects_whatever_the_model_would_say(client: openai.OpenAI):
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=200)
    text = answer.choices[0].message.content
    assert text.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_a_regular_expression(client: openai.OpenAI):
    answer = ask(client, extra_body={"regex": "[0-9]{4}"})
    assert re.fullmatch("[0-9]{4}", answer.choices[0].message.content)


THOUGHT = "<think>\nfirst this\n</think>\n\nyes"


class Opening(LetterTokenizer):
    """Its template begins the reasoning."""

    answer = "a.<think>\n"


def test_reasoning_is_apart_from_the_answer():
    begun = THOUGHT.removeprefix("<think>\n")
    models = {"closed": saying(THOUGHT), "open": saying(begun, tokenizer=Opening())}
    with serving(models) as server:
        client = server.client()

        def said(model: str, **fields: Any) -> tuple[Any, Any]:
            message = ask(client, model, extra_body=fields).choices[0].message
            whole = getattr(message, "reasoning_content", None), message.content
            parts = [
                chunk.choices[0].delta for chunk in deltas(client, model=model, extra_body=fields)
            ]
            thoughts = [getattr(part, "reasoning_content", None) or "" for part in parts]
            texts = "".join(part.content or "" for part in parts)
            assert ("".join(thoughts) or None, texts) == whole
            return whole

        for model in models:
            assert said(model) == ("first this", "yes")
            # What follows is no more what this model would have said, so it ends.
            assert said(model, reasoning_budget=4) == ("fir" if model == "closed" else "firs", "")
            assert said(model, reasoning_budget=0) == (None, "")
            assert said(model, reasoning_budget=400) == ("first this", "yes")
        assert said("closed", reasoning_format="none") == (None, THOUGHT)
        assert said("open", reasoning_format="none") == (None, begun)
    with serving(models, reasoning_budget=4) as server:
        [choice] = ask(server.client(), "open").choices
        assert choice.message.reasoning_content == "firs"


REFUSED = {
    "temperature": {"temperature": 3},
    "n": {"n": 0},
    "messages": {"messages": []},
    "message 1": {"messages": [{"role": "king", "content": "a"}]},
    "stop": {"stop": ["x"] * 10_000},
    "top_logprobs": {"logprobs": True, "top_logprobs": 21},
    "top_logprobs needs": {"top_logprobs": 2},
    "tool_choice": {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {}}},
    "tool_choice names": {"tools": [NOW], "tool_choice": WEATHER},
    "tool_choice needs": {"tool_choice": "required"},
    "a tool must be": {"tools": [{"function": {"name": 5}}], "tool_choice": "required"},
    "tool": {"tools": [{"type": "function"}]},
    "regex with tools": {"tools": [NOW], "extra_body": {"regex": "a"}},
    "schema": {"response_format": {"type": "json_schema"}},
    "regular expression|regex": {"extra_body": {"regex": "["}},
    "logit_bias": {"logit_bias": {"x": 1}},
    "no token|token 99999": {"logit_bias": {"99999": 1}},
    "the prompt has": {"messages": [{"role": "user", "content": "a" * 5000}]},
    "is_not|type": {"response_format": {"type": "xml"}},
}


@pytest.mark.parametrize("said", REFUSED)
def test_an_invalid_request_is_refused_in_one_line(client: openai.OpenAI, said: str):
    asked = {"model": "world", "messages": HELLO} | REFUSED[said]
    with pytest.raises(openai.BadRequestError, match=said.replace("is_not|", "")) as refused:
        client.chat.completions.create(**asked)
    assert refused.value.type == "invalid_request_error"
    assert "\n" not in refused.value.message


def test_errors_are_the_clients_exceptions(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError, match="does not exist") as missing:
        client.chat.completions.create(model="nope", messages=HELLO)
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")
    with pytest.raises(openai.NotFoundError, match=r"--alias gpt-4o-mini=\w+") as usual:
        client.chat.completions.create(model="gpt-4o-mini", messages=HELLO)
    own = usual.value.message.rpartition("=")[2]
    assert client.models.retrieve(own.rstrip("'}")).id == own


def test_a_client_that_leaves_frees_its_row(server: Server, client: openai.OpenAI):
    def cancelled() -> int:
        return server.status("endless").finished.get("cancelled", 0)

    before = cancelled()
    stream = ask(client, "endless", stream=True)
    next(iter(stream))
    assert server.status("endless").running == 1
    stream.close()
    until(lambda: cancelled() == before + 1)
    assert server.status("endless").busy == []
    quick = server.client(timeout=1)  # the answer takes 9 s

    def gives_up() -> bool:
        with pytest.raises(openai.APITimeoutError):
            ask(quick, "endless")
        return cancelled() > before + 1

    until(gives_up)  # on a busy machine it may give up before it runs
    until(lambda: server.status("endless").running == 0)


def test_beyond_the_queue_clients_get_429():
    gate = threading.Semaphore(0)
    model = saying("hi", before_step=lambda: gate.acquire(timeout=30))
    with serving({"slow": model}, rows=1, queue=1) as server:
        client = server.client()
        answers: list[Any] = []
        threads = [
            threading.Thread(target=lambda: answers.append(ask(client, "slow"))) for _ in range(2)
        ]
        for number, thread in enumerate(threads, start=1):
            thread.start()
            until(lambda n=number: sum(vars(server.status("slow"))[x] for x in WAITS) == n)
        with pytest.raises(openai.RateLimitError, match="wait already") as full:
            ask(client, "slow")
        assert full.value.response.headers["retry-after"] == "1"
        gate.release(10_000)
        for thread in threads:
            thread.join()
        assert [answer.choices[0].message.content for answer in answers] == ["hi", "hi"]
        # The client's own retries get through once there is room.
        patient = server.client(max_retries=5)
        assert ask(patient, "slow").choices[0].message.content == "hi"


WAITS = ("running", "waiting")


def test_requests_end_at_their_deadline():
    gate = threading.Semaphore(5)
    model = saying("a" * 500, before_step=lambda: gate.acquire(timeout=0.05))
    with serving({"slow": model}, timeout=0.5) as server:
        client = server.client()
        with pytest.raises(openai.InternalServerError, match="deadline") as late:
            ask(client, "slow")
        assert late.value.status_code == 504
        stream = ask(client, "slow", stream=True)
        with pytest.raises(openai.APIError, match="deadline"):
            list(stream)


def test_a_request_that_goes_wrong_is_told_the_right_way(server: Server):
    asked = {"model": "world", "messages": [{"role": "user", "content": "hi"}]}
    with server.http() as http:

        def told(path: str, status: int, **request: Any) -> str:
            answer = http.post(path, **request)
            assert answer.status_code == status
            return answer.json()["error"]["message"]

        ends = "the base URL of clients ends in /v1"
        assert ends in told("/chat/completions", 404, json=asked)
        assert "not Ollama's" in told("/api/chat", 404, json=asked)
        assert "did you mean /v1/chat/completions?" in told("/v1/chat/completion", 404, json=asked)
        plain = {"content": json.dumps(asked), "headers": {"content-type": "text/plain"}}
        assert "content-type: application/json" in told("/v1/chat/completions", 400, **plain)
        misspelt = asked | {"model": "World:latest"}
        assert "did you mean world?" in told("/v1/chat/completions", 404, json=misspelt)
        unshaped = asked | {"response_format": {"type": "json_schema", "schema": {}}}
        assert '{"json_schema": {"name"' in told("/v1/chat/completions", 400, json=unshaped)
