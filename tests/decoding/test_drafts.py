"""With drafts a model writes what it writes without, on every runtime; other drafts are refused.

Drafts are checked whenever there are any, whether that pays or not.
"""

from dataclasses import replace
from typing import Any

import pytest

from kit.dimensions import (
    DSA,
    GEMMA3,
    GRANITE4,
    KIMI,
    LFM2,
    LLAMA,
    MISTRAL,
    MIXED,
    QWEN3_5,
    SIMBERT,
    SMALL_T5,
    YOUTU,
)
from kit.letters import Letters
from kit.marks import slow
from kit.models import opened
from kit.scripted_runtimes import RecomputingRuntime
from kit.small_tokenizers import Numbers, random_sources
from kvcast.decoding import drafters
from kvcast.decoding.speculative_decoding import Ledger
from kvcast.errors import UsageError
from kvcast.text.model import TextModel
from kvcast.text.text2text import T5Model, UnilmModel

CASES = [
    (GEMMA3, "onnx"),
    (QWEN3_5, "native"),
    slow(YOUTU, "native"),
    slow(DSA, "native"),
    slow(KIMI, "native"),
    slow(GRANITE4, "native"),
    slow(LFM2, "native"),
    slow(QWEN3_5, "onnx"),
    slow(LLAMA, "eager"),
    slow(MISTRAL, "eager"),
    slow(MISTRAL, "onnx"),
    slow(MIXED, "executorch"),
    # As the cache contract's, since compiling takes long.
    slow(replace(GEMMA3, windows=(5, None)), "aoti"),
]
CHOICES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "top_k": 3, "repetition_penalty": 0.9},
    {"temperature": 0.05, "n": 2, "min_new_tokens": 9},
]
# So long that rings turn, ONNX Runtime's too: windows and what is to spare are 130 to 140.
PROMPTS = ["once upon a time. once upon a time. no. ", "ab" * 55]


@pytest.fixture
def reckless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "affordable", lambda _ledger, _kind, most: min(most, 3))
    monkeypatch.setattr(Ledger, "can_begin", lambda _ledger: True)
    monkeypatch.setattr(drafters, "SURE", 0.0)


def flat(texts: Any) -> list[Any]:
    return [part for text in texts for part in (flat(text) if isinstance(text, list) else [text])]


def assert_same(model: Any, prompts: Any, *drafts: Any, **options: Any) -> list[tuple[int, int]]:
    """Write without drafts, and with each kind; return how many were checked, and accepted."""
    options = {"max_new_tokens": 24, "logprobs": True, **options}
    plain = flat(model.generate(prompts, **options))
    counts = []
    for draft in drafts:
        drafted = flat(model.generate(prompts, draft=draft, **options))
        assert [text.tokens for text in drafted] == [text.tokens for text in plain]
        assert [text.text for text in drafted] == [text.text for text in plain]
        for text, other in zip(drafted, plain, strict=True):
            assert text.logprobs == pytest.approx(other.logprobs, abs=1e-3)
            assert text.finish_reason == other.finish_reason
            assert other.draft is None
        checked = [text.draft for text in drafted]
        counts.append(
            (sum(text.proposed for text in checked), sum(text.accepted for text in checked))
        )
    return counts


@pytest.mark.usefixtures("reckless")
@pytest.mark.parametrize(("dimensions", "runtime"), CASES)
def test_texts_are_the_same_with_drafts(dimensions, runtime):
    model = TextModel(opened(dimensions, runtime=runtime), Letters(), dimensions)
    itself = TextModel(opened(dimensions, runtime=runtime), Letters(), dimensions)
    other = replace(LLAMA, windows=(None,), vocab_size=dimensions.vocab_size)
    another = TextModel(opened(other, runtime="eager"), Letters(), other)
    counts = [
        assert_same(model, PROMPTS, "ngram", itself, another, batch=1, **each) for each in CHOICES
    ]
    _, greedy, wrong = counts[0]
    assert greedy[1] > greedy[0] / 2 > 0
    assert wrong[0] > wrong[1]


@pytest.mark.usefixtures("reckless")
def test_a_batch_is_the_same_with_drafts_and_they_begin_when_one_text_is_left():
    model = TextModel(opened(LLAMA, runtime="eager"), Letters(), LLAMA)
    itself = TextModel(opened(LLAMA, runtime="eager"), Letters(), LLAMA)
    [(proposed, accepted)] = assert_same(model, ["a.", "no", *PROMPTS], itself, batch=3)
    assert proposed
    assert accepted


@pytest.mark.usefixtures("reckless")
def test_a_stream_and_a_session_take_drafts():
    model = TextModel(opened(LLAMA, runtime="eager"), Letters(), LLAMA)
    expected = model.generate(PROMPTS[0], max_new_tokens=30)
    pieces = model.stream(PROMPTS[0], max_new_tokens=30, draft="ngram")
    assert "".join(pieces) == expected.text
    assert pieces.result.tokens == expected.tokens
    assert pieces.result.draft.proposed
    session = model.session(PROMPTS[0])
    drafted = session.generate("", max_new_tokens=30, draft=model)
    assert drafted.tokens == expected.tokens
    assert drafted.draft.accepted


@pytest.mark.usefixtures("reckless")
@pytest.mark.parametrize("runtime", ["eager", slow("onnx")])
@pytest.mark.parametrize("family", ["t5", "unilm"])
def test_text_to_text_models_take_drafts(family, runtime):
    kind, dimensions = {"t5": (T5Model, SMALL_T5), "unilm": (UnilmModel, SIMBERT)}[family]
    tokenizer = Numbers(dimensions.vocab_size, end=1)
    model, itself = (
        kind(opened(dimensions, runtime=name), tokenizer, dimensions) for name in (runtime, "eager")
    )
    sources = random_sources(3, dimensions.vocab_size, 9)
    options = {"max_new_tokens": 12, "batch": 1}
    _, (proposed, accepted) = assert_same(model, sources, "ngram", itself, **options)
    assert accepted > proposed / 2 > 0


def test_a_draft_of_another_kind_or_vocabulary_is_refused():
    model = TextModel(RecomputingRuntime(None), Letters(), LLAMA)
    t5 = T5Model(RecomputingRuntime(None), Letters(), SMALL_T5)
    ids = TextModel(RecomputingRuntime(None), Numbers(LLAMA.vocab_size, end=1), LLAMA)
    for draft, options, words in (
        (t5, {}, "draft is a T5 model and this one is decoder-only"),
        (ids, {}, "draft has another vocabulary"),
        ("demo-chat", {}, r"draft must be ngram, or a model that kvcast\.load ret"),
        (7, {}, r"draft must be ngram, or a model .* not 7"),
        ("ngram", {"beam": 2}, "draft needs a beam of 1"),
    ):
        with pytest.raises(UsageError, match=words):
            model.generate("a", draft=draft, **options)
