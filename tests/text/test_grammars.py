"""Grammars of a model: tried in a child first, kept, and refused in one line."""

import re
import sys
from typing import Any

import pytest

from kit.text_models import model_of
from kvcast import Grammar
from kvcast.errors import KvcastError, UsageError
from kvcast.machine.child import Answer
from kvcast.text import grammars
from kvcast.text.grammars import Grammars

MODEL = model_of("byte-level")
AFTER = 7
CHAIN = {
    "$defs": {
        **{f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(1400)},
        "d1400": {"type": "integer"},
    },
    "$ref": "#/$defs/d0",
}
PATTERNS = {
    "type": "string",
    "allOf": [{"pattern": f"(a|b)*a(a|b){{{10 + i}}}c"} for i in range(500)],
}


@pytest.fixture
def made() -> Grammars:
    return Grammars(MODEL.tokenizer, MODEL._limits.vocabulary)


def test_a_schema_that_would_crash_the_process_is_refused(made: Grammars):
    with pytest.raises(UsageError, match="too complex to be compiled: its process ended with"):
        made.begin(Grammar.json_schema(CHAIN), AFTER)


def test_a_schema_that_would_take_minutes_is_refused(made: Grammars, monkeypatch):
    monkeypatch.setattr(grammars, "SECONDS", 3.0)
    with pytest.raises(UsageError, match="too complex to be compiled: no answer within 3 s"):
        made.begin(Grammar.json_schema(PATTERNS), AFTER)


@pytest.mark.parametrize("pattern", ["(a{1,1000}){1,1000}b", "((a{1,100}){1,100}){1,100}b"])
def test_repetitions_of_repetitions_are_kept_up_to_a_limit(pattern: str):
    text = MODEL.generate("x", regex=pattern, max_new_tokens=400, temperature=0.5)
    assert re.fullmatch("a+b" if text.finish_reason == "stop" else "a+", text.text)


def test_what_the_library_says_in_the_child_is_the_error(made: Grammars):
    with pytest.raises(UsageError, match=r"^regex cannot be used: unclosed group$"):
        made.begin(Grammar.regex("(a"), AFTER)


def test_a_grammar_is_compiled_once_and_a_bad_one_refused_once(made: Grammars, monkeypatch):
    asked: list[str] = []

    def ask(function: str, *words: str, seconds: float) -> Answer:
        asked.append(words[1])
        return Answer(result="" if words[1] == "a" else "regex cannot be used: no")

    monkeypatch.setattr(grammars, "ask", ask)
    for _ in range(3):
        made.begin(Grammar.regex("a"), AFTER)
        with pytest.raises(UsageError, match=r"^regex cannot be used: no$"):
            made.begin(Grammar.regex("b"), AFTER)
    made.begin(Grammar.json_object(), AFTER)
    assert asked == ["a", "b"]


def test_the_oldest_grammar_is_forgotten(made: Grammars, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(grammars, "MOST_KEPT", 2)
    monkeypatch.setattr(grammars, "_try_in_child", lambda grammar: asked.append(grammar.text))
    for pattern in "abacab":
        made.begin(Grammar.regex(pattern), AFTER)
    assert asked == ["a", "b", "c", "b"]


def test_without_an_interpreter_grammars_are_compiled_at_once(made: Grammars, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    made.begin(Grammar.regex("a"), AFTER)
    with pytest.raises(UsageError, match="unclosed group"):
        made.begin(Grammar.regex("(a"), AFTER)


def test_without_the_library_one_line_says_what_to_install(made: Grammars, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(KvcastError, match=r"pip install 'kvcast\[structured\]'") as raised:
        made.begin(Grammar.regex("a"), AFTER)
    assert not isinstance(raised.value, UsageError)


@pytest.mark.parametrize("kind", ["byte-level", "llama", "llama-first", "gemma", "byt5", "spiece"])
def test_forced_text_is_spelled_as_the_tokenizer_does(kind: str):
    """A text that a grammar leaves no choice in gets the tokens that it has after another text."""
    tokenizer: Any = model_of(kind).tokenizer
    tokens = grammars.Tokens(tokenizer, tokenizer.vocab_size)
    for text in ("some years", ' how long"', "{", "sail."):
        spelled = tokens(text)
        assert b"".join(tokenizer.decoder.token_bytes(token) for token in spelled) == text.encode()
        ends = []
        for before in ("", "\n", '"'):
            whole = tokenizer.encode(before + text)
            ends.append([t for t in whole if tokenizer.decoder.token_bytes(t)][-len(spelled) :])
        assert spelled in ends
