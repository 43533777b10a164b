"""The scheduler with each search finds the candidates that openai-whisper's token decoders find.

Both follow the same scripted logits; openai-whisper's decoders are driven by its main loop's rule.
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
from kvcast.speech.strategies import (
    BeamSearch,
    Candidate,
    Greedy,
    MaximumLikelihood,
    Sampling,
    SearchRequest,
    Strategy,
)

# openai-whisper sorts torch tensors with NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

VOCAB, EOT = 23, 20
PROMPT = (21, 22)


class NoCache(openai.Inference):
    def rearrange_kv_cache(self, source_indices: list[int]) -> None:
        """Scripted logits follow from the tokens."""


def openai_candidates(
    script: Script,
    inputs: Sequence[int],
    decoder: openai.TokenDecoder,
    group: int,
    max_new_tokens: int,
) -> list[list[Candidate]]:
    """Run `DecodingTask._main_loop` and what follows it, without a model."""
    tokens = torch.tensor([PROMPT] * len(inputs)).repeat_interleave(group, dim=0)
    sum_logprobs = torch.zeros(len(tokens))
    for _ in range(max_new_tokens):
        rows = [script(inputs[r // group], tuple(row)) for r, row in enumerate(tokens.tolist())]
        tokens, completed = decoder.update(tokens, torch.tensor(np.array(rows)), sum_logprobs)
        if completed:
            break
    grouped = tokens.reshape(len(inputs), group, -1), sum_logprobs.reshape(len(inputs), group)
    return [
        [
            Candidate(tokens=before_end(sequence.tolist()[len(PROMPT) :]), sum_logprob=sum_logprob)
            for sequence, sum_logprob in zip(*candidates_of_input, strict=True)
        ]
        for candidates_of_input in zip(*decoder.finalize(*grouped), strict=True)
    ]


def before_end(tokens: list[int]) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(EOT)])


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


def assert_equal(ours: list[list[Candidate]], theirs: list[list[Candidate]]) -> None:
    for our_input, their_input in zip(ours, theirs, strict=True):
        assert [c.tokens for c in our_input] == [c.tokens for c in their_input]
        sums = [c.sum_logprob for c in their_input]
        assert [c.sum_logprob for c in our_input] == pytest.approx(sums, abs=1e-4)


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


@given(script=SCRIPTS, inputs=INPUTS, steps=STEPS)
@settings(deadline=None)
def test_greedy(script, inputs, steps):
    theirs = openai_candidates(script, inputs, openai.GreedyDecoder(0, EOT), 1, steps)
    assert_equal(our_candidates(script, inputs, Greedy(), steps), theirs)


@given(
    script=SCRIPTS,
    inputs=INPUTS,
    steps=STEPS,
    beams=st.integers(2, 7),
    patience=st.sampled_from([0.5, 1.0, 1.3, 2.0, 3.0]),
)
@settings(deadline=None, max_examples=200)
def test_beam_search(script, inputs, steps, beams, patience):
    theirs = []
    for number in inputs:  # one by one: in a batch, its impatient searches would touch each other
        decoder = openai.BeamSearchDecoder(beams, EOT, NoCache(), patience)
        theirs += openai_candidates(script, [number], decoder, beams, steps)
    assert_equal(our_candidates(script, inputs, BeamSearch(beams, patience), steps), theirs)


@pytest.mark.parametrize(
    "strategy", [Greedy(), BeamSearch(5), BeamSearch(3, 2.0), BeamSearch(4, 0.5)]
)
@given(script=SCRIPTS, inputs=INPUTS, steps=STEPS)
@settings(deadline=None, max_examples=40)
def test_inputs_of_a_batch_do_not_touch_each_other(strategy, script, inputs, steps):
    together = our_candidates(script, inputs, strategy, steps)
    alone = [our_candidates(script, [number], strategy, steps)[0] for number in inputs]
    # A beam search goes on until all inputs are done, which a finished one must not notice. Below
    # a patience of 1 beams under way are candidates as well: they must not have grown.
    assert together == alone


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
