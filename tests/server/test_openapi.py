"""The OpenAPI document: bounds of options, random requests, and OpenAI's own tests."""

import contextlib
import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from kit.dimensions import ROFORMER, SMALL_T5
from kit.marks import slow, soak
from kit.text_models import model, saying, word_piece_model
from kvcast.text.params import PromptParams
from server.serving import serving

NAMES = ("chat", "t5", "vectors")


def asked(url: str, mode: GenerationMode, each: int) -> int:
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


@pytest.mark.parametrize("requests", [slow(600), soak(5000)])
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


FILES = ("test_completions.py", "test_embeddings.py", "test_models.py", "chat/test_completions.py")
CHOSEN = (
    "(create or TestModels) and not (all_params or Async or path_params or delete)"
    # It asks for embeddings in Base64, which its own strict mode refuses.
    " and not (TestEmbeddings and strict)"
)
MODELS = {
    "gpt-6-astra": saying("Hello, world"),
    "gpt-3.5-turbo-instruct": saying("Hello, world"),
    "model": saying("Hello, world"),
    "gpt-4o-mini": saying("Hello, world"),
}
CONFTEST = """
import os

import pytest
from openai import OpenAI


@pytest.fixture(scope="session")
def client(request):
    strict = getattr(request, "param", True)
    with OpenAI(
        base_url=os.environ["TEST_API_BASE_URL"], api_key="key", _strict_response_validation=strict
    ) as client:
        yield client
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openai")
    name = f"openai=={version('openai')}"
    words = [sys.executable, "-m", "pip", "download", "--no-binary=:all:", "--no-deps", "-q", name]
    got = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder)
    archives = list(folder.glob("openai-*.tar.gz"))
    if not archives:
        pytest.skip(f"the source distribution cannot be downloaded: {got.stderr[-200:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    [tree] = (path for path in folder.iterdir() if path.is_dir())
    # Theirs needs plugins for asyncio and for mocks of transports.
    (tree / "tests/conftest.py").write_text(CONFTEST)
    return tree


@pytest.mark.slow
def test_the_clients_own_tests_pass(suite: Path):
    with serving(MODELS | {"text-embedding-3-small": word_piece_model()}) as server:
        files = [f"tests/api_resources/{name}" for name in FILES]
        settings = ["-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings="]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-k", CHOSEN, *settings, *files],
            capture_output=True,
            text=True,
            check=False,
            cwd=suite,
            env={**os.environ, "TEST_API_BASE_URL": f"{server.url}/v1"},
        )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 39
