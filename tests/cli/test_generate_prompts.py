"""Prompts as arguments, files, standard input and lines; each mistake is one line and a code."""

import io
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.fakes import FakeTextModel
from kit.errors import one_line
from kvcast.cli import main, prompts
from kvcast.errors import InputMissingError, InputOutputError, KvcastError, UsageError


def prompt_file(folder: Path, content: str | bytes, name: str = "in.txt") -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def texts(source: str) -> list[str]:
    return [prompt.text for prompt in prompts.read_prompts(source)]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("one\n", "one"),
        ("one\r\n", "one"),
        ("one\ntwo\n\n", "one\ntwo\n"),
        (" one ", " one "),
        ("\ufeffone", "one"),
        ("\n\n", "\n"),
        ("a\u2028b\x0cc\n", "a\u2028b\x0cc"),
    ],
)
def test_a_file_is_one_prompt_without_its_last_line_end(content: str, text: str, tmp_path):
    assert prompts.read_prompt(prompt_file(tmp_path, content)).text == text


def test_plain_lines_keep_their_spaces_and_blank_ones_are_skipped(tmp_path):
    source = prompt_file(tmp_path, "\ufeff  one \r\n\n \t\ntwo\u2028three\nlast")
    assert texts(source) == ["  one ", "two\u2028three", "last"]


def test_json_lines_are_strings_and_objects(tmp_path):
    lines = '"one\\n"\n\n{"prompt": "two", "id": 7, "system": "s"}\n{"prompt": "3", "id": null}\n'
    got = prompts.read_prompts(prompt_file(tmp_path, lines, "in.jsonl"))
    assert [(p.text, p.id, p.system) for p in got] == [
        ("one\n", None, None),
        ("two", 7, "s"),
        ("3", None, None),
    ]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("in.txt", '"hello"\n', ['"hello"']),
        ("in.jsonl", '"hello"\n', ["hello"]),
        ("IN.NDJSON", '"hello"\n', ["hello"]),
        ("in", '"hello"\n', ["hello"]),
        ("in", '\n  {"prompt": "hello"}\n', ["hello"]),
        ("in.md", 'hello\n"there"\n', ["hello", '"there"']),
    ],
)
def test_name_and_then_first_line_distinguish_json_from_text(name, content, expected, tmp_path):
    assert texts(prompt_file(tmp_path, content, name)) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a"', "is not JSON: Expecting ',' delimiter"),
        ("hello", "is not JSON"),
        ("7", "must be a JSON string or an object with a prompt"),
        ('["a"]', "must be a JSON string or an object with a prompt"),
        ("null", "must be a JSON string"),
        ("{}", 'the object has no "prompt"'),
        ('{"text": "a"}', 'the object has no "prompt"'),
        ('{"prompt": 7}', '"prompt" must be a string'),
        ('{"prompt": null}', '"prompt" must be a string'),
        ('{"prompt": "a", "id": true}', '"id" must be a string or a whole number'),
        ('{"prompt": "a", "id": 1.5}', '"id" must be a string or a whole number'),
        ('{"prompt": "a", "system": 1}', '"system" must be a string'),
        ('{"prompt": "a", "max_tokens": 1}', 'unknown field "max_tokens"'),
        ('"\\ud800"', '"prompt" must be a string of valid characters'),
        ('{"prompt": "a", "id": "\\udfff"}', '"id" must be'),
        ('{"prompt": ' + "[" * 100_000, "is nested too deeply"),
        ('{"prompt": "a", "id": ' + "9" * 5000 + "}", "is not JSON"),
    ],
)
def test_a_bad_line_is_named_by_its_number(line: str, message: str, tmp_path):
    source = prompt_file(tmp_path, f'"fine"\n\n{line}\n', "in.jsonl")
    with pytest.raises(InputOutputError, match=re.escape(f"{source}, line 3: {message}")):
        prompts.read_prompts(source)


@pytest.mark.parametrize("line", ['""', '{"prompt": ""}'])
def test_an_empty_prompt_on_a_line_is_named(line: str, tmp_path):
    source = prompt_file(tmp_path, f'"fine"\n{line}\n', "in.jsonl")
    with pytest.raises(UsageError, match=f"{re.escape(source)}, line 2: the prompt is empty"):
        prompts.read_prompts(source)


@pytest.mark.parametrize("content", ["", "\n", " \n\t\n", "\ufeff"])
def test_a_file_without_prompts_is_refused(content: str, tmp_path):
    with pytest.raises(UsageError, match="holds no prompt"):
        prompts.read_prompts(prompt_file(tmp_path, content))


@pytest.mark.parametrize("content", ["", "\n", "\r\n", "\ufeff"])
def test_an_empty_file_is_an_empty_prompt(content: str, tmp_path):
    with pytest.raises(UsageError, match="the prompt is empty"):
        prompts.read_prompt(prompt_file(tmp_path, content))


def test_invalid_utf_8_is_named_by_its_line(tmp_path):
    source = prompt_file(tmp_path, b"one\ntwo\n\xff\xfe\n")
    for read in (prompts.read_prompt, prompts.read_prompts):
        with pytest.raises(InputOutputError, match=r"in\.txt, line 3: is not valid UTF-8"):
            read(source)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gone.txt", InputMissingError),
        ("file/gone.txt", InputMissingError),
        (".", InputOutputError),
        ("x" * 300, InputOutputError),
    ],
)
def test_an_unreadable_prompt_file_is_one_line(name: str, kind: type[KvcastError], tmp_path):
    prompt_file(tmp_path, "text", "file")
    assert one_line(kind, prompts.read_prompt, str(tmp_path / name))


def test_standard_input_is_a_hyphen(monkeypatch):
    def standard_input(content: bytes) -> None:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    standard_input(b"one\ntwo\n")
    assert prompts.read_prompt("-").text == "one\ntwo"
    standard_input(b"one\ntwo\n")
    assert texts("-") == ["one", "two"]
    standard_input(b'"one"\n{]\n')
    with pytest.raises(InputOutputError, match="standard input, line 2: is not JSON"):
        prompts.read_prompts("-")
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="standard input"):
        prompts.read_prompt("-")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([""], 2, "the prompt is empty"),
        (["a\udcff"], 2, "the prompt is not valid UTF-8"),
        ([], 2, "a prompt is missing: give one or pipe one in; kvcast chat asks for them"),
        (["a", "--raw", "--chat"], 2, "--raw leaves the chat template out: drop --chat and"),
        (["a", "--raw", "--system", "b"], 2, "--raw leaves the chat template out: drop --chat"),
        (["--prompt-file", "gone"], 66, "gone: there is no such file"),
        (["--prompts", "gone"], 66, "gone: there is no such file"),
        (["--prompts", "."], 74, "cannot read .: Is a directory"),
    ],
)
def test_no_model_is_loaded_for_a_bad_prompt(words, code, message, model, error_line, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert main(["generate", *words]) == code
    assert message in error_line()
    assert model.calls == []


@pytest.mark.parametrize(
    ("words", "content", "code"),
    [
        (["-"], b"", 2),
        ([], b"", 2),
        (["-"], b"\xff", 74),
        (["--prompts", "-"], b"", 2),
        (["--prompts", "-"], b'"a"\n{"prompt"}\n', 74),
        ([os.fsdecode(b"\xff")], b"", 2),
    ],
)
def test_bad_input_is_one_line(words, content: bytes, code: int, open_as, monkeypatch, capfd):
    open_as(FakeTextModel())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert main(["generate", *words]) == code
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("kvcast: ")
