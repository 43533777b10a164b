"""`T5Model`: sources in a batch, what their options mean, and what is refused."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kit.dimensions import LEAST_T5
from kit.letters import END, FIRST, VOCAB, Letters
from kit.scripted_runtimes import Script, ScriptedSources, number_of, random_script
from kit.text_models import refused, same
from kvcast.errors import KvcastError
from kvcast.text.text2text import T5Model

START, POSITIONS = 1, 24
RANDOM = random_script(VOCAB, 0, lambda length: {END: 2.0} if length > 4 else {})
HOT = {"temperature": 1.0, "max_new_tokens": 12, "logprobs": True}
SOURCES = ["a", "hello there", "how are you?", "a", "b.", "a"]


class Sources(Letters):
    """Sources end as targets do."""

    def __init__(self) -> None:
        super().__init__(begins=False)

    def encode(self, text: str) -> list[int]:
        return [*super().encode(text), END]


def t5_model(script: Script = RANDOM, vocab_size: int = VOCAB) -> T5Model:
    dimensions = replace(
        LEAST_T5,
        vocab_size=vocab_size,
        start_token=START,
        source_positions=POSITIONS,
        target_positions=POSITIONS,
    )
    return T5Model(ScriptedSources(script, context=POSITIONS), Sources(), dimensions)


def answering(answers: dict[str, str]) -> T5Model:
    said = {
        number_of(tuple(Sources().encode(source))): Sources().encode(text)
        for source, text in answers.items()
    }

    def script(number: int, written: tuple[int, ...]) -> np.ndarray:
        assert written[0] == START
        logits_v = np.zeros(VOCAB, np.float32)
        logits_v[said[number][min(len(written), len(said[number])) - 1]] = 10
        return logits_v

    return t5_model(script)


ANSWERS = {"a": "first", "hello there": "", "how are you?": "fine.", "b": "x"}


@pytest.mark.parametrize("options", [{}, {"beam": 3}, {"temperature": 0.01}])
def test_each_source_of_a_batch_has_its_own_answer(options: dict[str, Any]):
    model = answering(ANSWERS)
    texts = model.generate(list(ANSWERS), **options)
    assert [text.text for text in texts] == list(ANSWERS.values())
    assert {text.finish_reason for text in texts} == {"stop"}
    assert [text.prompt_tokens for text in texts] == [len(source) + 1 for source in ANSWERS]
    assert model.runtime.sources == [[tuple(Sources().encode(source)) for source in ANSWERS]]
    assert model.generate("b", **options).text == "x"


@pytest.mark.parametrize(
    "options",
    [
        HOT,
        {"max_new_tokens": 9},
        {"n": 3, **HOT},
        {"n": 3, "repetition_penalty": 1.4, "min_new_tokens": 7, **HOT},
        {"beam": 3, "n": 2, "max_new_tokens": 12, "length_penalty": 0.6},
        {"beam": 4, "early_stopping": True, "repetition_penalty": 1.4, "min_new_tokens": 6},
    ],
)
@pytest.mark.parametrize("batch", [1, 2, 4, 30])
def test_the_batch_changes_no_text(options: dict[str, Any], batch: int):
    model = t5_model()
    texts = same(model.generate(SOURCES, batch=batch, **options))
    unlike = [1, 2, 4]
    alone = [same(model.generate(SOURCES[i], batch=1, **options)) for i in unlike]
    assert [texts[i] for i in unlike] == alone
    if "beam" not in options and "temperature" in options:
        assert len({str(texts[i]) for i in (0, 3, 5)}) == 3, "a source thrice is three samples"


def test_token_ids_are_sources_as_text_is():
    model = t5_model()
    ids = [Sources().encode(source) for source in SOURCES]
    assert same(model.generate(ids, **HOT)) == same(model.generate(SOURCES, **HOT))
    assert same(model.generate(ids[1])) == same(model.generate(SOURCES[1]))
    says = f"the model has no token {VOCAB}: give ids from 0 to {VOCAB - 1}"
    refused(lambda: model.generate([FIRST, VOCAB]), says)


def test_a_source_that_waits_is_encoded_when_a_row_is_free():
    model = t5_model(random_script(VOCAB, 2, lambda length: {END: 1.5}))
    model.generate(SOURCES, batch=2, max_new_tokens=12)
    assert len(model.runtime.encoded[0]) == 2
    assert sum(map(len, model.runtime.encoded)) == len(SOURCES)
    # The others do not wait until both rows are free.
    assert len(model.runtime.encoded) > len(SOURCES) // 2


def test_samples_share_the_encoding_of_their_source():
    model = t5_model()
    texts = model.generate("hello", n=5, **HOT)
    assert len({text.tokens for text in texts}) == 5
    assert len(model.runtime.encoded) == 1
    assert same(model.generate(["hello"] * 5, **HOT)) == same(texts)


def test_no_more_rows_than_the_batch_are_written_at_once():
    model = t5_model()
    model.generate(["hello", "you"], n=5, batch=2, **HOT)
    assert [len(sources) for sources in model.runtime.encoded] == [1, 1]
    assert {len(call) for call in model.runtime.calls} == {1, 2}
    model.runtime.encoded.clear()
    model.generate(SOURCES, n=2, batch=5, **HOT)
    assert sum(len(sources) for sources in model.runtime.encoded) == len(SOURCES)
    assert max(len(call) for call in model.runtime.calls) == 5
    model.runtime.encoded.clear()
    model.generate(SOURCES, batch=4, **HOT)
    assert len(model.runtime.encoded[0]) == 4
    assert sum(len(sources) for sources in model.runtime.encoded) == len(SOURCES)


def test_texts_are_there_as_soon_as_their_turn_is_done():
    model = t5_model()
    each = model.generate_each(["a", "b", "c"], batch=1, max_new_tokens=3)
    assert not model.runtime.encoded
    assert [len(model.runtime.encoded) for _ in each] == [1, 2, 3]


def test_beams_come_best_first_with_their_scores():
    texts = t5_model().generate("hello", beam=5, n=4, max_new_tokens=12)
    scores = [text.score for text in texts]
    assert scores == sorted(scores, reverse=True)
    assert len({text.tokens for text in texts}) == 4
    assert {text.similarity for text in texts} == {None}


def test_streamed_pieces_make_the_text_and_come_before_the_next_token():
    model = answering({"hello": "abc"})
    pieces = model.stream("hello")
    seen = [(piece, len(model.runtime.calls)) for piece in pieces]
    assert seen == [("a", 1), ("b", 2), ("c", 3)]
    assert (pieces.result.text, pieces.result.prompt_tokens) == ("abc", 6)
    model = t5_model()
    for options in (HOT, {"stop": ["a", "b"], **HOT}, {"max_new_tokens": 1}):
        pieces = model.stream("hello", **options)
        assert "".join(pieces) == pieces.result.text
        assert same(pieces.result) == same(model.generate("hello", **options))


@pytest.mark.parametrize("options", [{}, {"beam": 2}])
def test_a_stop_string_ends_a_text_before_it(options: dict[str, Any]):
    model = answering({"a": "abcdefg", "b": "xyz"})
    texts = model.generate(["a", "b"], stop="de", max_new_tokens=9, **options)
    assert [text.text for text in texts] == ["abc", "xyz"]
    assert len(texts[0].tokens) == 5


def test_the_penalty_sees_the_target_and_not_the_source():
    logits_v = np.zeros(VOCAB, np.float32)
    logits_v[FIRST : FIRST + 4] = [9, 8, 7, 6]
    model = t5_model(lambda _, __: logits_v)
    text = model.generate("abcd", repetition_penalty=3.0, max_new_tokens=4)
    assert text.text == "abcd"


def test_samples_follow_the_models_distribution():
    logits_v = np.full(VOCAB, -np.inf, np.float32)
    logits_v[FIRST : FIRST + 5] = [1.0, 0.5, 0.0, -0.5, -1.0]
    model = t5_model(lambda _, __: logits_v)
    options = {"temperature": 0.7, "top_k": 4, "n": 4000, "batch": 4000, "max_new_tokens": 2}
    weights = np.exp(np.array([1.0, 0.5, 0.0, -0.5]) / 0.7)
    texts = model.generate("hello", **options)
    for place in range(2):
        counts = Counter(text.text[place] for text in texts)
        observed = np.array([counts.pop(letter) for letter in "abcd"])
        assert not counts
        expected = 4000 * weights / weights.sum()
        # The 99.99th percentile of a chi-square with 3 degrees of freedom.
        assert ((observed - expected) ** 2 / expected).sum() < 21.1


def test_the_last_room_is_used_and_then_a_text_ends_for_its_length():
    model = t5_model(random_script(VOCAB, 1, lambda _: {END: -99.0}))
    for options in ({}, {"beam": 2}, {"temperature": 1.0, "n": 2}):
        texts = model.generate("hello", max_new_tokens=99, min_new_tokens=30, **options)
        for text in [texts] if "n" not in options else texts:
            assert (len(text.tokens), text.finish_reason) == (POSITIONS - 1, "length")


REFUSED = [
    ({"chat": True}, "this model answers a source as it is: leave out chat and system"),
    ({"system": "be kind"}, "leave out chat and system"),
    ({"chunk": 8}, "chunk is for prompts that are continued: a source is read whole"),
    ({"max_new_tokens": 2, "min_new_tokens": 3}, "min_new_tokens must be from 0 to 2"),
]
OF_SEVERAL = [
    ({"beam": VOCAB + 1}, f"beam must be at most {VOCAB}, the model's tokens, not {VOCAB + 1}"),
    ({"early_stopping": True}, "early_stopping needs a beam of 2 or more"),
    ({"n": 2}, "n needs a temperature above 0"),
    ({"batch": 0}, "batch must be 1 or more, not 0"),
]


@pytest.mark.parametrize(("options", "says"), [*REFUSED, *OF_SEVERAL])
def test_what_cannot_be_served_is_refused_before_anything_is_computed(
    options: dict[str, Any], says: str
):
    model = t5_model()
    refused(lambda: model.generate("hello", **options), says)
    refused(lambda: model.generate_each(["hello"], **options), says)
    if (options, says) in REFUSED:
        refused(lambda: model.stream("hello", **options), says)
    assert not model.runtime.encoded


def test_sources_that_cannot_be_read_are_refused():
    model = t5_model()
    long = "a" * POSITIONS
    for source, says in [
        ("", "the source is empty: give at least one word"),
        (long, f"the prompt has {POSITIONS + 1} tokens and the model takes {POSITIONS} at most"),
    ]:
        refused(lambda source=source: model.generate(["a", source]), says)
        refused(lambda source=source: model.generate_each(["a", source]), says)
        refused(lambda source=source: model.stream(source), says)
    refused(lambda: model.generate([]), "there is no prompt: give at least one")
    refused(lambda: model.generate_each([]), "there is no prompt: give at least one")
    assert not model.runtime.encoded
    assert model.generate(long[1:], max_new_tokens=2).prompt_tokens == POSITIONS


def test_another_models_tokenizer_is_one_line():
    last = max(Sources().encode("hello"))
    model = t5_model(vocab_size=last)
    says = f"^the tokenizer has a token {last}, but the model only {last} tokens: the files belong"
    for say in (model.generate, model.stream, lambda source: model.generate_each([source])):
        with pytest.raises(KvcastError, match=says):
            say("hello")
    assert not model.runtime.encoded
    assert t5_model(vocab_size=last + 1).generate("hello", max_new_tokens=1).tokens


def test_an_end_token_that_the_model_does_not_have_is_one_line():
    model, tokenizer = t5_model(), Sources()
    tokenizer.end_tokens = (END, VOCAB)
    says = f"^the tokenizer has a token {VOCAB}, but the model only {VOCAB} tokens"
    with pytest.raises(KvcastError, match=says):
        T5Model(model.runtime, tokenizer, model.dimensions)


def test_as_many_beams_as_tokens_are_served():
    texts = t5_model().generate("hello", beam=VOCAB, n=VOCAB, max_new_tokens=3)
    assert len(texts) == VOCAB
