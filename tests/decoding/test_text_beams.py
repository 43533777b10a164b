"""Beam search finds what transformers' finds, token for token, with the same scores."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from recomputing_runtime import RecomputingRuntime, in_transformers, random_model, tiny_llama

from kvcast.decoding.beam_writing import write_beams
from kvcast.decoding.beams import Hypothesis, NormalisedBeamSearch
from kvcast.decoding.numerics import log_softmax
from kvcast.decoding.prefixes import Nothing, Prefix
from kvcast.decoding.sampling import RepetitionPenalty
from kvcast.errors import UsageError

PAD, EOS = 0, 11
STEPS = 14


def prompt_of(seed: int, length: int = 5) -> list[int]:
    return np.random.default_rng(seed).integers(3, 61, length).tolist()


def prefix_of(seed: int, prompt: Sequence[int]) -> Prefix:
    runtime = RecomputingRuntime(in_transformers(tiny_llama(seed)))
    return Nothing(runtime).after(prompt, chunk=512)


def ours(
    prefix: Prefix,
    search: NormalisedBeamSearch,
    ends: Sequence[int] = (EOS,),
    penalty: float = 1.0,
    steps: int = STEPS,
) -> list[Hypothesis]:
    return write_beams(
        prefix,
        search,
        ended=lambda tokens: tokens[-1] in ends,
        end_tokens=len(ends),
        max_new_tokens=steps,
        penalty=RepetitionPenalty(penalty),
        on_step=lambda: None,
    )


def theirs(
    seed: int,
    prompt: Sequence[int],
    search: NormalisedBeamSearch,
    ends: Sequence[int] = (EOS,),
    penalty: float = 1.0,
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
        found = ours(prefix_of(seed % 2, prompt), search)
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
        found = ours(prefix_of(seed % 2, prompt), search, ends)
        assert_equal(found, theirs(seed % 2, prompt, search, ends))


@pytest.mark.parametrize("penalty", [0.8, 1.4])
def test_equals_transformers_with_a_repetition_penalty(penalty: float):
    search = NormalisedBeamSearch(4)
    prompt = prompt_of(0)
    prefix = prefix_of(0, prompt)
    found = ours(prefix, search, penalty=penalty)
    assert_equal(found, theirs(0, prompt, search, penalty=penalty))
    assert [h.tokens for h in found] != [h.tokens for h in ours(prefix, search)]


def test_log_probabilities_are_the_models_own_whatever_the_penalty():
    prompt = prompt_of(1)
    model = in_transformers(tiny_llama(0))
    for penalty in (1.0, 1.4):
        for hypothesis in ours(prefix_of(0, prompt), NormalisedBeamSearch(3), penalty=penalty):
            logits_sv = model((*prompt, *hypothesis.tokens))[len(prompt) - 1 : -1]
            logprobs_sv = log_softmax(logits_sv.copy())
            expected = logprobs_sv[np.arange(len(hypothesis.tokens)), hypothesis.tokens]
            np.testing.assert_allclose(hypothesis.logprobs, expected, atol=1e-5)


def test_the_prefix_stays_as_it_is():
    prompt = prompt_of(2)
    prefix = prefix_of(0, prompt)
    once = ours(prefix, NormalisedBeamSearch(4))
    assert ours(prefix, NormalisedBeamSearch(4)) == once
    assert prefix.cache.written == (tuple(prompt),)
    assert prefix.runtime.forks[0] == [0] * 4


def test_the_last_token_is_not_fed_and_a_lone_step_feeds_none():
    prefix = prefix_of(0, prompt_of(3))
    ours(prefix, NormalisedBeamSearch(4), ends=(60,), steps=1)
    assert len(prefix.runtime.calls) == 1
    ours(prefix, NormalisedBeamSearch(4), ends=(60,), steps=5)
    assert len(prefix.runtime.calls) == 1 + 4


def test_a_batch_of_inputs_gives_what_each_gives_alone():
    """As an encoder-decoder model would use it: inputs in step, over rows of log-probabilities."""
    models = [random_model(61, seed, scale=1.5) for seed in range(3)]
    search = NormalisedBeamSearch(3)

    def run(inputs: list[int]) -> list[list[Hypothesis]]:
        beams = search.start(len(inputs), lambda tokens: tokens[-1] < 6 or len(tokens) == 9, 6)
        while not beams.done:
            size = len(beams.histories) // len(inputs)
            logits_rv = np.stack(
                [
                    models[inputs[row // size]]((60, *history))[-1]
                    for row, history in enumerate(beams.histories)
                ]
            )
            logprobs_rv = log_softmax(logits_rv)
            sources = beams.advance(logprobs_rv, logprobs_rv)
            assert [source // size for source in sources] == [
                row // search.beams for row in range(len(sources))
            ]
        return beams.hypotheses()

    together = run([0, 1, 2])
    assert together == [run([i])[0] for i in range(3)]
    assert len({hypothesis.tokens for found in together for hypothesis in found}) == 9


def test_where_every_continuation_ends_there_is_nothing_left_to_search():
    prefix = prefix_of(0, prompt_of(4))
    found = ours(prefix, NormalisedBeamSearch(4), ends=range(61))
    assert [len(hypothesis.tokens) for hypothesis in found] == [1] * 4


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
