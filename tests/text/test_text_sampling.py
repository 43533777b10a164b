"""Sampling and stop sequences do what their definitions and transformers say."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from kvcast.decoding.logits_processors import RepetitionPenalty, Sampler
from kvcast.decoding.params import SamplingParams
from kvcast.decoding.sampling_kernels import MinP, TopK, TopP, draw
from kvcast.engine.requests import Prompt
from kvcast.errors import KvcastError, UsageError
from kvcast.speech.strategies import BeamSearch, Greedy, Sampling
from kvcast.text.logits_pipeline import LogitsProcessors
from kvcast.text.texts import StopStrings

VOCAB = 700
LOGITS = arrays(np.float32, st.integers(1, 300), elements=st.floats(-30, 30, width=32), unique=True)


def logits(seed: int, scale: float = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, VOCAB).astype(np.float32)


def theirs(processor: Any, logits_v: np.ndarray, seen: Any = ((0,),)) -> np.ndarray:
    return processor(torch.tensor(np.array(seen)), torch.tensor(logits_v[None]))[0].numpy()


def softmax(logits_v: np.ndarray) -> np.ndarray:
    weights_v = np.exp(logits_v.astype(np.float64) - logits_v.max())
    return weights_v / weights_v.sum()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 5.0])
def test_repetition_penalty_equals_transformers(seed: int, penalty: float):
    seen = np.random.default_rng(seed).integers(0, VOCAB, 300)
    expected = theirs(RepetitionPenaltyLogitsProcessor(penalty), logits(seed), seen[None])
    scores_v = logits(seed)
    RepetitionPenalty(penalty).apply(scores_v[None], seen[None])
    np.testing.assert_allclose(scores_v, expected, rtol=1e-6)


@pytest.mark.parametrize("penalty", [5e-324, 1e300])
def test_penalties_that_fp32_does_not_have_stay_finite(penalty: float):
    scores_v = logits(0)
    RepetitionPenalty(penalty).apply(scores_v[None], np.arange(VOCAB)[None])
    assert np.isfinite(scores_v).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 2, 40, VOCAB - 1, VOCAB, 10 * VOCAB])
def test_top_k_equals_transformers(seed: int, k: int):
    expected = np.isfinite(theirs(TopKLogitsWarper(k), logits(seed)))
    assert (TopK(k).keeps(logits(seed)) == expected).all()
    assert expected.sum() == min(k, VOCAB)


@pytest.mark.parametrize("scale", [0.1, 3, 20])
@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p_equals_transformers(scale: float, p: float):
    for seed in range(5):
        expected = np.isfinite(theirs(TopPLogitsWarper(p), logits(seed, scale)))
        assert (TopP(p).keeps(logits(seed, scale)) == expected).all()


@pytest.mark.parametrize("scale", [0.1, 3])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.9, 1.0])
def test_min_p_equals_transformers(scale: float, share: float):
    for seed in range(5):
        expected = np.isfinite(theirs(MinPLogitsWarper(share), logits(seed, scale)))
        assert (MinP(share).keeps(logits(seed, scale)) == expected).all()


def test_top_k_keeps_what_is_as_likely_as_the_last():
    logits_v = np.array([1, 3, 2, 2, 0], np.float32)
    assert TopK(2).keeps(logits_v).tolist() == [False, True, True, True, False]


@given(logits_c=LOGITS, p=st.floats(0.001, 0.999))
def test_top_p_is_the_smallest_set_of_the_likeliest_that_reaches_p(logits_c, p):
    kept_c = TopP(p).keeps(logits_c)
    probabilities = softmax(logits_c)
    assert probabilities[kept_c].min() >= probabilities[~kept_c].max(initial=0)
    assert probabilities[kept_c].sum() >= p - 1e-6
    assert probabilities[kept_c].sum() - probabilities[kept_c].min() <= p + 1e-6


def test_of_equally_likely_tokens_top_p_takes_the_first():
    assert TopP(0.5).keeps(np.zeros(4, np.float32)).tolist() == [True, True, False, False]


@given(logits_c=LOGITS, share=st.floats(0, 1))
def test_min_p_keeps_the_likeliest_and_what_has_the_share_of_it(logits_c, share):
    kept_c = MinP(share).keeps(logits_c)
    ratios = softmax(logits_c) / softmax(logits_c).max()
    assert kept_c[logits_c.argmax()]
    assert (ratios[kept_c] >= share * (1 - 1e-4)).all()
    assert (ratios[~kept_c] <= share * (1 + 1e-4)).all()


ALL = {"temperature": 0.7, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.3}


def warped(logits_v: np.ndarray, seen: np.ndarray) -> np.ndarray:
    processors = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(ALL["repetition_penalty"]),
            TemperatureLogitsWarper(ALL["temperature"]),
            TopKLogitsWarper(50),
            TopPLogitsWarper(ALL["top_p"]),
            MinPLogitsWarper(ALL["min_p"]),
        ]
    )
    return softmax(theirs(processors, logits_v, seen[None]))


def chi_squared(counts: np.ndarray, probabilities: np.ndarray) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom, rare outcomes taken together."""
    assert counts[probabilities == 0].sum() == 0, "drew what has no probability"
    expected = probabilities * counts.sum()
    common = expected >= 5
    observed, expected = (
        np.append(values[common], values[~common].sum()) for values in (counts, expected)
    )
    observed, expected = observed[expected > 0], expected[expected > 0]
    return float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1


def is_likely(statistic: float, freedom: int) -> bool:
    """Within 4 standard deviations by Wilson and Hilferty's normal approximation."""
    spread = 2 / (9 * freedom)
    return abs((statistic / freedom) ** (1 / 3) - (1 - spread)) < 4 * spread**0.5


@pytest.mark.parametrize(
    "options", [{"temperature": 1.0}, {"temperature": 0.5}, {"temperature": 2.0}, ALL]
)
def test_draws_follow_the_distribution_of_the_definition(options: dict[str, Any]):
    logits_v, seen = logits(1), np.random.default_rng(2).integers(0, VOCAB, 200)
    if options is ALL:
        probabilities = warped(logits_v, seen)
    else:
        probabilities = softmax(logits_v / options["temperature"])
    params = SamplingParams(seed=3, **options)
    preferences, choose = LogitsProcessors(params), Sampler(params)
    histories = preferences.histories(room=1, prompt=Prompt(seen))
    scores_rv = logits_v[None].copy()
    preferences.apply(scores_rv, histories)
    [scores_v] = scores_rv
    drawn = [choose(scores_v) for _ in range(4000)]
    counts = np.bincount(drawn, minlength=VOCAB)
    assert is_likely(*chi_squared(counts, probabilities))


def test_the_chi_squared_test_can_fail():
    probabilities = softmax(logits(1))
    colder = softmax(logits(1) * 1.2)
    counts = np.random.default_rng(0).multinomial(4000, colder)
    assert not is_likely(*chi_squared(counts, probabilities))


def test_what_the_model_gave_stays_as_it_is():
    for temperature in (0.0, 0.7):
        logits_v = logits(4)
        choose = Sampler(SamplingParams(**ALL | {"temperature": temperature}))
        choose(logits_v)
        assert (logits_v == logits(4)).all()


def test_temperature_0_takes_the_likeliest_whatever_the_truncations():
    choose = Sampler(SamplingParams(top_k=3, top_p=0.1, min_p=0.5))
    assert choose(logits(5)) == logits(5).argmax()


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-3])
def test_the_colder_the_nearer_to_greedy(temperature: float):
    with np.errstate(all="raise", under="ignore"):
        choose = Sampler(SamplingParams(temperature=temperature))
        assert [choose(logits(6)) for _ in range(20)] == [logits(6).argmax()] * 20


def test_seed_and_stream_fix_the_draws():
    def draws(seed: int, stream: int) -> list[int]:
        choose = Sampler(SamplingParams(temperature=1.0, seed=seed), stream)
        return [choose(logits(i)) for i in range(12)]

    assert draws(1, 2) == draws(1, 2)
    assert len({tuple(draws(seed, stream)) for seed in range(4) for stream in range(4)}) == 16


def test_the_ends_of_the_unit_interval_draw_tokens_that_have_weight():
    logits_c = np.array([-np.inf, 0, 1, -np.inf], np.float32)
    assert draw(logits_c, 0.0) == 1
    assert draw(logits_c, float(np.nextafter(1, 0))) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": -0.1}, "temperature must be 0 or more, not -0.1"),
        ({"temperature": float("nan")}, "temperature must be 0 or more, not nan"),
        ({"temperature": float("inf")}, "temperature must be 0 or more, not inf"),
        ({"top_k": 0}, "top_k must be 1 or more, not 0"),
        ({"top_k": -5}, "top_k must be 1 or more, not -5"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, not 0.0"),
        ({"top_p": -1.0}, "top_p must be above 0 and at most 1, not -1.0"),
        ({"top_p": 1.01}, "top_p must be above 0 and at most 1, not 1.01"),
        ({"top_p": float("nan")}, "top_p must be above 0 and at most 1, not nan"),
        ({"min_p": -0.1}, "min_p must be from 0 to 1, not -0.1"),
        ({"min_p": 1.1}, "min_p must be from 0 to 1, not 1.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0, not 0.0"),
        ({"repetition_penalty": -1.0}, "repetition_penalty must be above 0, not -1.0"),
        ({"seed": -1}, "seed must be 0 or more, not -1"),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_line(options: dict[str, Any], says: str):
    with pytest.raises(UsageError) as error:
        SamplingParams(**options)
    assert str(error.value) == says


@pytest.mark.parametrize("odd", [[np.nan], [np.nan, 1.0, 2.0], [np.inf, 0.0], [-np.inf] * 3])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5, top_k=2, top_p=0.5, min_p=0.1),
    ],
)
def test_logits_that_are_no_numbers_are_one_line(odd: list[float], params: SamplingParams):
    logits_v = np.array(odd, np.float32)
    with pytest.raises(KvcastError, match="logits are NaN or infinite"):
        Sampler(params)(logits_v)
    for strategy in (Greedy(), Sampling(0.7, 1, (0,))):
        with pytest.raises(KvcastError, match="logits are NaN or infinite"):
            strategy.start(0, 5).advance(logits_v[None].copy())


def test_beams_over_logits_that_are_no_numbers_are_one_line():
    logits_rv = np.array([[1.0, np.nan, 2.0, 3.0]], np.float32)
    with pytest.raises(KvcastError, match="logits are NaN or infinite"):
        BeamSearch(2).start(0, 5).advance(logits_rv)


_FEW_LETTERS = st.text(st.sampled_from("ab\n"), max_size=30)
_STOPS = st.lists(st.text(st.sampled_from("ab\n"), min_size=1, max_size=5), max_size=4)


def shown_by_naive_search(text: str, stops: list[str]) -> tuple[str, bool]:
    for end in range(len(text) + 1):
        complete = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(complete)], True
    return text, False


@given(text=_FEW_LETTERS, stops=_STOPS, cuts=st.lists(st.integers(0, 30)))
@example(text="aaab", stops=["aab"], cuts=[1, 2, 3])
@example(text="abab\nb", stops=["ababb", "\n"], cuts=[2, 4])
@example(text="abba", stops=["abba", "bb"], cuts=[])
def test_pieces_make_no_difference(text: str, stops: list[str], cuts: list[int]):
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    matcher = StopStrings(tuple(stops)).matcher()
    shown, stopped = "", False
    for start, end in pairwise(bounds):
        safe, stopped = matcher.push(text[start:end])
        shown += safe
        assert text.startswith(shown)
    assert (shown + matcher.finish(), stopped) == shown_by_naive_search(text, stops)


@given(text=_FEW_LETTERS, stops=_STOPS)
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stops: list[str]):
    matcher = StopStrings(tuple(stops)).matcher()
    shown = ""
    for i, character in enumerate(text):
        safe, stopped = matcher.push(character)
        shown += safe
        if stopped:
            return
        held = text[: i + 1].removeprefix(shown)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_nothing_comes_after_the_end():
    matcher = StopStrings(("\n\n", "User:")).matcher()
    assert matcher.push("Hello. Us") == ("Hello. ", False)
    assert matcher.push("er: more") == ("", True)
    assert matcher.push("and more") == ("", True)
    assert matcher.finish() == ""


def test_an_empty_stop_string_is_refused():
    with pytest.raises(UsageError, match="a stop string is empty"):
        StopStrings(("a", ""))
