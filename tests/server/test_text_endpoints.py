"""The other endpoints for texts, by the official client and by plain HTTP."""

import base64
import json
from collections.abc import Iterator

import numpy as np
import openai
import pytest
from pydantic import BaseModel

from engine_models import model
from letters_models import saying
from random_models import SMALL_T5
from random_unilms import ROFORMER
from server.serving import Server, serving
from server.test_chat_completions import CALL, WEATHER, echo

ANSWER = "Hello, world"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {
        "world": saying(ANSWER),
        "echo": saying(echo),
        "caller": saying(CALL),
        "json": saying('{"town": "Nantes"}'),
        "t5": model(SMALL_T5, "native"),
        "unilm": model(ROFORMER, "native"),
    }
    with serving(models) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return server.client()


def test_models_are_listed_with_what_they_are_for(client: openai.OpenAI):
    kinds = {one.id: one.kind for one in client.models.list()}
    assert kinds["world"] == "chat"
    assert kinds["t5"] == kinds["unilm"] == "text2text"
    assert client.models.retrieve("unilm").embeddings is True


def test_completions_of_several_prompts(client: openai.OpenAI):
    answer = client.completions.create(
        model="world", prompt=["a.", "u.hi!a."], temperature=0, max_tokens=100
    )
    assert [(one.index, one.text) for one in answer.choices] == [(0, ANSWER), (1, ANSWER)]
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


@pytest.mark.parametrize("field", [{"echo": True}, {"suffix": "a"}, {"best_of": 3}])
def test_what_completions_do_not_do_is_refused(client: openai.OpenAI, field: dict):
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
    deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
    assert "".join(deltas) == ANSWER
    assert [one.sequence_number for one in events] == list(range(len(events)))
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
    np.testing.assert_array_equal([one.embedding for one in answer.data], expected)
    plain = client.embeddings.create(model="unilm", input=texts, encoding_format="float")
    np.testing.assert_array_equal(np.float32([one.embedding for one in plain.data]), expected)
    raw = client.embeddings.with_raw_response.create(
        model="unilm", input="abc", encoding_format="base64"
    )
    coded = json.loads(raw.content)["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(coded), "<f4"), expected[0], 1e-4)
    assert answer.usage.prompt_tokens > 2
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        client.embeddings.create(model="world", input="a")


def test_text_to_text(server: Server):
    alone = server.engines["t5"].model.generate(["abc", "b a"], beam=3, n=2, max_new_tokens=6)
    with server.http() as http:
        asked = {"model": "t5", "input": ["abc", "b a"], "beam": 3, "n": 2, "max_tokens": 6}
        answer = http.post("/v1/text2text", json=asked).json()
    assert [choice["text"] for choice in answer["choices"]] == [
        text.text for texts in alone for text in texts
    ]
    assert [choice["input_index"] for choice in answer["choices"]] == [0, 0, 1, 1]
    scores = [text.score for texts in alone for text in texts]
    np.testing.assert_allclose([choice["score"] for choice in answer["choices"]], scores, 1e-4)
    assert answer["usage"]["completion_tokens"] == sum(len(t.tokens) for ts in alone for t in ts)


def test_a_chat_of_a_text_to_text_model_answers_the_last_user_message(
    server: Server, client: openai.OpenAI
):
    alone = server.engines["t5"].model.generate("abc", max_new_tokens=6)
    turns = [
        {"role": "system", "content": "ignored"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "abc"},
    ]
    answer = client.chat.completions.create(model="t5", messages=turns, temperature=0, max_tokens=6)
    assert answer.choices[0].message.content == alone.text


def test_models_of_another_kind_say_what_to_use(client: openai.OpenAI, server: Server):
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


def test_metrics_and_status_count_what_was_done(server: Server, client: openai.OpenAI):
    client.chat.completions.create(
        model="world", messages=[{"role": "user", "content": "a"}], temperature=0
    )
    with server.http() as http:
        metrics = http.get("/metrics").text
        [status] = [m for m in http.get("/v1/engine").json()["models"] if m["id"] == "world"]
    assert status["generated_tokens"] >= len(ANSWER)
    assert 'vllm:num_requests_running{model_name="world"} 0.0' in metrics
    assert f'vllm:generation_tokens_total{{model_name="world"}} {status["generated_tokens"]}' in (
        metrics
    )
    assert 'vllm:time_to_first_token_seconds_count{model_name="world"}' in metrics
    assert 'path="/v1/chat/completions",status="200"' in metrics
