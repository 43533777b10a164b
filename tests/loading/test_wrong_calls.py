"""Whatever a caller passes wrongly is a KvcastError of one line."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvcast
from kvcast import KvcastError
from kvcast.loading.params import ExportParams, LoadParams
from kvcast.options import shown
from kvcast.speech.params import LiveParams, TranscribeParams
from kvcast.text.params import ChatParams, PromptParams

pytestmark = pytest.mark.usefixtures("here")
RECORDING = "tests/data/spoken.ogg"
USER = {"role": "user", "content": "a"}
NOISE = np.random.default_rng(0).normal(0, 0.1, 160).astype(np.float32)

JUNK = [
    *(None, True, -1, 0.5, float("nan"), "", b"", b"ab", [], (), {}, set(), object(), len),
    *([None], ["", 1], [1.5], {"a": 1}, [[]], range(0), np.float32(0.5), np.datetime64("2020")),
    *(np.array([]), np.zeros((2, 2, 2)), np.array(["a"]), np.array([None]), np.array(1)),
]
TEXT_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "generate": lambda m, x: m.generate(x, max_new_tokens=1),
    "stream": lambda m, x: list(m.stream(x, max_new_tokens=1)),
    "generate_each": lambda m, x: list(m.generate_each(x, max_new_tokens=1)),
}
CHAT_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    **TEXT_CALLS,
    "score": lambda m, x: m.score(x),
    "score, chunk": lambda m, x: m.score("a b", chunk=x),
    "session": lambda m, x: m.session(x),
    "session, chunk": lambda m, x: m.session("a", chunk=x),
    "messages": lambda m, x: m.chat_tokens(x),
    "message": lambda m, x: m.chat_tokens([x]),
    "role": lambda m, x: m.chat_tokens([{"role": x, "content": "a"}]),
    "content": lambda m, x: m.chat_tokens([{"role": "user", "content": x}]),
    "part": lambda m, x: m.chat_tokens([{"role": "user", "content": [x]}]),
    "tool_calls": lambda m, x: m.chat_tokens(
        [USER, {"role": "assistant", "content": "a", "tool_calls": x}]
    ),
    "tools": lambda m, x: m.chat_tokens([USER], tools=x),
    "tool": lambda m, x: m.chat_tokens([USER], tools=[x]),
}
SPEECH_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "transcribe": lambda m, x: m.transcribe(x).text,
    "transcribe_all": lambda m, x: [each.text for each in m.transcribe_all(x)],
    "align": lambda m, x: m.align(x, "a"),
    "align, text": lambda m, x: m.align(NOISE, x),
    "align, rate": lambda m, x: m.align(NOISE, "a", sampling_rate=x),
    "live, listener": lambda m, x: m.live(x),
    "feed": lambda m, x: m.live().feed(x),
    "save": lambda m, x: m.transcribe(NOISE).save(x),
    "width": lambda m, x: m.transcribe(NOISE).to_srt(max_line_width=x),
}
OTHER_CALLS: dict[str, Callable[[Any], Any]] = {
    "load": kvcast.load,
    "export_bundle": lambda x: kvcast.export_bundle("demo-t5", x),
    "json_schema": kvcast.Grammar.json_schema,
    "regex": kvcast.Grammar.regex,
    "lark": kvcast.Grammar.lark,
    "Engine": kvcast.Engine,
}


def refuse(call: Callable[[Any], object]) -> None:
    """Call with anything; no other error than a KvcastError is raised."""
    for junk in JUNK:
        said = "something"
        try:
            call(junk)
        except KvcastError as error:
            said = str(error)
        except Exception as error:
            pytest.fail(f"{shown(junk)}: {type(error).__name__}: {error}")
        assert said
        assert "\n" not in said, shown(junk)


@pytest.mark.parametrize("name", CHAT_CALLS)
def test_a_text_model_answers_anything_with_words(name, text):
    refuse(lambda junk: CHAT_CALLS[name](text, junk))


@pytest.mark.parametrize("name", TEXT_CALLS)
def test_a_model_of_sources_answers_anything_with_words(name, ranked):
    refuse(lambda junk: TEXT_CALLS[name](ranked, junk))
    refuse(ranked.embed)


@pytest.mark.parametrize("name", SPEECH_CALLS)
def test_a_speech_model_answers_anything_with_words(name, speech):
    refuse(lambda junk: SPEECH_CALLS[name](speech, junk))


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_functions_answer_anything_with_words(name):
    refuse(OTHER_CALLS[name])


@pytest.mark.parametrize("params", [LoadParams, ExportParams, TranscribeParams, LiveParams])
def test_options_answer_anything_with_words(params):
    for field in dataclasses.fields(params):
        refuse(lambda junk, name=field.name: params(**{name: junk}))


@pytest.mark.parametrize("params", [PromptParams, ChatParams])
def test_options_of_texts_answer_anything_with_words(params, text):
    for field in dataclasses.fields(params):
        if field.init:
            refuse(lambda junk, name=field.name: text.defaults.params(params, {name: junk}))


def test_an_engine_answers_anything_with_words(text):
    for name in ("rows", "cache_memory", "queue", "chunk"):
        refuse(lambda junk, name=name: kvcast.Engine(text, **{"rows": 1, name: junk}).close())
    with kvcast.Engine(text, rows=1) as engine:
        refuse(lambda junk: engine.submit(junk, max_new_tokens=1).result())
        refuse(lambda junk: engine.submit("a", max_new_tokens=1, deadline=junk).cancel())
        with pytest.raises(KvcastError, match="run takes a function, not None"):
            engine.run(None)


FILES = [
    (lambda speech: speech.transcribe("src").text, "src"),
    (lambda speech: speech.transcribe("missing.wav").text, "missing.wav"),
    (lambda speech: speech.transcribe(b"no audio").text, "the bytes"),
    (lambda speech: speech.transcribe(NOISE, sampling_rate=1).text, "sampling_rate"),
    (lambda speech: speech.transcribe(NOISE).save("/no/such/a.srt"), "/no/such"),
    (lambda speech: speech.transcribe_all(RECORDING), "a list of recordings"),
    (lambda _: kvcast.load("src"), "src"),
    (lambda _: kvcast.load("README.md"), "README.md"),
    (lambda _: kvcast.load("no/such/model/here"), "no/such/model/here"),
]


@pytest.mark.parametrize(("call", "says"), FILES)
def test_a_wrong_file_is_named(call, says, speech):
    with pytest.raises(KvcastError) as error:
        call(speech)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_options_by_position_and_names_of_other_libraries_are_answered(speech):
    for call in (lambda: speech.transcribe(RECORDING, "en"), lambda: kvcast.load("demo", "int8")):
        with pytest.raises(TypeError, match="takes options as keywords"):
            call()
    with pytest.raises(AttributeError, match=r"kvcast\.load opens every model"):
        _ = kvcast.load_model
