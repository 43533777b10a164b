"""`kvcast chat`: the conversation with a real model, commands, what a terminal and a pipe see."""

import io
import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

import kvcast
from cli.fakes import FakeTextModel
from kit.models import own_cache
from kvcast.cli import chat, console, line_editor, main
from kvcast.cli.answer_view import AnswerView, split
from kvcast.cli.line_breaks import LineBreaks
from kvcast.errors import UsageError
from kvcast.text.conversation import Conversation

GREEDY = {"temperature": 0.0, "max_new_tokens": 16}


@pytest.fixture(scope="module")
def model() -> Any:
    return kvcast.load("demo-chat", threads=1)


@pytest.fixture
def talk(model) -> Iterator[Conversation]:
    made = Conversation(model, GREEDY, None)
    yield made
    made.close()


def answer(pieces: Iterator[tuple[str, str]]) -> str:
    return "".join(piece for _, piece in pieces)


def test_a_conversation_answers_as_the_model_does_and_computes_no_turn_again(talk, model):
    first = answer(talk.ask("What is 2 + 3?"))
    assert first == model.chat([{"role": "user", "content": "What is 2 + 3?"}], **GREEDY).text
    second = answer(talk.ask("And 4 + 4?"))
    asked = [
        {"role": "user", "content": "What is 2 + 3?"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "And 4 + 4?"},
    ]
    assert talk.messages == [*asked, {"role": "assistant", "content": second}]
    assert second == model.chat(asked, **GREEDY).text
    status = talk._engine.status()
    assert status.cached_tokens > len(model.tokenizer.encode(first))


def test_a_second_try_differs_unless_a_seed_is_set(talk):
    talk.options = {"temperature": 1.0, "max_new_tokens": 12}
    tries = {answer(talk.ask("Tell me a story."))} | {answer(talk.retry()) for _ in range(3)}
    assert len(tries) > 1
    assert len(talk.messages) == 2
    talk.options["seed"] = 7
    assert answer(talk.retry()) == answer(talk.retry())


def test_a_stopped_answer_is_kept_and_one_that_had_not_begun_is_dropped(talk):
    pieces = talk.ask("Count to twenty.")
    begun = next(pieces)[1]
    pieces.close()
    assert [message["content"] for message in talk.messages] == ["Count to twenty.", begun]
    assert talk.last is None
    talk.ask("Never answered.").close()
    assert talk.messages[-1]["content"] == "Never answered."
    talk.options["max_new_tokens"] = 2
    answer(talk.ask("Hello"))
    assert [message["content"] for message in talk.messages[2:-1]] == ["Hello"]


def test_the_oldest_turns_make_room_for_an_answer(talk):
    for number in range(6):
        talk.messages += [
            {"role": "user", "content": f"{number} " + "word " * 1500},
            {"role": "assistant", "content": "yes"},
        ]
    talk.options["max_new_tokens"] = 2
    answer(talk.ask("Hello"))
    assert talk.forgotten in (2, 4)
    assert len(talk.messages) >= 13
    talk.clear()
    answer(talk.ask("Hello"))
    assert talk.forgotten == 0


def test_what_the_model_cannot_take_leaves_the_conversation_as_it_was(talk):
    with pytest.raises(UsageError, match="no message"):
        talk.retry()
    with pytest.raises(UsageError, match="tokens"):
        next(talk.ask("word " * 9000))
    assert talk.messages == []


def test_reasoning_is_separate_and_no_part_of_the_message(talk, monkeypatch):
    class Delta:
        def __init__(self, text: str, reason: str | None = None) -> None:
            self.text, self.finish_reason = text, reason

    class Job(list):
        def cancel(self) -> None:
            pass

        def result(self) -> None:
            return None

    job = Job([Delta("<think>hm"), Delta("m</think>\n\nfi"), Delta("ve", "stop")])
    monkeypatch.setattr(talk._engine, "submit", lambda *_, **__: job)
    pieces = list(talk.ask("2 + 3?"))
    assert "".join(reasoning for reasoning, _ in pieces) == "hmm"
    assert talk.messages[-1] == {"role": "assistant", "content": "five"}


def test_a_document_goes_on_and_so_do_messages_in_openais_format(talk):
    talk.system, talk.messages = "Be brief.", [{"role": "user", "content": "東京?"}]
    document, kept = json.loads(json.dumps(talk.document)), list(talk.messages)
    talk.clear()
    talk.system = None
    talk.restore(document)
    assert (talk.system, talk.messages) == ("Be brief.", kept)
    talk.restore([{"role": "system", "content": "x"}, *kept])
    assert (talk.system, talk.messages) == ("x", kept)


@pytest.mark.parametrize(
    "document",
    [
        3,
        [],
        {"messages": "abc"},
        [{"role": "boss", "content": "x"}],
        {"messages": [{"role": "user", "content": "x"}], "system": 3},
    ],
)
def test_what_is_no_conversation_is_refused(talk, document):
    talk.messages = [{"role": "user", "content": "kept"}]
    with pytest.raises(UsageError):
        talk.restore(document)
    assert talk.messages == [{"role": "user", "content": "kept"}]


def test_markdown_is_divided_at_blank_lines_outside_of_code():
    assert split("one") == ("", "one")
    assert split("one\n\ntwo") == ("one\n\n", "two")
    code = "one\n\n```py\na = 1\n\nb = 2\n"
    assert split(code) == ("one\n\n", code.removeprefix("one\n\n"))
    assert split(f"{code}```\n\nend") == (f"{code}```\n\n", "end")


def shown(markdown: str, width: int = 60) -> str:
    text = io.StringIO()
    screen = Console(file=text, width=width, color_system=None)
    with AnswerView(screen) as view:
        view.add("", markdown)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip()


def test_the_view_takes_nothing_from_an_answer():
    assert shown("one\ntwo\n") == "one\ntwo"
    plain = "a Vec<String> and 3*4*5 in __init__.py"
    assert shown(plain) == plain
    assert shown("<div>\nin\n</div>") == "<div>\nin\n</div>"
    assert "(https://example.org/a)" in shown("see [this](https://example.org/a)")
    assert shown("`a<b>` *c*") == "a<b> c"
    assert "if a<b: __x__" in shown("```py\nif a<b: __x__\n```")
    table = shown("| a | b |\n|---|---|\n| 1 | 2 |\n")
    assert "|" not in table
    assert "1" in table


def test_the_view_shows_an_answer_once_rendered_and_with_escapes(monkeypatch):
    shown = io.StringIO()
    screen = Console(file=shown, force_terminal=True, width=60, height=12, color_system=None)
    with AnswerView(screen) as view:
        view.add("thinking \x1b[31m", "")
        for piece in ("# Head\n", "\n* one\n* two\n\nlast ", "**words** \x1b]0;x\x07"):
            view.add("", piece)
    text = shown.getvalue()
    assert "thinking \\u001b[31m" in text
    assert text.count("Head") == 1 + text.count("\x1b[1A\x1b[2K")
    assert " • one" in text
    assert "last words \\u001b]0;x\\u0007" in text.splitlines()[-1]


def in_lines(pieces: Sequence[str], width: int) -> list[str]:
    """Return the lines that a terminal of this width shows, after each piece."""
    lines, shown, screens = LineBreaks(width), "", []
    for piece in pieces:
        shown += lines.add(piece)
        screens.append(shown)
    return [*screens, shown + lines.end()]


TEXT = "The quick  brown fox jumps over a lazy dog,\nand then:\n\n\tcode = 1\n"


@pytest.mark.parametrize("width", [12, 20, 80])
@pytest.mark.parametrize("size", [1, 3, 7, 99])
def test_lines_break_at_words_however_the_text_comes(width, size):
    pieces = [TEXT[at : at + size] for at in range(0, len(TEXT), size)]
    *screens, last = in_lines(pieces, width)
    assert last.split() == TEXT.split()
    assert all(len(line) <= width for line in last.split("\n"))
    assert all(after.startswith(before) for before, after in pairwise([*screens, last]))
    assert {word for screen in screens for word in screen.split()} <= {*TEXT.split()}
    if width == 80:
        assert last == TEXT.expandtabs(8)


def test_a_word_longer_than_a_line_and_scripts_without_spaces_fill_it():
    assert in_lines(["a ", "x" * 25, " b c"], 10)[-1] == f"a\n{'x' * 25} b c"
    assert in_lines(["東京は", "今日も", "晴れ"], 8)[-1] == "東京は今\n日も晴れ"
    assert in_lines(["one ", "two   "], 7)[-1] == "one two"


def test_reasoning_breaks_at_words_across_its_pieces():
    text = io.StringIO()
    screen = Console(file=text, force_terminal=True, width=16, height=12, color_system=None)
    with AnswerView(screen) as view:
        for piece in ("think", "ing about ", "colours", " of the sky"):
            view.add(piece, "")
        view.add("", "blue")
    shown = re.sub(r"\x1b\[[0-9?]*[a-zA-Z]", "", text.getvalue())
    assert shown.lstrip().startswith("thinking about\ncolours of the\nsky\n\n")


def test_an_answer_as_it_is_written_breaks_at_words_in_a_terminal_alone(monkeypatch, capsys):
    pieces = [("", piece) for piece in ("one tw", "o three", " four\x1b")]
    monkeypatch.setenv("COLUMNS", "9")
    monkeypatch.setattr(console, "is_terminal", lambda: True)
    chat._written(iter(pieces))
    assert capsys.readouterr().out == "one two\nthree\nfour\\u001b\n"
    monkeypatch.setattr(console, "is_terminal", lambda: False)
    chat._written(iter(pieces))
    assert capsys.readouterr().out == "one two three four\x1b\n"


@pytest.fixture
def typed(model, open_as, monkeypatch, tmp_path, capfd):
    """Return a function that runs the command while keys are typed; it returns what is shown."""
    open_as(model)
    own_cache(monkeypatch, tmp_path)
    monkeypatch.setattr(console, "is_interactive", lambda: True)
    monkeypatch.setattr(console, "is_piped", lambda: False)

    def run(
        *lines: str, words: tuple[str, ...] = ("--temperature=0", "-n", "16")
    ) -> tuple[int, str, str]:
        with create_pipe_input() as keys, create_app_session(keys, DummyOutput()):
            keys.send_text("".join(f"{line}\r" for line in lines) + "\x04")
            code = main(["chat", "--temperature", "0", "-n", "16"])
        return code, *capfd.readouterr()

    return run


def test_a_terminal_talks_until_it_leaves(typed, tmp_path):
    saved = tmp_path / "talk.json"
    code, out, err = typed(
        "/system Answer with a number.", "What is 2 + 3?", f"/save {saved}", "/bye", "lost"
    )
    assert code == 0
    assert json.loads(saved.read_text())["system"] == "Answer with a number."
    (_, reply) = json.loads(saved.read_text())["messages"]
    assert reply["content"] in out
    assert err.count(" tokens/s") == 1
    history = (tmp_path / line_editor.HISTORY).read_text()
    assert "+What is 2 + 3?" in history
    assert (tmp_path / line_editor.HISTORY).stat().st_mode & 0o077 == 0


def test_commands_change_options_and_mistakes_are_one_line_each(typed):
    code, out, err = typed(
        "/set max_tokens 3",
        "/set",
        "/unset temperature",
        "/set top_p 7",
        "/set colour red",
        "/set temprature 1",
        "/set parameter seed 3",
        "/set",
        "/dance",
        "/retry",
        "/load gone.json",
        f"/load {__file__}",
        "/save",
        f"/save {__file__}",
        "/unset x",
        "/clear",
        "/help",
    )
    assert code == 0
    assert out.count("max_new_tokens 3") == 4, out
    assert out.count("seed 3") == 2
    assert out.count("temperature 0.0") == 2
    assert err.splitlines() == [
        "kvcast: top_p must be a number above 0 and at most 1, not '7'",
        "kvcast: there is no option colour; these are: " + ", ".join(chat._setting_names()),
        "kvcast: there is no option temprature; did you mean temperature?",
        "kvcast: there is no command /dance: /help lists them; a message may begin with a space",
        "kvcast: there is no message to answer again",
        "kvcast: gone.json: there is no such file",
        f"kvcast: {__file__}: is not JSON: Extra data: line 1 column 3 (char 2)",
        "kvcast: a file is missing, as in /save talk.json",
        f"kvcast: {__file__} is there, and no conversation: give another name",
        "kvcast: x is not set: /set shows what is",
    ]
    assert all(f"/{name}" in out for name in ("help", "system", "set", "retry", "load", "bye"))


def test_a_message_may_have_several_lines(typed, monkeypatch):
    asked: list[str] = []

    def ask(_: Conversation, text: str) -> Iterator[tuple[str, str]]:
        asked.append(text)
        yield from ()

    monkeypatch.setattr(Conversation, "ask", ask)
    typed('"""one', 'two"""', "three\x1b\rfour", " /set", "/usr/bin is?")
    assert asked == ["one\ntwo", "three\nfour", " /set", "/usr/bin is?"]


def test_commands_and_options_are_completed():
    commands = line_editor._Commands({"save": [], "set": ["top_p", "top_k"], "system": []})

    def completed(text: str) -> list[str]:
        return [found.text for found in commands.get_completions(Document(text), None)]

    assert completed("/s") == ["save", "set", "system"]
    assert completed("/set t") == ["top_p", "top_k"]
    assert completed("s") == completed("/system t") == []
    path = Path(__file__)
    assert completed(f"/save {path.parent}/{path.name[:-4]}") == [path.name[-4:]]


def test_a_prompt_beside_the_model_is_answered_once(model, open_as, capsys):
    open_as(model)
    assert main(["run", "m", "What is 2 + 3?", "--temperature", "0", "-n", "16"]) == 0
    assert capsys.readouterr().out == "2 + 3 = 5\n"


def test_a_pipe_is_one_message_and_its_answer(model, open_as, monkeypatch, capsys):
    open_as(model)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"What is 2 + 3?\n")))
    assert main(["chat", "demo-chat", "--temperature", "0", "--quiet", "-n", "16"]) == 0
    assert capsys.readouterr() == ("2 + 3 = 5\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "--model", "b"], "the model is named twice: drop --model"),
        (["demo-t5"], "demo-t5 has no chat template: kvcast generate takes plain prompts"),
        (["--top-p", "7"], "above 0"),
    ],
)
def test_wrong_usage_is_one_line(words, message, open_as, monkeypatch, error_line):
    open_as(FakeTextModel())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
    assert main(["chat", *words]) == 2
    assert message in error_line()


def test_without_a_terminal_or_a_pipe_it_says_what_to_use(open_as, monkeypatch, error_line):
    open_as(FakeTextModel())
    monkeypatch.setattr("sys.stdin", None)
    assert main(["chat"]) == 2
    assert "kvcast chat needs a terminal; kvcast generate writes to files" in error_line()
