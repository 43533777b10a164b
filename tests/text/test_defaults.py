"""What a model's files recommend counts where a call leaves it open, and is told."""

from typing import Any

import pytest

from kvcast.errors import KvcastError, UsageError
from kvcast.text.params import RECOMMENDED, GenerationDefaults, PromptParams
from text.test_generate import same, text_model

VALUES = {
    "suppress_tokens": [1],
    "suppress_sequences": [[1, 2]],
    "renormalize_logits": True,
    "early_stopping": False,
}
WARM = {"temperature": 0.6, "top_p": 0.9, "top_k": 5}
TWICE = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, WARM | TWICE),
        ({"temperature": 1.1}, {"top_p": 0.9, "top_k": 5} | TWICE),
        ({"top_k": None}, {"temperature": 0.6, "top_p": 0.9} | TWICE),
        ({"temperature": 0}, TWICE),
        ({"temperature": 0, "repetition_penalty": 1.0}, {"no_repeat_ngram_size": 2}),
        ({"beam": 2}, TWICE),
        ({"n": 3}, WARM | TWICE),
        ({"json_object": True}, WARM | {"repetition_penalty": 1.3}),
    ],
)
def test_a_call_is_as_one_with_the_values_that_it_leaves_open(
    given: dict[str, Any], taken: dict[str, Any]
):
    model, plain = text_model(), text_model()
    model.recommend(GenerationDefaults(WARM | TWICE))
    assert model.defaults.params(PromptParams, given) == PromptParams(**taken | given)
    if "json_object" in given:
        return
    texts, expected = (
        m.generate("hello", max_new_tokens=9, **options)
        for m, options in ((model, given), (plain, taken | given))
    )
    assert same(texts) == same(expected)
    told = texts[0] if isinstance(texts, list) else texts
    assert told.generation_config == taken
    session = model.session("hel").generate("lo", max_new_tokens=9, **given)
    assert same(session) == same(expected) if "json_object" not in given else True


def test_pieces_have_them_too():
    model = text_model()
    model.recommend(GenerationDefaults(WARM))
    pieces = model.stream("hello", max_new_tokens=9)
    text = "".join(pieces)
    assert text == text_model().generate("hello", max_new_tokens=9, **WARM).text
    assert pieces.result.generation_config == WARM


def test_options_that_cannot_be_served_are_refused_all_the_same():
    model = text_model()
    model.recommend(GenerationDefaults(TWICE))
    with pytest.raises(UsageError, match="n needs a temperature"):
        model.generate("hello", n=2)
    model.recommend(GenerationDefaults({"forced_bos_token_id": 999}))
    with pytest.raises(UsageError, match="forced_bos_token_id: the model has no token 999"):
        model.generate("hello")


@pytest.mark.parametrize("name", sorted(RECOMMENDED))
def test_values_that_no_option_takes_are_one_line_with_the_way_out(name: str):
    with pytest.raises(KvcastError, match=f"generation_config.json: {name}.*--no-generation-con"):
        GenerationDefaults({name: "x"}).check()
    GenerationDefaults({name: VALUES.get(name, 1)}).check()


SEARCH = {"beam": 3, "length_penalty": 0.5, "early_stopping": True}
LENGTHS = {"max_new_tokens": 9, "min_new_tokens": 5, "suppress_tokens": [3]}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, SEARCH | LENGTHS),
        ({"length_penalty": 2.0}, {"beam": 3, "early_stopping": True} | LENGTHS),
        ({"beam": 2}, {"length_penalty": 0.5, "early_stopping": True} | LENGTHS),
        ({"beam": 1}, LENGTHS),
        ({"temperature": 0.5, "n": 4}, LENGTHS),
        ({"draft": "ngram"}, LENGTHS),
        ({"max_new_tokens": 4}, SEARCH | {"min_new_tokens": 4, "suppress_tokens": [3]}),
        ({"regex": "a+"}, SEARCH | {"max_new_tokens": 9, "suppress_tokens": [3]}),
    ],
)
def test_a_search_counts_where_the_call_leaves_it_possible(given, taken):
    defaults = GenerationDefaults(SEARCH | LENGTHS)
    assert defaults.params(PromptParams, given) == PromptParams(**taken | given)


def test_a_stream_is_one_text_whatever_is_recommended():
    model = text_model()
    model.recommend(GenerationDefaults(SEARCH | LENGTHS))
    pieces = model.stream("hello")
    text = "".join(pieces)
    assert text == text_model().generate("hello", **LENGTHS).text
    assert pieces.result.generation_config == LENGTHS
