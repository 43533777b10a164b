"""A text that ends by itself is what its grammar says, whatever the model and options."""

import json
import re
from functools import partial
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import tool_templates
from kit.errors import one_line
from kit.small_tokenizers import byte_level, text_files
from kit.text_models import KINDS, SCHEMAS, model_of, text_model, word_piece_model
from kvcast import Grammar
from kvcast.chat.tool_calls import HERMES, LLAMA, MISTRAL_NAMED, ToolForm
from kvcast.decoding.speculative_decoding import Ledger
from kvcast.errors import UsageError
from kvcast.text import structured_output
from kvcast.tokenizers.opening import open_text
from text.test_generate import same

OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.3, "n": 2, "top_k": 40},
    {"temperature": 0.7, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3},
    {"beam": 3, "n": 2, "repetition_penalty": 1.2},
]
OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 4}, "b": {"enum": [1, "é", None]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TELEPHONE = r"\(\d{3}\) \d{3}-\d{4}|ende?"


@pytest.fixture(autouse=True, scope="module")
def without_trial():
    """Nothing here harms a process, and a child for each schema would take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structured_output, "_try_in_child", lambda _: None)
        yield


def flat(texts: Any) -> list[Any]:
    return [part for text in texts for part in flat(text)] if isinstance(texts, list) else [texts]


def assert_valid(text: Any, schema: Any) -> None:
    assert text.finish_reason == "stop", text.text
    jsonschema.Draft202012Validator(schema).validate(json.loads(text.text))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
def test_json_validates(kind: str, options: dict[str, Any]):
    texts = flat(model_of(kind).generate(["hello", "x y"], json_schema=OBJECT, **options))
    # Of a UniLM's texts, those that are there already are left out.
    assert kind == "unilm" or len(texts) == 2 * options.get("n", 1)
    for text in texts:
        assert_valid(text, OBJECT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
def test_regular_expressions_match_the_whole_text(kind: str, options: dict[str, Any]):
    for text in flat(model_of(kind).generate("hello", regex=TELEPHONE, **options)):
        assert text.finish_reason == "stop"
        assert re.fullmatch(TELEPHONE, text.text)
        assert text.text.isascii()  # a digit is one of ten


@pytest.mark.parametrize("kind", KINDS)
def test_leading_spaces_of_a_text_are_its_own(kind: str):
    """Vocabularies of SentencePiece lose one before a text's first word."""
    for options in OPTIONS:
        for text in flat(model_of(kind).generate("hello", regex=" {2}a|   b", **options)):
            assert text.text in ("  a", "   b")


@given(schema=SCHEMAS, kind=st.sampled_from(KINDS), seed=st.integers(0, 3))
@settings(deadline=None, max_examples=25)
def test_json_of_any_schema_validates(schema: Any, kind: str, seed: int):
    check_schema(schema, kind, seed)


@pytest.mark.parametrize(
    "examples",
    [pytest.param(150, marks=pytest.mark.slow), pytest.param(3000, marks=pytest.mark.soak)],
)
def test_json_of_many_schemas_validates(examples: int):
    @given(schema=SCHEMAS, kind=st.sampled_from(KINDS), seed=st.integers(0, 3))
    @settings(deadline=None, max_examples=examples)
    def validates(schema: Any, kind: str, seed: int) -> None:
        check_schema(schema, kind, seed)

    validates()


def check_schema(schema: Any, kind: str, seed: int) -> None:
    model = model_of(kind, seed)
    for options in OPTIONS[1:]:
        for text in flat(
            model.generate("hello", json_schema=schema, max_new_tokens=900, **options)
        ):
            assert_valid(text, schema)


@pytest.mark.parametrize("kind", ["byte-level", "llama", "byt5"])
def test_any_object_parses_if_it_ends(kind: str):
    texts = model_of(kind).generate(["a", "b", "c"] * 8, json_object=True, temperature=1.0)
    ended = [text for text in texts if text.finish_reason == "stop"]
    assert ended
    assert all(isinstance(json.loads(text.text), dict) for text in ended)


def test_lark():
    model = model_of("byte-level")
    lark = 'start: NUMBER (" + " NUMBER)*\nNUMBER: /[0-9]{1,3}/\n'
    assert re.fullmatch(r"\d{1,3}( \+ \d{1,3})*", model.generate("x", lark=lark).text)


TEMPLATES = {
    HERMES: tool_templates.HERMES,
    LLAMA: tool_templates.LLAMA,
    MISTRAL_NAMED: tool_templates.MISTRAL_NAMED,
}


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("form", TEMPLATES)
def test_calls_of_tools_are_read_again(form: ToolForm, special: bool):
    made = byte_level()
    if special:
        made.add_special_tokens(list(form.markers))
    model = text_model(open_text(text_files(made, TEMPLATES[form])))
    assert model.tokenizer.tool_form == form
    nothing = {"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "maxProperties": 0}}}
    schemas = {"get": OBJECT, "stop": nothing}
    tools = [{"function": {"name": name, "parameters": schema}} for name, schema in schemas.items()]
    markers = model.tokenizer.control_tokens(form.markers)
    assert bool(markers) == special
    grammar = Grammar.tool_call(form.enforced(tools), markers)
    for text in model.generate(list("abcdef"), grammar=grammar, temperature=1.0):
        assert text.finish_reason == "stop"
        parser = form.parser(schemas)
        [call] = [*parser.push(text.text), *parser.finish()]
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])
        for marker, token in markers.items():  # never spelt with other tokens
            assert text.text.count(marker) == text.tokens.count(token)


@pytest.mark.parametrize("kind", ["byte-level", "llama", "spiece"])
def test_a_text_depends_on_no_neighbour(kind: str):
    prompts = ["hello", "x y", "a", "once upon"]
    for options in ({"temperature": 0.9}, {"beam": 2}):
        kept = {"json_schema": OBJECT, "logprobs": True, **options}
        together = model_of(kind).generate(prompts, batch=3, **kept)
        alone = [model_of(kind).generate(prompt, batch=1, **kept) for prompt in prompts]
        assert same(together) == same(alone)


def test_drafts_change_no_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Ledger, "affordable", lambda _ledger, _kind, most: min(most, 4))
    monkeypatch.setattr(Ledger, "can_begin", lambda _ledger: True)
    schema = {"type": "array", "items": OBJECT, "minItems": 4, "maxItems": 4}
    for options in ({}, {"temperature": 0.6}):
        kept = {"json_schema": schema, "max_new_tokens": 2000, "logprobs": True, **options}
        plain = model_of("byte-level").generate('{"a": "b", "b": 1}', **kept)
        drafted = model_of("byte-level").generate('{"a": "b", "b": 1}', draft="ngram", **kept)
        assert same(drafted) == same(plain)
        assert_valid(drafted, schema)
        assert drafted.draft.accepted > 0


@pytest.mark.parametrize("options", [{}, {"beam": 2}])
def test_logprobs_are_the_models_own(options: dict[str, Any]):
    model = model_of("byte-level")
    text = model.generate("hello", regex="[0-9]{5}", logprobs=True, **options)
    prompt = tuple(model.tokenizer.encode("hello"))
    for i, (token, logprob) in enumerate(zip(text.tokens, text.logprobs, strict=True)):
        logits_v = model.runtime.model((*prompt, *text.tokens[:i]))[-1].astype(float)
        assert logprob == pytest.approx(logits_v[token] - np.log(np.exp(logits_v).sum()), abs=1e-4)


def test_a_complete_text_needs_no_further_step():
    model = model_of("byte-level")
    model.runtime.calls.clear()
    text = model.generate("hello", regex="[0-9]", max_new_tokens=1)
    assert (len(text.tokens), text.finish_reason) == (1, "stop")
    assert len(model.runtime.calls) == 1


def test_a_text_that_could_go_on_ends_by_an_end_token():
    texts = model_of("byte-level").generate(list("abcdefghijkl"), regex="a*b?", temperature=2.0)
    assert {"", "b"} <= {text.text for text in texts}
    assert all(re.fullmatch("a*b?", text.text) for text in texts)


def test_what_has_no_room_is_cut_for_its_length():
    for options in ({}, {"temperature": 1.0, "n": 2}, {"beam": 2}):
        for text in flat(
            model_of("llama").generate("a", regex="[0-9]{50}", max_new_tokens=7, **options)
        ):
            assert text.finish_reason == "length"
            assert re.fullmatch("[0-9]{1,49}", text.text)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "n": 2}, {"beam": 2}])
def test_where_no_token_leads_on_a_text_is_cut(options: dict[str, Any]):
    model = model_of("unspelled")
    for text in flat(model.generate("a", regex="ab?é", **options)):
        assert text.finish_reason == "length"
        assert re.fullmatch("ab?", text.text)


def test_a_stop_string_cuts_a_text():
    text = model_of("byte-level").generate("a", regex="[0-9]{3}-[0-9]{3}", stop="-")
    assert re.fullmatch("[0-9]{3}", text.text)
    assert text.finish_reason == "stop"


def test_a_session_and_a_stream_keep_a_grammar():
    model = model_of("llama")
    pieces = model.stream("hello", json_schema=OBJECT)
    assert "".join(pieces) == pieces.result.text == model.generate("hello", json_schema=OBJECT).text
    session = model.session("hello")
    assert_valid(session.generate("x", grammar=Grammar.json_schema(OBJECT)), OBJECT)


def test_word_pieces_are_refused():
    with pytest.raises(UsageError, match="word pieces"):
        word_piece_model().generate("今天", regex="a")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"regex": "(a"}, "regex cannot be used: unclosed group"),
        ({"regex": "()"}, "regex allows nothing but an empty text"),
        ({"regex": r"(a)\1"}, "regex cannot be used: backreferences are not supported"),
        ({"lark": "start: b"}, 'lark cannot be used: at 1(8): unknown name: "b"'),
        ({"json_schema": {"not": {}}}, 'json_schema cannot be used: Unimplemented keys: ["not"]'),
        ({"json_schema": {"minimum": 3, "maximum": 1, "type": "integer"}}, "Unsatisfiable schema"),
        ({"json_schema": {"$ref": "#"}}, "no token of this model begins what it allows"),
        ({"json_schema": {"$ref": "file:///etc/passwd"}}, "does not fetch"),
        ({"json_schema": {"minimum": 10**400}}, "number"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_one_line(given: dict[str, Any], problem: str):
    generate = partial(model_of("byte-level").generate, **given)
    assert problem in one_line(UsageError, generate, "a")
