"""Grammars of a model: tried in a child first, kept, and refused in one line."""

import re
import sys
import threading
import time
from typing import Any

import pytest

from kit.text_models import model_of
from kvcast import Grammar
from kvcast.errors import KvcastError, UsageError
from kvcast.text import grammar_compiler, structured_output
from kvcast.text.grammar_compiler import FullError, Trials
from kvcast.text.structured_output import Grammars

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
    monkeypatch.setattr(grammar_compiler, "SECONDS", 1.0)
    monkeypatch.setattr(grammar_compiler, "SHORT", 0.2)
    with pytest.raises(UsageError, match="too complex to be compiled: it takes more than 1 s of a"):
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

    def ask(self: Any, grammar: Grammar, seconds: float) -> str:
        asked.append(grammar.text)
        return "" if grammar.text == "a" else "no"

    monkeypatch.setattr(structured_output, "TRIALS", Trials())
    monkeypatch.setattr(grammar_compiler._Worker, "_ask", ask)
    for _ in range(3):
        made.begin(Grammar.regex("a"), AFTER)
        with pytest.raises(UsageError, match=r"^regex cannot be used: no$"):
            made.begin(Grammar.regex("b"), AFTER)
    made.begin(Grammar.json_object(), AFTER)
    assert asked == ["a", "b"]


def test_the_oldest_grammar_is_forgotten(made: Grammars, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(structured_output, "MOST_KEPT", 2)
    monkeypatch.setattr(
        structured_output, "_try_in_child", lambda grammar: asked.append(grammar.text)
    )
    for pattern in "abacab":
        made.begin(Grammar.regex(pattern), AFTER)
    assert asked == ["a", "b", "c", "b"]


def test_without_an_interpreter_grammars_are_compiled_at_once(made: Grammars, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    monkeypatch.setattr(structured_output, "TRIALS", Trials())
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
    tokens = structured_output.Tokens(tokenizer, tokenizer.vocab_size)
    for text in ("some years", ' how long"', "{", "sail."):
        spelled = tokens(text)
        assert b"".join(tokenizer.decoder.token_bytes(token) for token in spelled) == text.encode()
        ends = []
        for before in ("", "\n", '"'):
            whole = tokenizer.encode(before + text)
            ends.append([t for t in whole if tokenizer.decoder.token_bytes(t)][-len(spelled) :])
        assert spelled in ends


def endless(number: int) -> Grammar:
    return Grammar.json_schema(PATTERNS | {"title": str(number)})


def hostile_is_long(trials: Trials) -> bool:
    trial = trials._workers[0].trial
    return trial is not None and trial.long


def test_a_new_grammar_waits_for_none_that_takes_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grammar_compiler, "SHORT", 0.1)
    trials = Trials(most=1)
    hostile = [trials.outcome(endless(number)) for number in range(3)]
    while not hostile_is_long(trials):
        time.sleep(0.01)
    good, again = trials.outcome(Grammar.regex("ab*")), trials.outcome(Grammar.regex("ab*"))
    assert good.result() == ""
    assert again is good
    assert "unclosed group" in trials.outcome(Grammar.regex("(")).result()
    assert not any(outcome.done() for outcome in hostile)
    assert len(trials._workers) == 1
    trials.close()
    for outcome in hostile:
        with pytest.raises(FullError, match="ends"):
            outcome.result()


def test_few_processes_try_grammars_and_few_grammars_wait(monkeypatch: pytest.MonkeyPatch):
    running: list[str] = []
    most, going = [0], threading.Event()

    def ask(self: Any, grammar: Grammar, seconds: float) -> str:
        running.append(grammar.text)
        most[0] = max(most[0], len(running))
        going.wait()
        running.remove(grammar.text)
        return "no"

    monkeypatch.setattr(grammar_compiler._Worker, "_ask", ask)
    monkeypatch.setattr(grammar_compiler, "MOST_WAITING", 5)
    monkeypatch.setattr(grammar_compiler, "MOST_KEPT", 4)
    trials = Trials(most=2)
    outcomes = []
    for number in range(7):
        outcomes.append(trials.outcome(endless(number)))
        while number < 2 and len(running) <= number:
            time.sleep(0.001)
    with pytest.raises(FullError, match="too many"):
        trials.outcome(endless(8))
    going.set()
    assert {outcome.result() for outcome in outcomes} == {"no"}
    assert most == [2]
    trials.outcome(endless(20)).result()
    assert len(trials._known) <= 5


def test_half_of_the_cores_try_grammars(monkeypatch: pytest.MonkeyPatch):
    for cores, most in ((1, 1), (2, 1), (3, 1), (8, 4)):
        monkeypatch.setattr(grammar_compiler, "available_cores", lambda cores=cores: cores)
        assert Trials()._most == most
