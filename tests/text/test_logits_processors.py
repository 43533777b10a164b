"""Logits processors do what OpenAI, vLLM and transformers define; generation_config.json."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from kit.letters import END, VOCAB, Letters
from kit.scripted_runtimes import random_model
from kvcast.decoding.params import SamplingParams
from kvcast.decoding.sampling import log_softmax
from kvcast.engine.requests import Histories, Prompt
from kvcast.errors import KvcastError, UsageError
from kvcast.text.logits_pipeline import LogitsProcessors
from kvcast.text.model import TextModel
from kvcast.text.params import RECOMMENDED, GenerationDefaults, PromptParams
from text.test_generate import same, text_model

PREFERRING: list[dict[str, Any]] = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.7},
    {"presence_penalty": -1.0, "frequency_penalty": 2.0},
    {"logit_bias": {5: 3.0, 9: -100.0}},
    {"logit_bias": "5:3,9:-100", "repetition_penalty": 1.4, "frequency_penalty": 0.5},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 0.8},
]


def histories_of(
    prompt: list[int], generated_rn: np.ndarray, preferences: LogitsProcessors
) -> Histories:
    rows, length = generated_rn.shape
    histories = preferences.histories(length + 1, Prompt(np.array(prompt)))
    for n in range(length):
        parents = [0] * rows if n == 0 else list(range(rows))
        histories.extend(parents, generated_rn[:, n].tolist())
    return histories


def expected(logits_v: np.ndarray, prompt: list[int], generated: list[int], params: SamplingParams):
    """One token after the other, in vLLM's order."""
    scores_v = torch.tensor(logits_v[None])
    if params.biases:
        sequences = [[[token], bias] for token, bias in params.biases.items()]
        scores_v = SequenceBiasLogitsProcessor(sequences)(torch.zeros((1, 0)), scores_v)
    if params.repetition_penalty != 1:
        seen = torch.tensor([[*prompt, *generated]])
        scores_v = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(seen, scores_v)
    if params.no_repeat_ngram_size is not None:
        seen = torch.tensor([[*prompt, *generated]])
        forbid = NoRepeatNGramLogitsProcessor(params.no_repeat_ngram_size)
        scores_v = forbid(seen, scores_v)
    for token, count in Counter(generated).items():
        scores_v[0, token] -= params.frequency_penalty * count
        scores_v[0, token] -= params.presence_penalty
    return scores_v[0].numpy()


@given(
    generated=st.integers(0, 12).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 30), min_size=n, max_size=n), min_size=1, max_size=3
        )
    ),
    options=st.sampled_from(PREFERRING),
    seed=st.integers(0, 99),
)
def test_scores_are_those_of_the_definitions(generated, options, seed):
    params, prompt = SamplingParams(**options), [1, 5, 5, 7]
    logits_rv = np.random.default_rng(seed).normal(0, 3, (len(generated), 31)).astype(np.float32)
    preferences = LogitsProcessors(params)
    generated_rn = np.array(generated, np.int64).reshape(len(generated), -1)
    seen = histories_of(prompt, generated_rn, preferences)
    if not generated_rn.shape[1]:  # histories have one row before the first token
        logits_rv, generated = logits_rv[:1], generated[:1]
    scores_rv = logits_rv.copy()
    preferences.apply(scores_rv, seen)
    for scores_v, logits_v, tokens in zip(scores_rv, logits_rv, generated, strict=True):
        np.testing.assert_allclose(
            scores_v, expected(logits_v, prompt, tokens, params), rtol=1e-5, atol=1e-5
        )


def test_without_preferences_there_are_none():
    preferences = LogitsProcessors(SamplingParams())
    seen = preferences.histories(3, Prompt(np.array([1, 2])))
    logits_rv = np.zeros((1, 4), np.float32)
    preferences.apply(logits_rv, seen)
    assert not logits_rv.any()
    assert not preferences.matter(seen)


def recomputed_greedily(model: TextModel, prompt: str, options: dict[str, Any], count: int):
    """A greedy text, every step computed from nothing."""
    tokens, params = Letters().encode(prompt), SamplingParams(**options)
    generated: list[int] = []
    tops = []
    while len(generated) < count:
        logits_v = model.runtime.model((*tokens, *generated))[-1].astype(np.float32)
        chosen = int(expected(logits_v, tokens, generated, params).argmax())
        if chosen == END:
            break
        logprobs_v = log_softmax(logits_v[None].copy())[0]
        best = np.argsort(-logprobs_v, kind="stable")[:4]
        tops.append([(int(token), float(logprobs_v[token])) for token in best])
        generated.append(chosen)
    return generated, tops


@pytest.mark.parametrize("options", [{}, *PREFERRING])
def test_a_greedy_text_is_the_recomputed_one(options):
    model = text_model()
    text = model.generate("hello", max_new_tokens=16, logprobs=True, top_logprobs=4, **options)
    tokens, tops = recomputed_greedily(model, "hello", options, 16)
    assert list(text.tokens) == tokens
    assert len(tokens) > 3
    for top, hand in zip(text.top_logprobs, tops, strict=True):
        assert [token for token, _ in top] == [token for token, _ in hand]
        np.testing.assert_allclose([p for _, p in top], [p for _, p in hand], atol=1e-5)


def test_what_is_in_the_prompt_alone_costs_no_presence():
    plain = text_model().generate("aaaa", max_new_tokens=1)
    model = text_model()
    prompt = [*Letters().encode("a"), plain.tokens[0]]
    again = model.generate(prompt, max_new_tokens=1, presence_penalty=2.0)
    assert again.tokens == model.generate(prompt, max_new_tokens=1).tokens


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.2, "seed": 3},
    "several": {"temperature": 1.2, "n": 3},
    "beams": {"beam": 3, "n": 3},
    "drafted": {"draft": "ngram"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, PREFERRING[2], PREFERRING[3]])
def test_alternatives_are_what_the_model_gave_whatever_chose(way, options):
    model = text_model()
    asked = {"max_new_tokens": 9, "logprobs": True, "top_logprobs": 5, **WAYS[way], **options}
    texts = model.generate("hello", **asked)
    for text in texts if isinstance(texts, list) else [texts]:
        assert len(text.top_logprobs) == len(text.logprobs) == len(text.tokens)
        whole = (*Letters().encode("hello"), *text.tokens)
        logprobs_sv = log_softmax(model.runtime.model(whole).astype(np.float32))
        first = len(whole) - len(text.tokens) - 1
        for logprobs_v, top, token, logprob in zip(
            logprobs_sv[first:-1], text.top_logprobs, text.tokens, text.logprobs, strict=True
        ):
            values = [value for _, value in top]
            np.testing.assert_allclose(values, np.sort(logprobs_v)[::-1][:5], atol=1e-5)
            np.testing.assert_allclose(values, logprobs_v[[t for t, _ in top]], atol=1e-5)
            np.testing.assert_allclose(logprob, logprobs_v[token], atol=1e-5)


def test_alternatives_need_no_logprobs_and_change_no_text():
    for way in WAYS.values():
        plain = text_model().generate("hello", max_new_tokens=9, **way)
        asked = text_model().generate("hello", max_new_tokens=9, top_logprobs=2, **way)
        pairs = [(plain, asked)] if not isinstance(plain, list) else zip(plain, asked, strict=True)
        for text, other in pairs:
            assert text.tokens == other.tokens
            assert text.top_logprobs is None
            assert other.logprobs is None


def test_more_alternatives_than_tokens_are_all_of_them():
    text = text_model().generate("hello", max_new_tokens=2, top_logprobs=VOCAB + 9)
    assert [len(top) for top in text.top_logprobs] == [VOCAB] * 2
    total = sum(np.exp(logprob) for _, logprob in text.top_logprobs[0])
    assert total == pytest.approx(1, abs=1e-5)


def test_what_is_banned_is_not_generated():
    model = text_model()
    plain = model.generate("hello", max_new_tokens=12, beam=3)
    banned = plain.tokens[0]
    for way in ({}, {"beam": 3}, {"temperature": 2.0}):
        text = model.generate("hello", max_new_tokens=12, logit_bias={banned: -100}, **way)
        assert banned not in text.tokens


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"presence_penalty": 2.5}, "presence_penalty must be from -2 to 2, not 2.5"),
        ({"frequency_penalty": "x"}, "frequency_penalty must be a number, not 'x'"),
        ({"top_logprobs": -1}, "top_logprobs must be 0 or more, not -1"),
        ({"logit_bias": {3: 101}}, "logit_bias of token 3 must be from -100 to 100, not 101"),
        ({"logit_bias": {3: "1"}}, "logit_bias of token 3 must be a number, not '1'"),
        ({"logit_bias": {-3: 1}}, "logit_bias names token -3: ids begin at 0"),
        (
            {"logit_bias": [3]},
            "logit_bias must be token ids with numbers, such as 11:-100,13:2.5, not [3]",
        ),
        (
            {"logit_bias": {str(VOCAB): 1}},
            f"logit_bias: the model has no token {VOCAB}: give ids from 0 to {VOCAB - 1}",
        ),
    ],
)
def test_a_wrong_preference_is_one_line(options, says):
    with pytest.raises(UsageError) as error:
        text_model(random_model(VOCAB, 0)).generate("hello", **options)
    assert str(error.value) == says


def test_keys_may_be_strings_as_in_json():
    assert SamplingParams(logit_bias={"7": -1.5}).biases == {7: -1.5}
    assert SamplingParams(logit_bias=" 7:-1.5, 8 : 2").biases == {7: -1.5, 8: 2.0}


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
