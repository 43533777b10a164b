"""Grammars: schemas are checked, compiled in a child first, kept, and refused in one line."""

import json
import re
import sys
import threading
import time
from typing import Any

import jsonschema
import pytest

from kit.errors import one_line
from kit.text_models import model_of
from kvcast import Grammar
from kvcast.chat.tool_calls import EnforcedCall
from kvcast.decoding.grammar import LONGEST
from kvcast.decoding.params import SamplingParams
from kvcast.errors import KvcastError, UsageError
from kvcast.text import grammar_compiler, structured_output
from kvcast.text.grammar_compiler import FullError, Trials
from kvcast.text.params import PromptParams
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


def kept(grammar: Grammar):
    schema = json.loads(grammar.text)
    assert schema.pop("x-guidance")["whitespace_flexible"] is False
    return schema


def test_a_schema_is_its_text_or_what_that_means():
    schema = {"type": "object", "properties": {"é": {"pattern": "a"}}}
    as_text = Grammar.json_schema(json.dumps(schema))
    assert as_text == Grammar.json_schema(schema)
    assert kept(as_text) == schema
    assert hash(as_text) == hash(Grammar.json_schema(schema))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("", "json_schema is not JSON"),
        ("{", "json_schema is not JSON"),
        ("[1]", "json_schema must be a JSON object"),
        ({"const": {1, 2}}, "json_schema is not JSON"),
        ({"const": float("nan")}, "json_schema is not JSON"),
        ('{"items":' * 100000, "json_schema is not JSON"),
        ('{"items":' * 3000 + "{}" + "}" * 3000, "nested too deeply"),
        ({"enum": ["\ud800"]}, "json_schema is not valid UTF-8"),
        ({"enum": ["x" * LONGEST]}, "shorten it"),
        ({"enum": ["\x01"]}, "control character"),
        ({"properties": {"\x1f": {}}}, "control character"),
        ({"items": {"pattern": r"^\x01$"}}, "control character"),
        ({"patternProperties": {r"a\u001f": {}}}, "control character"),
        ({"pattern": r"[\p{Cc}]"}, "control character"),
        ({"anyOf": [{"minProperties": 2, "required": ["a"]}]}, "minProperties 2"),
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "exclusiveMinimum 0 and maximum 0.5"),
        ({"exclusiveMinimum": 10**400, "maximum": 3}, "too large a number"),
    ],
)
def test_a_schema_that_would_not_be_kept_is_refused(schema, problem: str):
    assert problem in one_line(UsageError, Grammar.json_schema, schema)


def test_what_looks_alike_and_would_be_kept_is_not():
    schema = {
        "properties": {"minProperties": {"pattern": r"\\x01", "const": {"pattern": "[^a]"}}},
        "required": ["a", "b"],
        "minProperties": 2,
        "enum": ["\n\t\\u0001", {"minProperties": 9, "pattern": "[^a]"}],
        "exclusiveMinimum": 0,
        "maximum": 1,
    }
    assert kept(Grammar.json_schema(schema)) == schema


def test_the_librarys_own_options_are_left_out():
    schema = {"type": "integer", "x-guidance": {"whitespace_flexible": True, "lenient": True}}
    assert Grammar.json_schema(schema) == Grammar.json_schema({"type": "integer"})


@pytest.mark.parametrize(
    ("pattern", "rewritten"),
    [
        ('^[^"]+$', r'^[^\x00"]+$'),
        (r"[^-a]", r"[^\x00\-a]"),
        (r"\[^a", r"\[^a"),
        (r"\\[^a]", r"\\[^\x00a]"),
        (r"\P{L}\PL", r"[^\x00\p{L}][^\x00\pL]"),
        (r"[a^]\d", r"[a^]\d"),
    ],
)
def test_negated_classes_leave_out_nul(pattern: str, rewritten: str):
    schema = {"items": {"pattern": pattern}, "patternProperties": {pattern: {}}}
    expected = {"items": {"pattern": rewritten}, "patternProperties": {rewritten: {}}}
    assert kept(Grammar.json_schema(schema)) == expected


def test_a_tool_call_needs_a_tool():
    with pytest.raises(UsageError, match="no tool"):
        Grammar.tool_call([], {})
    call = EnforcedCall(prefix="", schema={"minProperties": 3}, suffix="", markers=())
    with pytest.raises(UsageError, match="a tool's schema has minProperties"):
        Grammar.tool_call([call], {})


@pytest.mark.parametrize(
    ("given", "grammar"),
    [
        ({"json_schema": {"type": "null"}}, Grammar.json_schema({"type": "null"})),
        ({"json_schema": '{"type": "null"}'}, Grammar.json_schema({"type": "null"})),
        ({"json_object": True}, Grammar.json_object()),
        ({"regex": "a"}, Grammar.regex("a")),
        ({"lark": "start: /a/"}, Grammar.lark("start: /a/")),
        ({"grammar": Grammar.regex("a")}, Grammar.regex("a")),
        ({}, None),
    ],
)
def test_each_option_is_a_grammar(given, grammar: Grammar | None):
    assert PromptParams(**given).constraint == grammar


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"json_object": True, "regex": "a"}, "a text keeps one grammar"),
        ({"lark": "start: /a/", "grammar": Grammar.regex("a")}, "a text keeps one grammar"),
        ({"regex": "a", "min_new_tokens": 2}, "min_new_tokens needs a text without a grammar"),
        ({"regex": ""}, "regex is empty"),
        ({"json_schema": 3}, "json_schema must be a string, not 3"),
        ({"grammar": "a"}, "grammar must be a kvcast.Grammar, not 'a'"),
    ],
)
def test_options_that_exclude_each_other_are_refused(given, problem: str):
    with pytest.raises(UsageError, match=re.escape(problem)):
        PromptParams(**given)


def test_a_session_takes_a_grammar():
    assert SamplingParams(grammar=Grammar.regex("a")).constraint == Grammar.regex("a")


def accepted(grammar: Grammar, text: str) -> bool:
    from llguidance import LLTokenizer

    from kvcast.text.structured_output import matcher

    state = matcher(LLTokenizer("byte"), grammar)
    spelled = list(text.encode())
    return state.try_consume_tokens(spelled) == len(spelled) and state.is_accepting()


MAP = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        # Each of these passes llguidance as it is, and would not validate.
        ({"type": "string", "pattern": '^[^"]$'}, r'"\""'),
        ({"type": "string", "pattern": r"^[^\\]$"}, r'"\\"'),
        (MAP, r'{"\u0061": "x"}'),
        (MAP | {"patternProperties": {"^b": {"type": "null"}}}, r'{"\u0062": 3}'),
        ({"type": "string", "pattern": r"^\P{P}$"}, r'"\""'),
    ],
)
def test_what_does_not_validate_is_not_generated(schema, text: str):
    if r"\P" not in str(schema):  # Python's re does not know it
        assert not jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    assert not accepted(Grammar.json_schema(schema), text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "pattern": '^[^"]$'}, r'"\\"'),
        ({"type": "string", "pattern": r"^[^-\\]$"}, r'"\n"'),
        (MAP, '{"a": 3, "b": "x"}'),
        (MAP, r'{"a\n": "x"}'),
        ({"type": "array", "items": {"type": "number"}}, "[1, -2.5, 3e7]"),
    ],
)
def test_what_validates_can_be_generated(schema, text: str):
    assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    assert accepted(Grammar.json_schema(schema), text)


@pytest.mark.parametrize("text", ['{"a":3}', '{ "a": 3}', '{"a": 3,  "b": 1}', '{"a": 3}\n'])
def test_white_space_is_fixed(text: str):
    assert not accepted(Grammar.json_schema(MAP), text)
    assert not accepted(Grammar.json_object(), text)
