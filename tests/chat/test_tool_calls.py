"""Reasoning and tool calls are parsed in each form of open models, however a text is split."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chat.test_chat import GEMMA, LLAMA_3
from kit import tool_templates
from kit.small_tokenizers import byte_level, text_files
from kit.tool_templates import CLOCK, WEATHER
from kvcast.chat.output_parsers import ReasoningParser, ToolCall
from kvcast.chat.tool_calls import (
    HERMES,
    IN_WORDS,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    ToolForm,
    form_of,
    lark,
)
from kvcast.errors import UsageError
from kvcast.tokenizers.opening import open_text

NAMES = ("get_weather", "now")
NANTES = ToolCall(name="get_weather", arguments='{"city": "Nantes"}')
TRICKY = ToolCall(
    name="get_weather", arguments='{"city": "a \\"}\\n</tool_call> ] [TOOL_CALLS] \\\\", "d": [{}]}'
)
NOW = ToolCall(name="now", arguments="{}")


def hermes(*calls: ToolCall) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{c.name}", "arguments": {c.arguments}}}\n</tool_call>'
        for c in calls
    )


def mistral(*calls: ToolCall) -> str:
    listed = (
        f'{{"name": "{c.name}", "arguments": {c.arguments}, "id": "abcdefghi"}}' for c in calls
    )
    return f"[TOOL_CALLS] [{', '.join(listed)}]"


def mistral_named(*calls: ToolCall) -> str:
    return "".join(f"[TOOL_CALLS]{c.name}[ARGS]{c.arguments}" for c in calls)


def mistral_with_ids(*calls: ToolCall) -> str:
    return "".join(f"[TOOL_CALLS]{c.name}[CALL_ID]abcdefghi[ARGS]{c.arguments}" for c in calls)


def llama(*calls: ToolCall) -> str:
    return "; ".join(f'{{"name": "{c.name}", "parameters": {c.arguments}}}' for c in calls)


def llama_tagged(*calls: ToolCall) -> str:
    return "<|python_tag|>" + llama(*calls)


WRITERS = [
    (HERMES, hermes),
    (MISTRAL, mistral),
    (MISTRAL_NAMED, mistral_named),
    (MISTRAL_NAMED, mistral_with_ids),
    (LLAMA, llama),
    (LLAMA, llama_tagged),
]
AFTER_CONTENT = [pair for pair in WRITERS if pair[1] is not llama]


def parsed(form: ToolForm, *pieces: str) -> list[str | ToolCall]:
    parser = form.parser(NAMES)
    parts: list[str | ToolCall] = []
    for said in (*map(parser.push, pieces), parser.finish()):
        for part in said:
            assert part != ""
            if parts and isinstance(part, str) and isinstance(parts[-1], str):
                parts[-1] += part
            else:
                parts.append(part)
    return parts


@pytest.mark.parametrize(("form", "write"), WRITERS)
@pytest.mark.parametrize("calls", [(NANTES,), (NOW, TRICKY), (TRICKY, NANTES, NOW)])
def test_calls_are_read_whole_and_letter_by_letter(form: ToolForm, write: Any, calls: Any):
    text = write(*calls)
    assert parsed(form, text) == parsed(form, *text) == list(calls)


def test_a_call_may_lack_the_tags_that_its_template_asks_for():
    text = hermes(NANTES).removeprefix("<tool_call>").removesuffix("</tool_call>").strip()
    assert text.startswith("{")
    assert parsed(HERMES, text) == parsed(HERMES, *text) == [NANTES]


@pytest.mark.parametrize(("form", "write"), AFTER_CONTENT)
def test_content_before_a_call_is_content(form: ToolForm, write: Any):
    text = "Let me < see [TOOL. \n\n" + write(NANTES, NOW)
    for pieces in ([text], text):
        assert parsed(form, *pieces) == ["Let me < see [TOOL.", NANTES, NOW]


@given(data=st.data())
def test_however_a_text_is_split_it_says_the_same(data: st.DataObject):
    form, write = data.draw(st.sampled_from(WRITERS))
    words = st.sampled_from(
        [
            *("Hello", " ", "\n", "{", "}", "[", '"', "<", "</tool_call>", "[ARGS]", '{"name": 1}'),
            *(form.opening, write(NANTES), write(TRICKY, NOW), '{"name": "now"', "now", "[]", ";"),
        ]
    )
    text = "".join(data.draw(st.lists(words, max_size=8)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=9)))
    bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
    whole = parsed(form, text)
    assert parsed(form, *(text[a:b] for a, b in bounds)) == parsed(form, *text) == whole


@given(text=st.text(st.sampled_from('ab <tool_cl>[TOOL_CALLS]{}"|python\n')))
def test_what_is_no_call_is_the_content_as_it_was(text: str):
    for form, _ in WRITERS:
        assert "".join(map(str, parsed(form, *text))) == text


NO_CALLS = [
    (HERMES, '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'),
    (HERMES, '<tool_call>\n{"name": "now", "arguments": [1]}\n</tool_call>'),
    (HERMES, '<tool_call>\n{"name": "now", "arguments": {"a": NaN}}\n</tool_call>'),
    (HERMES, '<tool_call>\n{"name": "now", "arguments": {"a": 1e999}}\n</tool_call>'),
    (HERMES, '<tool_call>\n{"name": "now", "argu'),
    (HERMES, "<tool_call>now()</tool_call> is " + "long " * 99),
    (HERMES, "<tool_call>" + '{"a":' * 10**5 + "}" * 10**5),
    (HERMES, '{"name": "Ishmael", "age": 33} is JSON'),
    (HERMES, 'Well: {"name": "now", "arguments": {}}'),
    (MISTRAL, "[TOOL_CALLS] none"),
    (MISTRAL, '[TOOL_CALLS] [{"name": "now"}, {"name": "unknown"}]'),
    (MISTRAL_NAMED, "[TOOL_CALLS]unknown[ARGS]{}"),
    (LLAMA, '{"name": "Ishmael", "age": 33} is JSON'),
    (LLAMA, '{"answer": {"name": "now", "parameters": {}}}'),
    (LLAMA, 'Well: {"name": "now", "parameters": {}}'),
    (LLAMA, "<|python_tag|>print({1: 2})"),
]


@pytest.mark.parametrize(("form", "text"), NO_CALLS)
def test_what_only_looks_like_a_call_is_content(form: ToolForm, text: str):
    assert parsed(form, text) == [text]
    if len(text) < 10**4:
        assert parsed(form, *text) == [text]


def test_content_does_not_wait_for_what_cannot_be_a_call():
    parser = HERMES.parser(NAMES)
    assert parser.push("I am ") == ["I am"]
    assert parser.push("here <") == [" here"]
    assert parser.push("tool") == []
    assert parser.push("s>.") == [" <tools>."]
    assert parser.finish() == []


def test_a_call_is_told_as_soon_as_it_is_complete():
    parser = HERMES.parser(NAMES)
    *most, last = hermes(NANTES).removesuffix("\n</tool_call>")
    assert [parser.push(letter) for letter in most] == [[]] * len(most)
    assert parser.push(last) == [NANTES]
    assert parser.push("\n</tool_") == []
    assert parser.finish() == []


@pytest.mark.parametrize(
    "written",
    [
        '{"name": "now"}',
        '{"name": "now", "arguments": null}',
        '{"name": "now", "arguments": ""}',
        '{"name": "now", "arguments": "{}"}',
        '{"parameters": {}, "name": "now"}',
        '{"type": "function", "name": "now", "parameters": {}}',
    ],
)
def test_arguments_may_be_missing_or_text(written: str):
    assert parsed(HERMES, f"<tool_call>{written}</tool_call>") == [NOW]
    assert parsed(LLAMA, written) == [NOW]
    assert parsed(MISTRAL, f"[TOOL_CALLS][{written}]") == [NOW]
    assert parsed(MISTRAL, f"[TOOL_CALLS]{written}") == [NOW]


def test_long_arguments_are_looked_at_once():
    parser = HERMES.parser(NAMES)
    assert parser.push('<tool_call>{"name": "now", "arguments": {"a": "') == []
    for _ in range(20_000):
        assert parser.push("[{ five }] ") == []
    [call] = parser.push('"}}')
    assert len(json.loads(call.arguments)["a"]) == 220_000


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (tool_templates.HERMES, HERMES),
        (tool_templates.MISTRAL, MISTRAL),
        (tool_templates.MISTRAL_NAMED, MISTRAL_NAMED),
        (tool_templates.LLAMA, LLAMA),
        (tool_templates.LLAMA.replace('"', '\\"'), LLAMA),
        (tool_templates.CODER, None),
        (tool_templates.HERMES.replace("tool_call>", "|tool_call|>"), None),
        (LLAMA_3, None),
        (GEMMA, None),
        (tool_templates.NO_TOOLS, None),
    ],
)
def test_the_template_says_which_form_a_model_has(template: str, form: ToolForm | None):
    assert form_of(template) is form


def test_a_tokenizer_knows_the_form_or_says_why_not():
    def tokenizer(template: str | None) -> Any:
        return open_text(text_files(byte_level(), template))

    assert tokenizer(tool_templates.HERMES).tool_form is HERMES
    assert tokenizer(GEMMA).tool_form is IN_WORDS
    with pytest.raises(UsageError, match="in a form that kvcast does not know"):
        _ = tokenizer(LLAMA_3).tool_form
    with pytest.raises(UsageError, match="no chat template"):
        _ = tokenizer(None).tool_form


def test_markers_that_are_special_tokens_are_text_of_an_answer():
    made = byte_level()
    made.add_special_tokens(["[TOOL_CALLS]", "<|python_tag|>"])
    ours = open_text(text_files(made, tool_templates.MISTRAL))
    special = {"[TOOL_CALLS]": made.token_to_id("[TOOL_CALLS]")}
    assert ours.control_tokens(["[TOOL_CALLS]", "[ARGS]", "user"]) == special
    tokens = made.encode(mistral(NANTES), add_special_tokens=False).ids
    assert special["[TOOL_CALLS]"] in tokens
    stream = ours.stream()
    assert parsed(MISTRAL, *map(stream.push, tokens), stream.finish()) == [NANTES]
    # Other models' markers stay special, and users cannot write any.
    assert ours.decode([made.token_to_id("<|python_tag|>"), 2]) == ""
    said = ours.encode_chat([{"role": "user", "content": mistral(NANTES)}])
    assert special["[TOOL_CALLS]"] not in said


@pytest.mark.parametrize("form", [HERMES, MISTRAL, MISTRAL_NAMED, LLAMA])
def test_an_enforced_call_is_one_that_is_read(form: ToolForm):
    weather, clock = form.enforced([WEATHER, CLOCK])
    assert weather.schema == WEATHER["function"]["parameters"]
    assert parsed(form, weather.prefix, NANTES.arguments, weather.suffix) == [NANTES]
    assert parsed(form, clock.prefix, "{}", clock.suffix) == [NOW]
    assert all(marker in form.markers for marker in weather.markers)


@pytest.mark.parametrize("form", [HERMES, MISTRAL, MISTRAL_NAMED, LLAMA])
def test_the_grammar_takes_calls_and_nothing_else(form: ToolForm):
    llguidance = pytest.importorskip("llguidance")
    huggingface = pytest.importorskip("llguidance.hf")
    made = byte_level()
    made.add_special_tokens(["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"])
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")
    vocabulary = huggingface.from_tokenizer(theirs)
    special = open_text(text_files(made, tool_templates.MISTRAL)).control_tokens(form.markers)
    grammar = lark(form.enforced([WEATHER, CLOCK]), special)

    def takes(text: str) -> bool:
        matcher = llguidance.LLMatcher(vocabulary, grammar)
        assert not matcher.get_error()
        tokens = made.encode(text, add_special_tokens=False).ids
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    weather, clock = form.enforced([WEATHER, CLOCK])
    assert takes(weather.prefix + NANTES.arguments + weather.suffix)
    assert takes(clock.prefix + "{}" + clock.suffix)
    assert not takes(weather.prefix + '{"days": 1}' + weather.suffix)
    assert not takes("Hello")
    assert not takes(weather.prefix + NANTES.arguments[:-1])


ANSWER = '{"response": "Say \\"hi\\"\\n\\ud83d\\ude42 \\\\ ü"}'
CALL_IN_WORDS = '{"tool_call": {"name": "now", "arguments": {"a": "}"}}}'


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (ANSWER, ['Say "hi"\n🙂 \\ ü']),
        (ANSWER[:-7], ['Say "hi"\n🙂']),
        (ANSWER[:-9], ['Say "hi"\n']),
        (f" {ANSWER}\nmore", ['Say "hi"\n🙂 \\ ü']),
        (CALL_IN_WORDS, [ToolCall(name="now", arguments='{"a": "}"}')]),
        ('{"response": 5}', ['{"response": 5}']),
        ('{"resp', ['{"resp']),
        ("Plain {text}.", ["Plain {text}."]),
        ('{"tool_call": {"name": "other"}}', ['{"tool_call": {"name": "other"}}']),
    ],
)
def test_answers_and_calls_in_words_are_read_however_they_come(text, parts, size):
    parser = IN_WORDS.parser(["now"])
    told = [p for i in range(0, len(text), size) for p in parser.push(text[i : i + size])]
    told += parser.finish()
    joined = "".join(p for p in told if isinstance(p, str))
    assert [*([joined] if joined else []), *(p for p in told if isinstance(p, ToolCall))] == parts


TEXTS = {
    "<think>\nfirst\n\nthen\n</think>\n\nThe answer": ("first\n\nthen", "The answer"),
    "  <think>a</think>b<think>c</think>": ("a", "b<think>c</think>"),
    "<think></think>only this": ("", "only this"),
    "<think>never ends </thin": ("never ends </thin", ""),
    "<think>a < b </ c </think>d": ("a < b </ c", "d"),
    " an answer, no <think>": ("", " an answer, no <think>"),
    "<thin air": ("", "<thin air"),
    "  ": ("", "  "),
    "<thi": ("", "<thi"),
    "": ("", ""),
}


def parted(parser: ReasoningParser, pieces: list[str]) -> tuple[str, str]:
    said = [parser.push(piece) for piece in pieces] + [parser.push("", last=True)]
    return "".join(part for part, _ in said), "".join(part for _, part in said)


@pytest.mark.parametrize("text", TEXTS)
@given(data=st.data())
def test_reasoning_is_what_stands_between_its_marks(text: str, data: st.DataObject):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parted(ReasoningParser(), pieces) == TEXTS[text]


def test_a_prompt_may_have_begun_the_reasoning():
    for pieces in (["\na", "b\n</th", "ink>\nc"], ["\nab\n</think>\nc"]):
        assert parted(ReasoningParser(begun=True), pieces) == ("ab", "c")
    assert parted(ReasoningParser(begun=True), ["a "]) == ("a", "")


def test_what_is_certain_is_told_at_once():
    parser = ReasoningParser()
    assert parser.push("<think>so ") == ("so", "")
    assert parser.reasons
    assert parser.push("far </") == (" far", "")
    assert parser.push("think> an") == ("", "an")
    assert not parser.reasons
    assert parser.push(" answer ") == ("", " answer ")
