"""`kvcast generate` with a grammar: files and texts, exit codes, results."""

import json
from pathlib import Path

import jsonschema
import pytest

from kit.text_models import model_of, word_piece_model
from kvcast.cli import main

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"enum": [1, 2, 3]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def opened(open_as) -> None:
    open_as(model_of("byte-level"))


def printed(capsys, *words: str) -> str:
    assert main(["generate", "-m", "m", "hello", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--beam", "2"], ["--temperature", "1", "--n", "1"]])
def test_a_schema_is_a_text_or_a_file(more: list[str], tmp_path: Path, capsys):
    file = tmp_path / "person.json"
    file.write_text(json.dumps(SCHEMA, indent=1))
    texts = {
        printed(capsys, "--json-schema", given, *more) for given in (json.dumps(SCHEMA), str(file))
    }
    [text] = texts
    jsonschema.validate(json.loads(text), SCHEMA)


def test_prompts_share_a_schema(tmp_path: Path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\nthree\n")
    words = ["--prompts", str(prompts), "--json-schema", json.dumps(SCHEMA)]
    assert main(["generate", "-m", "m", *words]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(documents) == 3
    for document in documents:
        assert document["finish_reason"] == "stop"
        jsonschema.validate(json.loads(document["text"]), SCHEMA)


def test_the_other_kinds(tmp_path: Path, capsys):
    lark = tmp_path / "letters.lark"
    lark.write_text('start: "x"~2..3 "y"\n')
    assert printed(capsys, "--regex", "[0-9]{4}").strip().isdigit()
    assert printed(capsys, "--lark", str(lark)).strip() in ("xxy", "xxxy")
    assert printed(capsys, "--json-object", "--max-new-tokens", "9").startswith("{")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--json-schema", "no.json"], 66, "no.json: there is no such file"),
        (["--lark", "no.lark"], 66, "no.lark: there is no such file"),
        (["--json-schema", "{"], 2, "json_schema is not JSON"),
        (["--json-schema", '{"not": {}}'], 2, "json_schema cannot be used: Unimplemented keys"),
        (["--regex", "(a"], 2, "regex cannot be used: unclosed group"),
        (["--regex", "a", "--json-object"], 2, "a text keeps one grammar"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_mistakes_are_one_line(words: list[str], code: int, told: str, more: list[str], error_line):
    assert main(["generate", "-m", "m", "hello", *words, *more]) == code
    assert told in error_line()


def test_a_grammar_at_fault_is_no_prompts_fault(tmp_path: Path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    assert main(["generate", "-m", "m", "--prompts", str(prompts), "--regex", "(a"]) == 2
    assert capsys.readouterr().err == "kvcast: regex cannot be used: unclosed group\n"


def test_word_pieces_are_refused(open_as, capsys):
    open_as(word_piece_model())
    assert main(["generate", "-m", "m", "今天", "--regex", "a"]) == 2
    assert "word pieces" in capsys.readouterr().err
