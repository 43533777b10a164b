"""`UnilmModel`: cached targets equal recomputed ones, embeddings, and texts that are ranked."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kit.dimensions import ROFORMER, UNILMS
from kit.letters import END, VOCAB, Letters
from kit.models import opened, random_programs, whole_logits
from kit.scripted_runtimes import Model, Recomputed, RecomputingRuntime, random_model
from kit.small_tokenizers import Numbers, random_sources
from kit.text_models import refused
from kvcast.families.unilm import UnilmDimensions
from kvcast.runtimes.base import Float32, Int64
from kvcast.text.text2text import UnilmModel

CLS, SEP, MANY = 1, 2, ROFORMER.vocab_size
NUMBERS = Numbers(MANY, end=SEP, before=[CLS], after=[SEP])
SOURCES = random_sources(4, MANY, longest=12)


@dataclass
class RecomputingUnilm(RecomputingRuntime):
    """Keeps a source's tokens as negative numbers; an embedding counts a source's tokens."""

    def decode(
        self,
        tokens: Sequence[Int64],
        cache: Recomputed,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, Recomputed]:
        rows = list(range(len(cache.written)) if rows is None else rows)
        pairs = zip(rows, tokens, strict=True)
        marked = [new if cache.written[row] else -1 - new for row, new in pairs]
        assert all(len(new) == 1 or new[0] < 0 for new in marked), "a target is written in steps"
        return super().decode(marked, cache, rows, positions)

    def embed(self, sources: Sequence[Int64]) -> Float32:
        return np.stack([np.bincount(source, minlength=VOCAB) for source in sources], dtype="f4")


def recomputing(dimensions: Any) -> UnilmModel:
    programs = random_programs(dimensions)

    @cache
    def logits(written: tuple[int, ...]) -> NDArray[np.float32]:
        source = np.array([-1 - token for token in written if token < 0], np.int64)
        target = np.array([token for token in written if token >= 0], np.int64)
        return whole_logits(programs, source, target)

    runtime = RecomputingUnilm(logits)
    runtime.embed = opened(dimensions, runtime="eager").embed  # type: ignore[method-assign]
    return UnilmModel(runtime, NUMBERS, dimensions)


@cache
def model_of(dimensions: UnilmDimensions, runtime: str) -> UnilmModel:
    if runtime == "recomputing":
        return recomputing(dimensions)
    return UnilmModel(opened(dimensions, runtime=runtime), NUMBERS, dimensions)


# test_unilm_contract.py holds every model's cache on every runtime.
EVERYWHERE = [
    *((ROFORMER, runtime) for runtime in ("eager", "onnx")),
    *(
        pytest.param((dimensions, "onnx"), marks=pytest.mark.slow)
        for dimensions in UNILMS
        if dimensions != ROFORMER
    ),
]


@pytest.fixture(params=EVERYWHERE, ids=lambda case: f"{case[0].architecture}-{case[1]}")
def case(request: pytest.FixtureRequest) -> tuple[UnilmDimensions, str]:
    return request.param


@pytest.fixture
def model(case: tuple[UnilmDimensions, str]) -> UnilmModel:
    return model_of(*case)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3, "min_new_tokens": 5},
    {"temperature": 1.0, "top_k": 9},
    {"temperature": 1.0, "top_k": 9, "n": 4},
    {"beam": 4},
    {"beam": 3, "n": 2, "length_penalty": 0.6, "early_stopping": True, "min_new_tokens": 4},
    {"beam": 3, "repetition_penalty": 1.3},
]


def flat(texts: Any) -> list[Any]:
    return [
        text for several in texts for text in (several if isinstance(several, list) else [several])
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_texts_are_those_of_a_model_without_a_cache_whatever_the_batch(
    case: tuple[UnilmDimensions, str], model: UnilmModel, options: dict[str, Any]
):
    asked = {"max_new_tokens": 8, "logprobs": True} | options
    expected = flat(model_of(case[0], "recomputing").generate(SOURCES, **asked))
    for batch in (1, 4):
        each = model.generate(SOURCES, batch=batch, **asked)
        for text, other in zip(flat(each), expected, strict=True):
            assert (text.tokens, text.finish_reason) == (other.tokens, other.finish_reason)
            np.testing.assert_allclose(text.logprobs, other.logprobs, atol=1e-4)
            assert text.score == (other.score and pytest.approx(other.score, abs=1e-4))
            ranked = options.get("n", 1) > 1
            assert text.similarity == (
                pytest.approx(other.similarity, abs=1e-4) if ranked else None
            )


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "n": 3}, {"beam": 3}], ids=str)
def test_the_models_positions_are_filled_and_never_exceeded(
    model: UnilmModel, options: dict[str, Any]
):
    """Sources of a batch leave different room: the longest one ends first."""
    room = ROFORMER.max_positions
    sources = [" ".join(["7"] * (room - 8)), "8", " ".join(["9"] * (room - 6)), "9 10"]
    keywords = {"max_new_tokens": 9, "min_new_tokens": 9} | options
    texts = model.generate(sources, **keywords)
    for several, length in zip(texts, (6, 9, 4, 9), strict=True):
        for text in flat([several]):
            assert (len(text.tokens), text.finish_reason) == (length, "length")


def test_token_ids_are_ranked_as_text_is(model: UnilmModel):
    options = {"n": 4, "temperature": 1.0, "max_new_tokens": 6}
    by_text, by_ids = (
        model.generate(source, **options) for source in (SOURCES[0], NUMBERS.encode(SOURCES[0]))
    )
    assert [(text.tokens, text.similarity) for text in by_ids] == [
        (text.tokens, text.similarity) for text in by_text
    ]


def test_embeddings_are_the_runtimes(model: UnilmModel):
    expected = model.runtime.embed([np.array(NUMBERS.encode(text), np.int64) for text in SOURCES])
    embedded = model.embed(SOURCES)
    assert (embedded.dtype, embedded.shape) == (np.float32, (4, ROFORMER.width))
    np.testing.assert_array_equal(embedded, expected)
    np.testing.assert_allclose(model.embed(SOURCES[2]), expected[2:3], atol=1e-5)


class Sources(Letters):
    """Between two special tokens; blanks are forgotten, as BERT's tokenizer does."""

    def encode(self, text: str) -> list[int]:
        return [*super().encode(text.replace(" ", "")), END]


def letters_model(model: Model) -> UnilmModel:
    return UnilmModel(RecomputingUnilm(model), Sources(), ROFORMER)


def saying(*texts: str) -> Model:
    """One of these at each draw, or with a beam each of them."""
    spelled = [Letters(begins=False).encode(text) for text in texts]

    def logits(written: tuple[int, ...]) -> NDArray[np.float32]:
        target = [token for token in written if token >= 0]
        logits_v = np.full(VOCAB, -50.0, np.float32)
        for tokens in spelled:
            if tokens[: len(target)] == target:
                logits_v[[*tokens, END][len(target)]] = 5.0
        return np.stack([logits_v] * len(written))

    return logits


def test_texts_are_ranked_by_similarity_and_none_is_there_twice():
    model = letters_model(saying("abx", "xyz", "aby", "abc", "cab"))
    for source in ("abc", "a b c"):
        texts = model.generate(source, n=60, temperature=1.0, batch=16)
        # cab has the letters of abc, in another order.
        assert texts[0].text == "cab"
        assert {text.text for text in texts[1:3]} == {"abx", "aby"}
        assert texts[3].text == "xyz"
        assert len(texts) == 4
        assert [text.similarity for text in texts] == pytest.approx([1.0, 0.8, 0.8, 0.4])


class Forgetful(Sources):
    """Some written texts have no tokens when they are read, such as control characters."""

    def encode(self, text: str) -> list[int]:
        return [] if text == "xyz" else super().encode(text)


def test_a_text_without_tokens_is_like_nothing():
    model = UnilmModel(RecomputingUnilm(saying("abx", "xyz")), Forgetful(), ROFORMER)
    texts = model.generate("abc", n=20, temperature=1.0, batch=16)
    assert [text.text for text in texts] == ["abx", "xyz"]
    assert [text.similarity for text in texts] == pytest.approx([0.8, 0.0])


def test_beams_are_ranked_too():
    model = letters_model(saying("xyz", "abx", "abc", "cabab"))
    texts = model.generate("abc", n=4, beam=4)
    assert {text.text for text in texts} == {"xyz", "abx", "cabab"}
    similarities = [text.similarity for text in texts]
    assert similarities == sorted(similarities, reverse=True)
    assert texts[-1].text == "xyz"
    assert all(text.score is not None for text in texts)


def test_where_all_repeat_the_source_one_stays():
    answers = letters_model(saying("abc")).generate(["abc", "b"], n=3, temperature=1.0)
    assert [[text.text for text in texts] for texts in answers] == [["abc"], ["abc"]]
    assert answers[0][0].similarity == pytest.approx(1.0)


def test_one_text_is_not_ranked():
    assert letters_model(saying("abc")).generate("abc").similarity is None


def test_a_source_is_fed_in_one_call_and_computed_once_for_its_samples():
    model = letters_model(saying("abc", "bcd"))
    source = Sources().encode("hello there you")
    model.generate("hello there you", n=4, temperature=1.0, max_new_tokens=3)
    assert model.runtime.calls[0] == {0: [-1 - token for token in source]}
    assert all(len(fed) == 1 for call in model.runtime.calls[1:] for fed in call.values())


def test_what_cannot_be_served_is_refused_before_anything_is_computed():
    model = letters_model(random_model(VOCAB, 0))
    most = ROFORMER.max_positions
    too_long = "a" * (most - 2)
    for options, says in [
        ({"chat": True}, "leave out chat and system"),
        ({"chunk": 8}, "a source is read whole"),
        ({"beam": MANY + 1}, f"beam must be at most {MANY}, the model's tokens"),
    ]:
        refused(lambda options=options: model.generate("a", **options), says)
    for say in (model.generate, model.generate_each, model.embed):
        refused(lambda say=say: say([]), "give at least one")
        refused(lambda say=say: say(["a", " "]), "the source is empty: give at least one word")
    refused(lambda: model.generate(too_long), f"{most} tokens and the model takes {most - 1}")
    refused(lambda: model.embed(too_long + "a"), f"{most + 1} tokens and the model takes {most}")
    assert model.embed(too_long).shape == (1, VOCAB)
    assert not model.runtime.calls
