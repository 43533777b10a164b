"""Beam search finds what transformers' finds, token for token, with the same scores."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from kit.letters import Letters
from kit.scripted_runtimes import RecomputingRuntime, in_transformers, tiny_llama
from kvcast.decoding.params import SamplingParams
from kvcast.decoding.sampling import log_softmax
from kvcast.engine.requests import Prefix, Prompt, compute
from kvcast.engine.scheduler import Scheduler
from kvcast.text.beam_search import BeamHypothesis, SearchedTexts
from kvcast.text.requests import TextSpec
from kvcast.text.texts import StoppingCriteria, Stopwatch

PAD, EOS = 0, 11
STEPS = 14


def prompt_of(seed: int, length: int = 5) -> list[int]:
    return np.random.default_rng(seed).integers(3, 61, length).tolist()


def runtime_of(seed: int) -> RecomputingRuntime:
    return RecomputingRuntime(in_transformers(tiny_llama(seed)))


def search(beams: int, length_penalty: float = 1.0, early_stopping: bool = False) -> dict[str, Any]:
    return {"beam": beams, "length_penalty": length_penalty, "early_stopping": early_stopping}


def requests(
    prompts: Sequence[Prompt],
    options: dict[str, Any],
    ends: Sequence[int] = (EOS,),
    penalty: float = 1.0,
    steps: int = STEPS,
    least: int = 0,
) -> list[SearchedTexts]:
    params = SamplingParams(
        max_new_tokens=steps,
        min_new_tokens=least,
        repetition_penalty=penalty,
        logprobs=True,
        **options,
    )
    return [
        SearchedTexts(
            TextSpec(
                prompt=prompt,
                prompt_tokens=prompt.length,
                params=params,
                criteria=StoppingCriteria.of(params, tuple(ends), room=100),
                tokenizer=Letters(),
                watch=Stopwatch(),
            )
        )
        for prompt in prompts
    ]


def ours(
    runtime: RecomputingRuntime,
    prompts: Sequence[Sequence[int]],
    options: dict[str, Any],
    ends: Sequence[int] = (EOS,),
    penalty: float = 1.0,
    steps: int = STEPS,
    least: int = 0,
    prefix: Prefix | None = None,
) -> list[list[BeamHypothesis]]:
    read = [Prompt(np.array(prompt, np.int64), prefix=prefix) for prompt in prompts]
    searches = requests(read, options, ends, penalty, steps, least)
    rows, capacity = len(prompts) * options["beam"], max(search.capacity for search in searches)
    for _ in Scheduler(runtime, rows=rows, capacity=capacity, chunk=3).run(searches):
        pass
    return [search.hypotheses for search in searches]


def theirs(
    seed: int,
    prompt: Sequence[int],
    options: dict[str, Any],
    ends: Sequence[int] = (EOS,),
    penalty: float = 1.0,
    least: int = 0,
    bias: Mapping[int, float] | None = None,
) -> list[tuple[tuple[int, ...], float]]:
    generated = tiny_llama(seed).generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        num_beams=options["beam"],
        num_return_sequences=options["beam"],
        length_penalty=options["length_penalty"],
        early_stopping=options["early_stopping"],
        repetition_penalty=penalty,
        max_new_tokens=STEPS,
        min_new_tokens=least,
        sequence_bias=[[[token], value] for token, value in bias.items()] if bias else None,
        do_sample=False,
        eos_token_id=list(ends),
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_scores=True,
    )
    sequences = []
    for tokens in generated.sequences[:, len(prompt) :].tolist():
        end = next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))
        sequences.append(tuple(tokens[:end]))
    return list(zip(sequences, generated.sequences_scores.tolist(), strict=True))


def assert_equal(
    hypotheses: list[BeamHypothesis], expected: list[tuple[tuple[int, ...], float]]
) -> None:
    assert [hypothesis.tokens for hypothesis in hypotheses] == [tokens for tokens, _ in expected]
    scores = [hypothesis.score for hypothesis in hypotheses]
    assert scores == pytest.approx([score for _, score in expected], abs=1e-4, rel=1e-6)


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [0.6, 1.0, 2.0, 0.0, -1.0])
@pytest.mark.parametrize("beams", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_equals_transformers(beams: int, length_penalty: float, early_stopping: bool):
    options = search(beams, length_penalty, early_stopping)
    lengths = set()
    for seed in range(4):
        prompt = prompt_of(seed)
        [hypotheses] = ours(runtime_of(seed % 2), [prompt], options)
        assert_equal(hypotheses, theirs(seed % 2, prompt, options))
        lengths |= {len(hypothesis.tokens) for hypothesis in hypotheses}
    # At 2 the longest win, and all run to the end.
    assert len(lengths) > 1 or length_penalty == 2


@pytest.mark.parametrize("ends", [(2, 7), (2, 7, 9, 11, 13)])
@pytest.mark.parametrize("beams", [2, 5])
def test_equals_transformers_with_several_end_tokens(beams: int, ends: tuple[int, ...]):
    options = search(beams)
    for seed in range(4):
        prompt = prompt_of(seed)
        [hypotheses] = ours(runtime_of(seed % 2), [prompt], options, ends)
        assert_equal(hypotheses, theirs(seed % 2, prompt, options, ends))


@pytest.mark.parametrize("more", [{"penalty": 0.8}, {"penalty": 1.4}, {"least": 6}, {"least": 13}])
def test_equals_transformers_with_a_penalty_or_a_minimum_length(more: dict[str, Any]):
    options, prompt = search(4, 0.6 if "least" in more else 1.0), prompt_of(0)
    [hypotheses] = ours(runtime_of(0), [prompt], options, **more)
    assert_equal(hypotheses, theirs(0, prompt, options, **more))
    [without] = ours(runtime_of(0), [prompt], options)
    assert [h.tokens for h in hypotheses] != [h.tokens for h in without]
    if least := more.get("least"):
        shortest = [min(len(h.tokens) for h in each) for each in (without, hypotheses)]
        assert shortest[0] < least <= shortest[1]


def test_equals_transformers_with_a_bias():
    options, prompt = search(4), prompt_of(0)
    [without] = ours(runtime_of(0), [prompt], options)
    bias = {without[0].tokens[0]: -100.0, 12: 2.5, EOS: 0.5}
    [hypotheses] = ours(runtime_of(0), [prompt], {**options, "logit_bias": bias})
    assert_equal(hypotheses, theirs(0, prompt, options, bias=bias))
    assert [h.tokens for h in hypotheses] != [h.tokens for h in without]


def test_log_probabilities_are_the_models_own_whatever_the_penalty():
    prompt = prompt_of(1)
    model = in_transformers(tiny_llama(0))
    for penalty in (1.0, 1.4):
        [hypotheses] = ours(runtime_of(0), [prompt], search(3), penalty=penalty, least=4)
        for hypothesis in hypotheses:
            logits_sv = model((*prompt, *hypothesis.tokens))[len(prompt) - 1 : -1]
            logprobs_sv = log_softmax(logits_sv.copy())
            expected = logprobs_sv[np.arange(len(hypothesis.tokens)), hypothesis.tokens]
            np.testing.assert_allclose(hypothesis.logprobs, expected, atol=1e-5)


def test_a_prefix_is_computed_once_and_stays_as_it_is():
    prompt = prompt_of(2)
    runtime = runtime_of(0)
    prefix = compute(runtime, Prompt(np.array(prompt, np.int64)), chunk=None)
    once = ours(runtime, [[]], search(4), prefix=prefix)
    assert ours(runtime, [[]], search(4), prefix=prefix) == once
    assert once == ours(runtime_of(0), [prompt], search(4))
    assert prefix.cache.written == (tuple(prompt),)
    assert runtime.adopted == [[0], [0]]


def test_the_last_token_is_not_fed_and_a_lone_step_feeds_none():
    prompt = prompt_of(3)
    for steps in (1, 5):
        runtime = runtime_of(0)
        ours(runtime, [prompt], search(4), ends=(60,), steps=steps)
        in_prompt = -(-len(prompt) // 3)
        assert len(runtime.calls) == in_prompt + steps - 1


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_a_batch_of_prompts_gives_what_each_gives_alone(early_stopping: bool, penalty: float):
    options = search(3, 0.6, early_stopping)
    prompts = [prompt_of(seed, length) for seed, length in enumerate((5, 1, 9, 3))]
    runtime = runtime_of(0)
    together = ours(runtime, prompts, options, penalty=penalty)
    alone = [ours(runtime_of(0), [prompt], options, penalty=penalty)[0] for prompt in prompts]
    assert together == alone
    assert len({hypothesis.tokens for hypotheses in together for hypothesis in hypotheses}) == 12
    # Rows of a prompt whose search is over take no part in the others' steps.
    steps = [len(call) for call in runtime.calls if max(map(len, call.values())) == 1]
    assert steps[steps.index(12) :] == sorted(steps[steps.index(12) :], reverse=True)
    assert len(set(steps)) > 2


def test_where_every_continuation_ends_there_is_nothing_left_to_search():
    [hypotheses] = ours(runtime_of(0), [prompt_of(4)], search(4), ends=range(61))
    assert [len(hypothesis.tokens) for hypothesis in hypotheses] == [1] * 4


@pytest.mark.parametrize("beams", [40, 61])
def test_beams_may_be_as_many_as_there_are_tokens(beams: int):
    """More continuations are considered than one row has."""
    options = search(beams)
    prompt = prompt_of(5)
    [hypotheses] = ours(runtime_of(0), [prompt], options)
    assert_equal(hypotheses, theirs(0, prompt, options))
