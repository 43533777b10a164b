"""Texts from a cache, on each runtime, are those of a model that computes all again each time."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kit.dimensions import GEMMA3, MISTRAL
from kit.letters import VOCAB, Letters
from kit.models import opened
from kit.scripted_runtimes import RecomputingRuntime
from kvcast.text.model import TextGeneration, TextModel

MODELS = {
    name: replace(dimensions, vocab_size=VOCAB)
    for name, dimensions in (("mistral", MISTRAL), ("gemma3", GEMMA3))
}
PROMPTS = ["hello there how are you?", "a", "once upon a time."]


@cache
def recomputing(name: str) -> TextModel:
    eager = opened(MODELS[name], runtime="eager")

    @cache
    def logits(written: tuple[int, ...]) -> NDArray[np.float32]:
        tokens = [np.array(written, np.int64)]
        every = range(len(written))
        logits_rsv, _ = eager.decode(tokens, eager.new_cache(1, len(written)), positions=every)
        return logits_rsv[0]

    return TextModel(RecomputingRuntime(logits), Letters(), MODELS[name])


@pytest.fixture(
    params=[
        ("gemma3", "eager"),
        ("mistral", "onnx"),
        # The cache contract holds every kind of layer on every runtime.
        pytest.param(("gemma3", "onnx"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def name(case: tuple[str, str]) -> str:
    return case[0]


@pytest.fixture
def model(case: tuple[str, str]) -> TextModel:
    name, runtime = case
    return TextModel(opened(MODELS[name], runtime=runtime), Letters(), MODELS[name])


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, list):
        for text, other in zip(actual, expected, strict=True):
            assert_same(text, other)
        return
    assert isinstance(expected, TextGeneration)
    assert (actual.text, actual.tokens) == (expected.text, expected.tokens)
    assert actual.finish_reason == expected.finish_reason
    np.testing.assert_allclose(actual.logprobs, expected.logprobs, atol=1e-4)


OPTIONS = [
    {},
    {"batch": 2, "chunk": 3},
    {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "chunk": 9},
    {"temperature": 1.1, "n": 4, "batch": 3, "chunk": 6},
    {"beam": 4, "n": 2, "length_penalty": 0.6},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_texts_are_those_of_a_model_without_a_cache(
    model: TextModel, name: str, options: dict[str, Any]
):
    expected = recomputing(name).generate(PROMPTS, max_new_tokens=12, logprobs=True, **options)
    assert_same(model.generate(PROMPTS, max_new_tokens=12, logprobs=True, **options), expected)


@pytest.mark.parametrize("options", OPTIONS)
def test_so_are_those_of_a_session(model: TextModel, name: str, options: dict[str, Any]):
    session = model.session("a prefix. ", chunk=4)
    rests = ["", "well then", "x"]
    expected = recomputing(name).generate(
        [f"a prefix. {rest}" for rest in rests], max_new_tokens=12, logprobs=True, **options
    )
    for _ in range(2):
        assert_same(session.generate(rests, max_new_tokens=12, logprobs=True, **options), expected)


class Endless(Letters):
    end_tokens = (-1,)


@pytest.mark.parametrize("case", [("mistral", "onnx")], indirect=True, ids="-".join)
def test_a_row_begins_again_after_the_prefix_when_its_rings_have_turned_round(
    model: TextModel, name: str
):
    options = {"n": 3, "batch": 1, "temperature": 1.0, "max_new_tokens": 60, "logprobs": True}
    expected, text = (
        TextModel(runner.runtime, Endless(), runner.dimensions).generate("once upon", **options)
        for runner in (recomputing(name), model)
    )
    assert {len(text.tokens) for text in expected} == {60}
    assert_same(text, expected)


def test_a_text_scored_in_one_pass_has_the_log_probabilities_it_was_generated_with(
    model: TextModel,
):
    text = model.generate(PROMPTS[0], max_new_tokens=30, temperature=0.8, logprobs=True)
    prompt = Letters().encode(PROMPTS[0])
    for chunk in (128, 5):
        scores = model.score([*prompt, *text.tokens], chunk=chunk)
        np.testing.assert_allclose(scores[len(prompt) - 1 :], text.logprobs, atol=1e-4)
