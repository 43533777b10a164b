"""Models leave memory and come back: when that is asked for, and when nobody asks for them."""

import gc
import weakref
from typing import Any

import openai
import pytest

from kit.text_models import saying
from server.serving import Server, serving

ASKED = {"messages": [{"role": "user", "content": "a"}], "temperature": 0}


def loaded(server: Server) -> dict[str, bool]:
    with server.http() as http:
        models = http.get("/v1/models").json()["data"]
    return {model["id"]: model["loaded"] for model in models}


def said(server: Server, model: str) -> str:
    answer = server.client().chat.completions.create(model=model, **ASKED)
    return answer.choices[0].message.content


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
        stream = server.client().chat.completions.create(model="long", stream=True, **ASKED)
        text = next(stream).choices[0].delta.content or ""
        assert post(server, "unload", "long").json()["loaded"] is False
        assert text + "".join(part.choices[0].delta.content or "" for part in stream) == "ab" * 300
    with serving({"long": saying("ab" * 300)}, drain=0) as server:
        stream = server.client().chat.completions.create(model="long", stream=True, **ASKED)
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
