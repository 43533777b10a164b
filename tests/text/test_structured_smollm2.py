"""SmolLM2, real weights, held to grammars: what it writes validates and makes sense."""

import json
import re

import jsonschema
import pytest
from hypothesis import given, settings

import kvcast
from kit.small_tokenizers import user
from kit.text_models import SCHEMAS, same
from kit.tool_templates import WEATHER
from kvcast.chat.output_parsers import ToolCall
from kvcast.server.prompts import tools_of

pytestmark = pytest.mark.slow
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["person", "place"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
ASKED = "Extract as JSON: Elizabeth Bennet is 20 years old."


@pytest.fixture(scope="module")
def model():
    return kvcast.load("demo-chat", runtime="onnx", quantize="none")


@given(schema=SCHEMAS)
@settings(deadline=None, max_examples=15)
def test_json_of_any_schema_validates(model, schema):
    texts = model.generate(
        "Write JSON.", chat=True, json_schema=schema, temperature=1.0, n=2, max_new_tokens=400
    )
    for text in texts:
        if text.finish_reason == "length":  # a second has as many digits as one likes
            assert '"format": "time"' in json.dumps(schema)
            continue
        jsonschema.Draft202012Validator(schema).validate(json.loads(text.text))


def test_a_fact_is_extracted(model):
    text = model.generate(ASKED, chat=True, json_schema=PERSON)
    assert json.loads(text.text) == {"name": "Elizabeth Bennet", "age": 20, "kind": "person"}


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tools_that_its_template_does_not_know_are_called(model, choice):
    tokens = model.chat_tokens(user("What is the weather in Nantes?"), tools=[WEATHER])
    tools = tools_of(model.tokenizer, [WEATHER], choice, parallel=True)
    text = model.generate(list(tokens), **tools.shape, max_new_tokens=200).text
    parser = tools.parser()
    parts = [*parser.push(text), *parser.finish()]
    calls = [part for part in parts if isinstance(part, ToolCall)]
    assert parts
    assert calls in ([], parts)
    assert calls or choice == "auto"
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), WEATHER["function"]["parameters"])


def test_beams_drafts_and_batches(model):
    kept = {"chat": True, "json_schema": PERSON}
    plain = model.generate(ASKED, **kept)
    assert same(model.generate([ASKED, "x", "Who?"], **kept))[0] == same(plain)
    assert same(model.generate(ASKED, draft="ngram", **kept)) == same(plain)
    for text in model.generate(ASKED, beam=3, n=3, **kept):
        jsonschema.validate(json.loads(text.text), PERSON)


def test_regular_expressions(model):
    dates = model.generate(["Today is", "Born on"], regex=r"\d{4}-\d{2}-\d{2}", temperature=1.0)
    for text in dates:
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", text.text)
    answer = model.generate("Is Paris in France? Answer yes or no.", chat=True, regex="yes|no")
    assert answer.text in ("yes", "no")


def test_a_text_in_one_piece_has_the_tokens_that_the_tokenizer_gives_it(model):
    text = '{"first_name": "x", "identification": 1}'
    generated = model.generate("a", json_schema={"const": json.loads(text)})
    assert generated.text == text
    forced = model.tokenizer.encode(text)
    assert list(generated.tokens) == forced
