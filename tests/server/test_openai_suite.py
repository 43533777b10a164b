"""The official client's own tests of the endpoints, as its source distribution has them.

They were written for a mock that answers anything. Left out is what only a mock can answer: every
parameter at once with made-up values, what is stored, sounds that are none, responses to no input.
"""

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from kit.text_models import saying, word_piece_model
from server.serving import serving

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
