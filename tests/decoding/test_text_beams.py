"""Beam search finds what transformers' finds, token for token, with the same scores."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from recomputing_runtime import RecomputingRuntime, in_transformers, tiny_llama

from kvcast.decoding.beam_writing import write_beams
from kvcast.decoding.beams import Hypothesis, NormalisedBeamSearch
from kvcast.decoding.drafts import Endings
from kvcast.decoding.numerics import log_softmax
from kvcast.decoding.prefixes import Nothing
from kvcast.decoding.rows import ReadPrompts, read_prompts
from kvcast.decoding.sampling import RepetitionPenalty
from kvcast.errors import UsageError
from kvcast.text.stops import StopStrings

PAD, EOS = 0, 11
STEPS = 14


def prompt_of(seed: int, length: int = 5) -> list[int]:
    return np.random.default_rng(seed).integers(3, 61, length).tolist()


def read(seed: int, *prompts: Sequence[int], steps: int = STEPS) -> ReadPrompts:
    start = Nothing(RecomputingRuntime(in_transformers(tiny_llama(seed))))
    return read_prompts(start, prompts, chunk=3, capacity=max(map(len, prompts)) + steps - 1)


def ours(
    beginning: ReadPrompts,
    search: NormalisedBeamSearch,
    ends: Sequence[int] = (EOS,),
    penalty: float = 1.0,
    steps: int = STEPS,
    least: int = 0,
) -> list[list[Hypothesis]]:
    return write_beams(
        beginning,
        search,
        ended=[lambda tokens: tokens[-1] in ends or len(tokens) == steps]
        * len(beginning.preceding),
        endings=Endings(
            end_tokens=tuple(ends),
            stops=StopStrings(),
            max_new_tokens=steps,
            min_new_tokens=least,
        ),
        penalty=RepetitionPenalty(penalty),
        on_step=lambda _: None,
    )


def theirs(
    seed: int,
    prompt: Sequence[int],
    search: NormalisedBeamSearch,
    ends: Sequence[int] = (EOS,),
    penalty: float = 1.0,
    least: int = 0,
) -> list[tuple[tuple[int, ...], float]]:
    found = tiny_llama(seed).generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        num_beams=search.beams,
        num_return_sequences=search.beams,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
        repetition_penalty=penalty,
        max_new_tokens=STEPS,
        min_new_tokens=least,
        do_sample=False,
        eos_token_id=list(ends),
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_scores=True,
    )
    sequences = []
    for tokens in found.sequences[:, len(prompt) :].tolist():
        end = next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))
        sequences.append(tuple(tokens[:end]))
    return list(zip(sequences, found.sequences_scores.tolist(), strict=True))


def assert_equal(found: list[Hypothesis], expected: list[tuple[tuple[int, ...], float]]) -> None:
    assert [hypothesis.tokens for hypothesis in found] == [tokens for tokens, _ in expected]
    scores = [hypothesis.score for hypothesis in found]
    assert scores == pytest.approx([score for _, score in expected], abs=1e-4, rel=1e-6)


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [0.6, 1.0, 2.0, 0.0, -1.0])
@pytest.mark.parametrize("beams", [4, 8])
def test_equals_transformers(beams: int, length_penalty: float, early_stopping: bool):
    search = NormalisedBeamSearch(beams, length_penalty, early_stopping)
    lengths = set()
    for seed in range(4):
        prompt = prompt_of(seed)
        [found] = ours(read(seed % 2, prompt), search)
        assert_equal(found, theirs(seed % 2, prompt, search))
        lengths |= {len(hypothesis.tokens) for hypothesis in found}
    # At 2 the longest win, and all run to the end.
    assert len(lengths) > 1 or length_penalty == 2


@pytest.mark.parametrize("ends", [(2, 7), (2, 7, 9, 11, 13)])
@pytest.mark.parametrize("beams", [2, 5])
def test_equals_transformers_with_several_end_tokens(beams: int, ends: tuple[int, ...]):
    search = NormalisedBeamSearch(beams)
    for seed in range(4):
        prompt = prompt_of(seed)
        [found] = ours(read(seed % 2, prompt), search, ends)
        assert_equal(found, theirs(seed % 2, prompt, search, ends))


@pytest.mark.parametrize("penalty", [0.8, 1.4])
def test_equals_transformers_with_a_repetition_penalty(penalty: float):
    search = NormalisedBeamSearch(4)
    prompt = prompt_of(0)
    beginning = read(0, prompt)
    [found] = ours(beginning, search, penalty=penalty)
    assert_equal(found, theirs(0, prompt, search, penalty=penalty))
    assert [h.tokens for h in found] != [h.tokens for h in ours(beginning, search)[0]]


@pytest.mark.parametrize("least", [6, 13])
def test_equals_transformers_with_a_minimum_length(least: int):
    search = NormalisedBeamSearch(4, 0.6)
    prompt = prompt_of(0)
    beginning = read(0, prompt)
    [found] = ours(beginning, search, least=least)
    assert_equal(found, theirs(0, prompt, search, least=least))
    assert min(len(h.tokens) for h in found) >= least
    assert min(len(h.tokens) for h in ours(beginning, search)[0]) < least


def test_log_probabilities_are_the_models_own_whatever_the_penalty():
    prompt = prompt_of(1)
    model = in_transformers(tiny_llama(0))
    for penalty in (1.0, 1.4):
        [found] = ours(read(0, prompt), NormalisedBeamSearch(3), penalty=penalty, least=4)
        for hypothesis in found:
            logits_sv = model((*prompt, *hypothesis.tokens))[len(prompt) - 1 : -1]
            logprobs_sv = log_softmax(logits_sv.copy())
            expected = logprobs_sv[np.arange(len(hypothesis.tokens)), hypothesis.tokens]
            np.testing.assert_allclose(hypothesis.logprobs, expected, atol=1e-5)


def test_what_was_read_stays_as_it_is():
    prompt = prompt_of(2)
    beginning = read(0, prompt)
    once = ours(beginning, NormalisedBeamSearch(4))
    assert ours(beginning, NormalisedBeamSearch(4)) == once
    assert beginning.cache.written == (tuple(prompt),)
    assert beginning.runtime.forks[0] == [0] * 4


def test_the_last_token_is_not_fed_and_a_lone_step_feeds_none():
    beginning = read(0, prompt_of(3))
    calls = beginning.runtime.calls
    prompt_calls = len(calls)
    ours(beginning, NormalisedBeamSearch(4), ends=(60,), steps=1)
    assert len(calls) == prompt_calls
    ours(beginning, NormalisedBeamSearch(4), ends=(60,), steps=5)
    assert len(calls) == prompt_calls + 4


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_a_batch_of_prompts_gives_what_each_gives_alone(early_stopping: bool, penalty: float):
    search = NormalisedBeamSearch(3, 0.6, early_stopping)
    prompts = [prompt_of(seed, length) for seed, length in enumerate((5, 1, 9, 3))]
    beginning = read(0, *prompts)
    together = ours(beginning, search, penalty=penalty)
    alone = [ours(read(0, prompt), search, penalty=penalty)[0] for prompt in prompts]
    assert together == alone
    assert len({hypothesis.tokens for found in together for hypothesis in found}) == 12
    # Rows of a prompt whose search is over take no part in the others' steps.
    steps = [len(call) for call in beginning.runtime.calls[3:]]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) > 1


def test_where_every_continuation_ends_there_is_nothing_left_to_search():
    [found] = ours(read(0, prompt_of(4)), NormalisedBeamSearch(4), ends=range(61))
    assert [len(hypothesis.tokens) for hypothesis in found] == [1] * 4


@pytest.mark.parametrize("beams", [40, 61])
def test_beams_may_be_as_many_as_there_are_tokens(beams: int):
    """More continuations are considered than one row has."""
    search = NormalisedBeamSearch(beams)
    prompt = prompt_of(5)
    [found] = ours(read(0, prompt), search)
    assert_equal(found, theirs(0, prompt, search))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0,), "beam must be 1 or more, not 0"),
        ((4, float("nan")), "length_penalty must be a finite number, not nan"),
        ((4, float("inf")), "length_penalty must be a finite number, not inf"),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_line(arguments: tuple, says: str):
    with pytest.raises(UsageError) as error:
        NormalisedBeamSearch(*arguments)
    assert str(error.value) == says
