"""`/v1/embeddings` of text encoders and `/v1/rerank` of cross-encoders: what the models compute."""

import base64
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

import kvcast
from kit.random_encoders import CROSS_ENCODERS, ENCODERS, random_encoder, save_encoder
from server.serving import Server, serving

TEXTS = ["w1 w2 w3", "w9 w8", "w20 w21 w22 w23 w24"]
PROMPTS = {"prompts": {"query": "w5 w6 "}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("encoders")
    encoder = save_encoder(random_encoder(ENCODERS["mpnet"]), folder / "e", prompts=PROMPTS)
    oracle = random_encoder(CROSS_ENCODERS["bert"], num_labels=1)
    ranker = save_encoder(oracle, folder / "r", pooling=None)
    models = {"encoder": kvcast.load(encoder), "ranker": kvcast.load(ranker)}
    with serving(models) as running:
        yield running


def post(server: Server, route: str, **body: object) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{route}", json=body, timeout=60)


@pytest.mark.parametrize(
    "params", [{}, {"dimensions": 8}, {"prompt_name": "query"}, {"truncate": True}]
)
def test_embeddings_are_the_models(server, params):
    expected = server.engines["encoder"].model.embed(TEXTS, **params)
    answer = post(server, "embeddings", model="encoder", input=TEXTS, **params).json()
    vectors = [np.float32(row["embedding"]) for row in answer["data"]]
    np.testing.assert_array_equal(vectors, expected)
    assert answer["usage"]["prompt_tokens"] >= sum(len(text.split()) + 2 for text in TEXTS)
    coded = post(
        server, "embeddings", model="encoder", input=TEXTS, encoding_format="base64", **params
    ).json()
    raw = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in coded["data"]]
    np.testing.assert_array_equal(raw, expected)


def test_ids_are_embedded_unchanged(server):
    ids = server.engines["encoder"].model.tokenizer.encode(TEXTS[0])
    given, text = (
        post(server, "embeddings", model="encoder", input=one).json() for one in (ids, TEXTS[0])
    )
    assert given["data"] == text["data"]


def test_documents_are_ranked_as_by_the_model(server):
    expected = server.engines["ranker"].model.rerank(TEXTS[0], TEXTS)
    body = {"model": "ranker", "query": TEXTS[0], "documents": [*TEXTS[:2], {"text": TEXTS[2]}]}
    answer = post(server, "rerank", **body).json()
    assert answer["results"] == list(map(vars, expected))
    best = post(server, "rerank", **body, top_n=1, return_documents=True).json()["results"]
    assert best == [vars(expected[0]) | {"document": {"text": TEXTS[expected[0].index]}}]


@pytest.mark.parametrize(
    ("route", "body", "words"),
    [
        ("embeddings", {"model": "ranker", "input": "w1"}, "gives no embeddings"),
        ("rerank", {"model": "encoder", "query": "w1", "documents": ["w2"]}, "encoder"),
        ("rerank", {"model": "ranker", "query": "w1", "documents": [{}]}, "must be a text"),
        ("embeddings", {"model": "encoder", "input": "w1", "dimensions": 33}, "dimensions"),
        ("embeddings", {"model": "encoder", "input": "w1", "prompt_name": "x"}, "query"),
        ("embeddings", {"model": "encoder", "input": "w1 " * 300}, "tokens"),
        ("chat/completions", {"model": "encoder", "messages": [{"role": "user", "content": "a"}]},
         "encoder"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_do_is_one_line(server, route, body, words):
    answer = post(server, route, **body)
    assert answer.status_code in (400, 404)
    message = answer.json()["error"]["message"]
    assert words in message
    assert "\n" not in message
