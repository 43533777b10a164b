"""The OpenAPI document: bounds are those of options, and no request made up from it fails."""

import contextlib
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from kit.dimensions import ROFORMER, SMALL_T5
from kit.text_models import model, saying
from kvcast.text.params import PromptParams
from server.serving import serving

NAMES = ("chat", "t5", "vectors")


def asked(url: str, mode: GenerationMode, each: int) -> int:
    """Send requests to every operation; return how many there were."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    count = 0
    for result in schema.get_all_operations():
        operation: Any = result.ok()

        @settings(
            max_examples=each,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            nonlocal count
            if isinstance(case.body, dict) and "model" in case.body and count % 3:
                case.body["model"] = NAMES[count % len(NAMES)]
            answer = case.call(base_url=url)
            count += 1
            assert answer.status_code < 500, (case.as_curl_command(), answer.text)
            if answer.status_code >= 400 and "json" in answer.headers.get("content-type", ""):
                told = {"type", "message"}  # of Anthropic's interface
                told |= set() if case.path.startswith("/v1/messages") else {"param", "code"}
                assert set(answer.json()["error"]) == told, (case.as_curl_command(), answer.text)

        # Some operations take nothing that could be wrong.
        with contextlib.suppress(Unsatisfiable):
            send()
    return count


def test_each_bound_is_a_value_that_its_option_takes():
    options = {option.name: option for option in PromptParams.declared()}
    del options["seed"]  # OpenAI's may be negative
    with serving({"chat": saying("a")}) as server:
        bodies = httpx.get(f"{server.url}/openapi.json").json()["components"]["schemas"]
    names = []
    for name, field in bodies["ChatRequest"]["properties"].items():
        for kind in field.get("anyOf", ()):
            for bound in {"minimum", "maximum"} & kind.keys() if name in options else ():
                options[name].check(options[name].kind(kind[bound]))
                names.append(name)
    assert {"temperature", "top_k", "presence_penalty", "n", "top_logprobs"} <= set(names)


@pytest.mark.parametrize(
    "requests",
    [pytest.param(600, marks=pytest.mark.slow), pytest.param(5000, marks=pytest.mark.soak)],
)
def test_no_request_makes_it_fail(requests: int):
    models = {
        "chat": saying('{"answer": "Hello, world"}'),
        "t5": model(SMALL_T5, "native"),
        "vectors": model(ROFORMER, "native"),
    }
    with serving(models, timeout=20) as server:
        operations = len(list(schemathesis.openapi.from_url(f"{server.url}/openapi.json")))
        count = sum(
            asked(server.url, mode, requests // operations)
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        )
        assert count >= requests
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert all(not status.running for status in map(server.status, models))
