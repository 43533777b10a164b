"""Candidates are ranked, and samples scored, as by openai-whisper.

Whole searches are compared in test_window_decoder_equals_openai.py.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import whisper.decoding as openai
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.scripted_runtimes import Script, ScriptedRuntime, random_script, windows
from kvcast.engine.requests import Prompt
from kvcast.engine.scheduler import Scheduler
from kvcast.speech.strategies import Candidate, MaximumLikelihood, Sampling, SearchRequest, Strategy

# openai-whisper sorts torch tensors with NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

VOCAB, EOT = 23, 20
PROMPT = (21, 22)


def our_candidates(
    script: Script, inputs: Sequence[int], strategy: Strategy, max_new_tokens: int
) -> list[list[Candidate]]:
    requests = [
        SearchRequest(
            Prompt(np.array(PROMPT, np.int64), input=window),
            strategy=strategy,
            filters=(),
            eot=EOT,
            max_new_tokens=max_new_tokens,
        )
        for window in windows(*inputs)
    ]
    count = len(requests)
    scheduler = Scheduler(
        ScriptedRuntime(script), rows=count * strategy.width, capacity=448, inputs=count
    )
    for _ in scheduler.run(requests):
        pass
    return [request.search.candidates() for request in requests]


def ends_around(length: int, strength: float) -> Callable[[int], dict[int, float]]:
    """The end becomes likely once that many tokens are written, and ever likelier."""
    return lambda written: {EOT: strength * (written - len(PROMPT) - length)}


SCRIPTS = st.builds(
    random_script,
    vocab=st.just(VOCAB),
    seed=st.integers(0, 2**32),
    bias=st.builds(ends_around, st.integers(-2, 9), st.floats(0.1, 5)),
)
INPUTS = st.lists(st.integers(0, 3), min_size=1, max_size=3)
STEPS = st.integers(1, 14)


def candidate(length: int, sum_logprob: float) -> Candidate:
    return Candidate(tokens=(1,) * length, sum_logprob=sum_logprob)


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        tokens=st.lists(st.integers(0, 9), min_size=1, max_size=30).map(tuple),
        sum_logprob=st.floats(-90, 0),
    ),
    min_size=1,
    max_size=6,
)


@given(candidates=CANDIDATES, penalty=st.none() | st.floats(0, 1))
@example([candidate(1, -1.0), candidate(7, -1.9)], 1.0)
@example([candidate(1, -1.0), candidate(7, -2.1)], 1.0)
@example([candidate(1, -1.0), candidate(7, -1.5)], 0.5)
@example([candidate(2, -1.0), candidate(4, -2.0)], None)
def test_ranking(candidates, penalty):
    tokens = [[torch.tensor(candidate.tokens) for candidate in candidates]]
    sums = [[candidate.sum_logprob for candidate in candidates]]
    [best] = openai.MaximumLikelihoodRanker(penalty).rank(tokens, sums)
    assert MaximumLikelihood(penalty).best(candidates) == candidates[best]


def test_an_empty_candidate_can_be_ranked():
    candidates = [
        Candidate(tokens=(), sum_logprob=-3.0),
        Candidate(tokens=(1, 2), sum_logprob=-4.0),
    ]
    assert MaximumLikelihood().best(candidates).tokens == (1, 2)


@given(script=SCRIPTS, inputs=INPUTS, steps=STEPS, seed=st.integers(0, 9))
@settings(deadline=None)
def test_samples_are_scored_as_openai_scores_them(script, inputs, steps, seed):
    """Whatever was drawn, its score is that of temperature 1 without the draw's temperature."""
    ours = our_candidates(script, inputs, Sampling(1.7, 4, (seed,)), steps)
    for number, candidates in zip(inputs, ours, strict=True):
        assert len(candidates) == 4
        for candidate in candidates:
            ended = [*candidate.tokens, EOT][:steps]
            scores = [
                torch.tensor(script(number, (*PROMPT, *ended[:i]))).log_softmax(-1)[token].item()
                for i, token in enumerate(ended)
            ]
            assert candidate.sum_logprob == pytest.approx(sum(scores), abs=1e-4)
