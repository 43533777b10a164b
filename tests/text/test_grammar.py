"""Grammars as users give them: what is refused and rewritten before a library is asked."""

import json
import re

import jsonschema
import pytest

from kvcast.chat.tool_calls import EnforcedCall
from kvcast.decoding.grammar import LONGEST, Grammar
from kvcast.decoding.params import SamplingParams
from kvcast.errors import UsageError
from kvcast.text.params import PromptParams


def kept(grammar: Grammar):
    """The schema in a grammar, without the library's options."""
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
    with pytest.raises(UsageError, match=re.escape(problem)) as raised:
        Grammar.json_schema(schema)
    assert "\n" not in str(raised.value)


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
def test_what_does_not_validate_is_not_written(schema, text: str):
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
def test_what_validates_can_be_written(schema, text: str):
    assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    assert accepted(Grammar.json_schema(schema), text)


@pytest.mark.parametrize("text", ['{"a":3}', '{ "a": 3}', '{"a": 3,  "b": 1}', '{"a": 3}\n'])
def test_white_space_is_fixed(text: str):
    assert not accepted(Grammar.json_schema(MAP), text)
    assert not accepted(Grammar.json_object(), text)
