"""The other endpoints for texts, by the official client and by plain HTTP."""

import base64
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
from pydantic import BaseModel

from kit.dimensions import MARIAN, ROFORMER, SMALL_T5
from kit.letters import LetterTokenizer
from kit.text_models import model, saying
from kvcast.server.model_registry import Served, with_usual_names
from kvcast.server.prompts import keywords
from kvcast.server.request_models import CompletionRequest
from kvcast.text.params import GenerationDefaults
from kvcast.tokenizers.languages import Languages
from server.serving import Server, serving
from server.test_chat_completions import CALL, WEATHER, ask, echo
from text.test_generate import text_model

ANSWER = "Hello, world"


def translator() -> Any:
    marian = model(MARIAN, "native")
    marian.tokenizer.languages = Languages(tokens={"a_A": 2, "b_B": 4}, place="first")
    marian.tokenizer.translates = True
    return marian


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {
        "world": saying(ANSWER),
        "accents": saying("a<>b", tokenizer=LetterTokenizer({"<": b"\xc3", ">": b"\xa9"})),
        "echo": saying(echo),
        "caller": saying(CALL),
        "json": saying('{"town": "Nantes"}'),
        "t5": model(SMALL_T5, "native"),
        "marian": translator(),
        "unilm": model(ROFORMER, "native"),
    }
    with serving(models, queue=100) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return server.client()


def test_models_are_listed_with_their_kinds(client: openai.OpenAI):
    kinds = {model.id: model.kind for model in client.models.list()}
    assert kinds["world"] == "chat"
    assert kinds["t5"] == kinds["unilm"] == "text2text"
    assert client.models.retrieve("unilm").embeddings is True


def test_completions_of_several_prompts(client: openai.OpenAI):
    answer = client.completions.create(
        model="world", prompt=["a.", "u.hi!a."], temperature=0, max_tokens=100
    )
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, ANSWER), (1, ANSWER)]
    assert answer.usage.prompt_tokens == 2 + 7
    tokens = [3, 3, 3]
    assert client.completions.create(model="world", prompt=tokens).usage.prompt_tokens == 3


def test_a_stream_of_a_completion_with_logprobs(client: openai.OpenAI):
    asked = {"model": "world", "prompt": "a.", "temperature": 0, "max_tokens": 5, "logprobs": 2}
    whole = client.completions.create(**asked).choices[0]
    chunks = list(client.completions.create(**asked, stream=True))
    parts = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(part.text for part in parts) == whole.text == "Hello"
    assert whole.logprobs.tokens == list("Hello")
    assert whole.logprobs.text_offset == [0, 1, 2, 3, 4]
    assert [t for p in parts for t in p.logprobs.tokens] == whole.logprobs.tokens
    assert [o for p in parts for o in p.logprobs.text_offset] == whole.logprobs.text_offset
    assert parts[-1].finish_reason == "length"


def test_partial_characters_are_tokens_of_bytes(client: openai.OpenAI):
    asked = {"model": "accents", "prompt": "a.", "temperature": 0, "logprobs": 1}
    whole = client.completions.create(**asked).choices[0]
    assert whole.text == "aéb"
    assert whole.logprobs.tokens == ["a", r"bytes:\xc3", r"bytes:\xa9", "b"]
    assert whole.logprobs.text_offset == [0, 1, 1, 2]
    assert whole.logprobs.top_logprobs[1].keys() == {r"bytes:\xc3"}
    parts = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(part.text for part in parts) == whole.text
    assert [t for part in parts for t in part.logprobs.tokens] == whole.logprobs.tokens


@pytest.mark.parametrize("field", [{"echo": True}, {"suffix": "a"}, {"best_of": 3}])
def test_unsupported_fields_of_completions_are_refused(client: openai.OpenAI, field: dict):
    with pytest.raises(openai.BadRequestError, match="is not supported"):
        client.completions.create(model="world", prompt="a.", **field)


def test_responses(client: openai.OpenAI):
    answer = client.responses.create(
        model="echo", instructions="be brief", input="so it is", temperature=0
    )
    assert answer.output_text == "so it is"
    assert (answer.status, answer.store) == ("completed", False)
    assert answer.usage.output_tokens == len("so it is")
    turns = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "second"}]},
    ]
    assert client.responses.create(model="echo", input=turns, temperature=0).output_text == "second"


def test_a_stream_of_a_response(client: openai.OpenAI):
    with client.responses.stream(model="world", input="a", temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == ANSWER
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == ANSWER
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"


def test_a_response_that_is_cut_is_incomplete(client: openai.OpenAI):
    cut = client.responses.create(model="world", input="a", temperature=0, max_output_tokens=3)
    assert (cut.status, cut.output_text) == ("incomplete", "Hel")
    assert cut.incomplete_details.reason == "max_output_tokens"


class Place(BaseModel):
    town: str


def test_a_response_of_a_schema(client: openai.OpenAI):
    answer = client.responses.parse(model="json", input="a", text_format=Place, temperature=0)
    assert answer.output_parsed == Place(town="Nantes")


def test_a_response_that_calls_a_tool(client: openai.OpenAI):
    tool = {"type": "function", **WEATHER["function"], "strict": True}
    asked = {"model": "caller", "input": "a", "tools": [tool], "temperature": 0}
    [item] = client.responses.create(**asked).output
    assert (item.type, item.name) == ("function_call", "weather")
    assert json.loads(item.arguments) == {"town": "Nantes"}
    events = list(client.responses.create(**asked, stream=True))
    [done] = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert json.loads(done.arguments) == {"town": "Nantes"}
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
    user = {"role": "user", "content": "and so"}
    later = client.responses.create(
        model="echo", input=[item.model_dump(), result, user], temperature=0
    )
    assert later.output_text == "and so"


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_nothing_is_stored(client: openai.OpenAI, field: str):
    with pytest.raises(openai.BadRequestError, match="nothing is stored"):
        client.responses.create(model="echo", input="a", **{field: "resp_1"})


def test_embeddings_are_the_models(server: Server, client: openai.OpenAI):
    texts = ["abc", "a b"]
    expected = server.engines["unilm"].model.embed(texts)
    answer = client.embeddings.create(model="unilm", input=texts)
    np.testing.assert_array_equal([row.embedding for row in answer.data], expected)
    plain = client.embeddings.create(model="unilm", input=texts, encoding_format="float")
    np.testing.assert_array_equal(np.float32([row.embedding for row in plain.data]), expected)
    raw = client.embeddings.with_raw_response.create(
        model="unilm", input="abc", encoding_format="base64"
    )
    coded = json.loads(raw.content)["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(coded), "<f4"), expected[0], 1e-4)
    assert answer.usage.prompt_tokens > 2
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        client.embeddings.create(model="world", input="a")


def test_texts_to_embed_are_measured_before_any_is_read(server, monkeypatch):
    unilm = server.engines["unilm"].model
    most = unilm.dimensions.max_positions
    encoded: list[str] = []
    monkeypatch.setattr(unilm, "source", lambda text, _: encoded.append(text))
    asked = {"abc": "a b " * 500_000, "texts": ["abc"] * 2047 + ["ab " * 5_000]}
    with server.http() as http:
        for given in asked.values():
            answer = http.post("/v1/embeddings", json={"model": "unilm", "input": given})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["code"]) == (400, "input", LENGTH)
            assert f"more than the {most} tokens" in error["message"]
        assert not encoded
        ids = {"model": "unilm", "input": [[5] * (most + 1)]}
        message = http.post("/v1/embeddings", json=ids).json()["error"]["message"]
        assert f"has {most + 1} tokens" in message
        monkeypatch.undo()
        whole = {"model": "unilm", "input": [[5] * most, [7]]}
        assert http.post("/v1/embeddings", json=whole).status_code == 200


def test_text_to_text(server: Server):
    alone = server.engines["t5"].model.generate(["abc", "b a"], beam=3, n=2, max_new_tokens=6)
    with server.http() as http:
        asked = {"model": "t5", "input": ["abc", "b a"], "beam": 3, "n": 2, "max_tokens": 6}
        answer = http.post("/v1/text2text", json=asked).json()
    texts = [text for several in alone for text in several]
    assert [choice["text"] for choice in answer["choices"]] == [text.text for text in texts]
    assert [choice["input_index"] for choice in answer["choices"]] == [0, 0, 1, 1]
    scores = [text.score for text in texts]
    np.testing.assert_allclose([choice["score"] for choice in answer["choices"]], scores, 1e-4)
    assert answer["usage"]["completion_tokens"] == sum(len(text.tokens) for text in texts)


@pytest.mark.parametrize("more", [{}, {"beam": 2}], ids=["greedy", "beams"])
def test_a_stream_of_text_to_text(server: Server, more: dict[str, int]):
    asked = {"model": "t5", "input": "abc", "max_tokens": 6, **more}
    with server.http() as http:
        whole = http.post("/v1/text2text", json=asked).json()
        answer = http.post("/v1/text2text", json=asked | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *lines, last = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    events = [json.loads(line) for line in lines]
    assert last == "[DONE]"
    choices = [choice for event in events for choice in event["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert (events[-1]["choices"], events[-1]["usage"]) == ([], whole["usage"])


def test_a_stream_of_a_long_source_is_one_text(server: Server):
    long = "how are you? and you? " * 4
    languages = {"source_language": "b", "target_language": "a"}
    asked = {"model": "marian", "input": long, "max_tokens": 6, **languages}
    with server.http() as http:
        whole = http.post("/v1/text2text", json=asked).json()["choices"][0]["text"]
        answer = http.post("/v1/text2text", json=asked | {"stream": True}).text
    lines = [line.removeprefix("data: ") for line in answer.split("\n\n") if line][:-1]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    assert {choice["index"] for choice in choices} == {0}
    assert "".join(choice["text"] for choice in choices) == whole


def test_translations_have_languages_and_long_ones_are_split(server: Server):
    languages = {"source_language": "b", "target_language": "a"}
    long = "how are you? and you? " * 4
    assert len(long) > MARIAN.source_positions
    alone = server.engines["marian"].model.generate(["abc", long], max_new_tokens=6, **languages)
    with server.http() as http:
        asked = {"model": "marian", "input": ["abc", long], "max_tokens": 6, **languages}
        answer = http.post("/v1/text2text", json=asked).json()
        refused = http.post("/v1/text2text", json=asked | {"target_language": "c"})
        other = http.post("/v1/text2text", json=asked | {"model": "t5"})
    assert [choice["text"] for choice in answer["choices"]] == [text.text for text in alone]
    assert alone[0].tokens[0] == 2
    assert (refused.status_code, other.status_code) == (400, 400)
    assert "does not support language 'c': it has" in refused.json()["error"]["message"]
    assert "does not translate" in other.json()["error"]["message"]


def test_a_chat_of_a_text_to_text_model_answers_the_last_user_message(server, client):
    alone = server.engines["t5"].model.generate("abc", max_new_tokens=6)
    turns = [
        {"role": "system", "content": "ignored"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "abc"},
    ]
    answer = ask(client, "t5", messages=turns, max_tokens=6)
    assert answer.choices[0].message.content == alone.text


def test_completions_of_a_form(client: openai.OpenAI):
    asked = {"model": "json", "prompt": "a.", "temperature": 0, "max_tokens": 100}
    town = {"type": "object", "properties": {"town": {"const": "Nantes"}}, "required": ["town"]}
    shape = {"type": "json_schema", "json_schema": {"name": "town", "schema": town}}
    for given in ({"response_format": shape}, {"response_format": {"type": "json_object"}}):
        text = client.completions.create(**asked, extra_body=given).choices[0].text
        assert json.loads(text) == {"town": "Nantes"}
    held = client.completions.create(**asked, extra_body={"regex": "[0-9]{3}"}).choices[0].text
    assert len(held) == 3
    assert held.isdecimal()


def test_several_completions_of_several_prompts(client: openai.OpenAI):
    asked = {"model": "world", "temperature": 0, "n": 3, "max_tokens": 50}
    several = client.completions.create(**asked, prompt=["a.", "u.b!a."])
    assert [(choice.index, choice.text) for choice in several.choices] == [
        (i, ANSWER) for i in range(6)
    ]
    parts = client.completions.create(**asked, prompt="a.", stream=True)
    assert {choice.index for part in parts for choice in part.choices} == {0, 1, 2}


@pytest.mark.parametrize(
    ("asked", "temperature"), [({}, 0.6), ({"temperature": 1.2}, 1.2), ({"temperature": 0}, 0)]
)
def test_a_models_own_values_come_before_openais(asked: dict[str, Any], temperature: float):
    model = text_model()
    model.recommend(GenerationDefaults({"temperature": 0.6, "repetition_penalty": 1.1}))
    body = CompletionRequest(model="m", prompt="a", **asked)
    options = keywords(body, Served(name="m", engine=SimpleNamespace(model=model), kind="chat"), 16)
    assert (options["temperature"], options["repetition_penalty"]) == (temperature, 1.1)


def test_a_ready_prompt_counts_its_control_tokens(client: openai.OpenAI):
    asked = {"model": "world", "prompt": "<tool_call>a", "max_tokens": 1}
    more = ({}, {"add_special_tokens": False}, {"add_special_tokens": True})
    counts = [client.completions.create(**asked, extra_body=body).usage for body in more]
    assert [usage.prompt_tokens for usage in counts] == [12, 12, 2]


def test_a_response_with_logprobs(client: openai.OpenAI):
    asked = {"model": "world", "input": "a", "temperature": 0}
    for given in ({"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}):
        [part] = client.responses.create(**asked, **given).output[0].content
        assert [token.token for token in part.logprobs] == list(ANSWER)
        tops = {len(token.top_logprobs) for token in part.logprobs}
        assert tops == {given.get("top_logprobs", 0)}
        events = list(client.responses.create(**asked, **given, stream=True))
        told = [e.logprobs for e in events if e.type == "response.output_text.delta"]
        assert [token.token for some in told for token in some] == list(ANSWER)
        [done] = [e for e in events if e.type == "response.output_text.done"]
        assert [token.token for token in done.logprobs] == list(ANSWER)
        assert events[-1].response.output[0].content[0].logprobs == part.logprobs
    [plain] = client.responses.create(**asked).output[0].content
    assert plain.logprobs == []
    with pytest.raises(openai.BadRequestError, match="file_search_call") as refused:
        client.responses.create(**asked, include=["file_search_call.results"])
    assert refused.value.param == "include"


TOOLS = {"tools": [WEATHER]}
CHAT = {"messages": [{"role": "user", "content": "a"}]}
LONG = {"messages": [{"role": "user", "content": "a" * 3000}]}
HUGE = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 50_000}]}]}
STREAM = {"model": "t5", "stream": True}
MANY = dict.fromkeys("abcdefghijklmnopqrst", "")
LENGTH = "context_length_exceeded"
MISTAKES: dict[str, tuple[str, dict[str, Any], str | None, str]] = {
    "stops": ("chat/completions", CHAT | {"stop": ["a"] * 17}, "stop", "at most 16"),
    "a stop": ("chat/completions", CHAT | {"stop": ["a", 1]}, "stop.1", "valid string"),
    "no stop": ("chat/completions", CHAT | {"stop": 1}, "stop", "text, or a list"),
    "sources": ("text2text", {"model": "t5", "input": ["a"] * 257}, "input", "at most 256"),
    "a source": ("text2text", {"model": "t5", "input": ["a", ""]}, "input.1", "at least 1"),
    "a stream": ("text2text", STREAM | {"input": ["a", "b"]}, "stream", "one source"),
    "input": ("responses", {"input": []}, "input", "at least 1 item"),
    "items": ("responses", {"input": ["a"]}, "input.0", "valid dictionary"),
    "a token": ("completions", {"prompt": [1, "a"]}, "prompt.1", "valid integer"),
    "tokens": ("completions", {"prompt": [[1], "a"]}, "prompt.1", "valid list"),
    "prompts": ("completions", {"prompt": [[1]] * 257}, "prompt", "at most 256"),
    "messages": ("chat/completions", {"messages": [{}] * 5000}, "messages", "at most 4096"),
    "a bias": ("chat/completions", CHAT | {"logit_bias": {"a": 1}}, "logit_bias.a", "match"),
    "top_k": ("completions", {"prompt": "a", "top_k": 0}, "top_k", "or equal to 1"),
    "metadata": ("responses", {"input": "a", "metadata": MANY}, "metadata", "at most 16"),
    "tools": (
        "chat/completions",
        CHAT | TOOLS | {"model": "t5"},
        "tools",
        "does not support tools",
    ),
    "texts": ("chat/completions", CHAT | {"n": 5}, "n", "takes 4 at most"),
    "best of": ("completions", {"prompt": "a", "best_of": 5}, "best_of", "takes 4 at most"),
    "more than ever wait": ("completions", {"prompt": ["a."] * 200}, None, "takes 104 at"),
}
TOO_LONG = {
    "a chat": ("chat/completions", LONG, "tokens and the model takes 1999"),
    "a prompt": ("completions", {"prompt": "a" * 3000}, "has 3000 tokens"),
    "tokens": ("completions", {"prompt": [5] * 3000}, "has 3000 tokens"),
    "a huge prompt": ("completions", {"prompt": "a" * 50_000}, "more than the 1999"),
    "a huge message": ("chat/completions", HUGE, "more than the 1999"),
}


def refused(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with server.http() as http:
        answer = http.post(f"/v1/{path}", json={"model": "world"} | body)
    assert answer.status_code == 400
    return answer.json()["error"]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_with_its_field(server: Server, name: str):
    path, body, param, said = MISTAKES[name]
    error = refused(server, path, body)
    assert (error["param"], error["code"]) == (param, None), error
    assert said in error["message"]


@pytest.mark.parametrize("name", TOO_LONG)
def test_too_long_prompts_have_an_error_code(server: Server, name: str):
    path, body, said = TOO_LONG[name]
    error = refused(server, path, body)
    assert (error["param"], error["code"]) == (None, LENGTH), error
    assert said in error["message"]


def test_a_prompt_is_encoded_once_and_a_huge_one_never(monkeypatch: pytest.MonkeyPatch):
    encoded: list[int] = []

    def encode(self: LetterTokenizer, text: str) -> list[int]:
        encoded.append(len(text))
        return plain(self, text)

    plain = LetterTokenizer.encode
    with serving({"world": saying(ANSWER)}) as server, server.http() as http:
        monkeypatch.setattr(LetterTokenizer, "encode", encode)
        for length in (7, 50_000):
            http.post("/v1/completions", json={"model": "world", "prompt": "a" * length})
    assert encoded == [7]


def test_models_of_another_kind_name_the_right_endpoint(client: openai.OpenAI, server: Server):
    with server.http() as http:
        answer = http.post("/v1/text2text", json={"model": "world", "input": "a"})
        assert answer.status_code == 400
        assert "/v1/chat/completions" in answer.json()["error"]["message"]


def test_documentation_needs_nothing_from_elsewhere(server: Server):
    with server.http() as http:
        page = http.get("/docs").text
        assert "https://" not in page.replace("https://github.com", "")
        for path in ("swagger-ui-bundle.js", "swagger-ui.css"):
            assert http.get(f"/static-offline-docs/{path}").status_code == 200
        paths = http.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/audio/transcriptions", "/v1/text2text"} <= set(paths)


def test_metrics_and_status_count_requests_and_tokens(server: Server, client: openai.OpenAI):
    ask(client)
    with server.http() as http:
        metrics = http.get("/metrics").text
        [status] = [m for m in http.get("/v1/engine").json()["models"] if m["id"] == "world"]
    assert status["generated_tokens"] >= len(ANSWER)
    assert 'vllm:num_requests_running{model_name="world"} 0.0' in metrics
    total = f'vllm:generation_tokens_total{{model_name="world"}} {status["generated_tokens"]}'
    assert total in metrics
    assert 'vllm:time_to_first_token_seconds_count{model_name="world"}' in metrics
    assert 'path="/v1/chat/completions",status="200"' in metrics


def test_the_first_model_of_a_kind_gets_the_usual_names_that_are_free():
    engines = [SimpleNamespace(model=SimpleNamespace()) for _ in range(4)]
    own = [("a", "chat"), ("b", "chat"), ("whisper-1", "speech"), ("c", "speech")]
    served = [
        Served(name=name, engine=engine, kind=kind)
        for engine, (name, kind) in zip(engines, own, strict=True)
    ]
    named = {each.name: each.engine for each in with_usual_names(served)}
    assert named["gpt-4o-mini"] is named["gpt-3.5-turbo"] is named["a"] is engines[0]
    assert named["whisper-1"] is named["gpt-4o-transcribe"] is engines[2]
    assert named["c"] is engines[3]
