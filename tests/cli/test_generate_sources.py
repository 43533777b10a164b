"""`kvcast generate` with a text-to-text model: sources in, targets out, one line for mistakes."""

import json
from collections.abc import Callable

import pytest

from kit.letters import VOCAB
from kvcast.cli import main
from text.test_source_models import POSITIONS, answering


@pytest.fixture(autouse=True)
def _model(open_as: Callable[..., None]) -> None:
    open_as(answering({"hello there": "yes.", "you": "no."}))


@pytest.mark.parametrize("words", [[], ["--beam", "3"], ["--json", "--beam", "3"]])
def test_a_source_is_answered(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["generate", "-m", "m", "hello there", "-q", *words]) == 0
    out = capsys.readouterr().out
    document = json.loads(out) if "--json" in words else {"text": out.removesuffix("\n")}
    assert document["text"] == "yes."
    assert document.get("prompt_tokens", 12) == 12
    assert document.get("score", -1) < 0


def test_sources_from_a_file_are_answered_in_order(tmp_path, capsys):
    (tmp_path / "sources.txt").write_text("hello there\nyou\n")
    assert main(["generate", "-m", "m", "--prompts", str(tmp_path / "sources.txt"), "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["yes.", "no."]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([""], "the prompt is empty"),
        (["a" * POSITIONS], f"the prompt has {POSITIONS + 1} tokens and the model takes"),
        (["you", "--beam", str(VOCAB + 1)], f"beam must be at most {VOCAB}, the model's tokens"),
        (["you", "--chat"], "this model answers a source as it is: leave out chat and system"),
        (["you", "--system", "be kind"], "leave out chat and system"),
        (["you", "--chunk", "9"], "chunk is for prompts that are continued"),
        (["you", "--max-new-tokens", "3", "--min-new-tokens", "4"], "min_new_tokens must be from"),
        (["you", "--length-penalty", "2"], "length_penalty needs a beam of 2 or more"),
        (["you", "--early-stopping"], "early_stopping needs a beam of 2 or more"),
    ],
)
def test_an_invalid_request_is_one_line_and_exit_code_2(words, says, error_line):
    for more in ([], ["--json"]):
        assert main(["generate", "-m", "m", *words, *more]) == 2
        assert says in error_line()
