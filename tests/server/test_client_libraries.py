"""Client libraries of OpenAI's API: their structured output and tool calls.

Each runs a script of `clients/` in a process of its own, which prints its results by name: a person
for structured output, a name and arguments for a call. CONTRIBUTING.md says how they are installed.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvcast
from kit.text_models import saying
from kvcast.chat.tool_calls import HERMES
from server.serving import Server, serving

pytestmark = pytest.mark.slow
CLIENTS = Path(__file__).parent / "clients"
PERSON = '{"name": "Ada", "age": 36}'
CALL = HERMES.call.replace("NAME", "weather").replace("ARGUMENTS", '{"town": "Nantes"}')
NAMES = {
    "langchain": "langchain_openai",
    "llamaindex": "llama_index.llms.openai_like",
    "instructor": "instructor",
    "pydantic_ai": "pydantic_ai",
    "litellm": "litellm",
}
EXPECTED = {
    "langchain": {"json_schema", "function_calling", "json_mode", "tool call", "streamed tool call",
                  "answer to a tool"},
    "llamaindex": {"tools", "json_schema", "tool call"},
    "instructor": {"tool_call", "json_schema_mode", "json_mode"},
    "pydantic_ai": {"tool", "native", "responses", "responses by a tool",
                    "tool call of OpenAIChatModel", "output of OpenAIChatModel",
                    "tool call of OpenAIResponsesModel", "output of OpenAIResponsesModel"},
    "litellm": {"json_schema", "tool call", "streamed tool call"},
    "vercel_ai": {"json_schema", "streamed", "tool call", "streamed tool call"},
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models: dict[str, Any] = {
        "demo-chat": kvcast.load("demo-chat", threads=2),
        "json": saying(PERSON),
        "agent": saying(lambda prompt: PERSON if "rain" in prompt else CALL),
    }
    with serving(models) as running:
        yield running


def _command(client: str, folder: Path) -> list[str]:
    """Return the command that runs a client; skips the test where it is not installed."""
    environment = Path(os.environ.get("KVCAST_TEST_CLIENTS", sys.prefix)).absolute()
    if client == "vercel_ai":
        script = shutil.copy(CLIENTS / "with_vercel_ai.mjs", folder)
        (folder / "node_modules").symlink_to(environment / "node_modules")
        command = ["node", str(script)]
        probing = ["node", "--input-type=module", "-e", "await import('@ai-sdk/openai-compatible')"]
    else:
        python = str(environment / "bin/python")
        command = [python, "-W", "ignore", str(CLIENTS / f"with_{client}.py")]
        probing = [
            python,
            "-c",
            f"from importlib.util import find_spec as f; assert f({NAMES[client]!r})",
        ]
    is_there = shutil.which(probing[0]) and not subprocess.call(
        probing, cwd=folder, stderr=subprocess.DEVNULL
    )
    if not is_there:
        pytest.skip(f"{client} is not in {environment}: see CONTRIBUTING.md")
    return command


@pytest.mark.parametrize("client", EXPECTED)
def test_a_client_library_gets_structured_output_and_calls(request, client, tmp_path):
    command = _command(client, tmp_path)
    server: Server = request.getfixturevalue("server")  # not before something is to be tested
    done = subprocess.run(
        [*command, server.url],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert results.keys() == EXPECTED[client]
    for name, result in results.items():
        if "call" in name and isinstance(result, list):
            called, arguments = result
            assert called == "weather", name
            assert arguments.keys() == {"town"}, name
            assert isinstance(arguments["town"], str), name
        else:
            assert result.keys() == {"name", "age"}, name
            assert isinstance(result["name"], str), name
            assert isinstance(result["age"], int), name
