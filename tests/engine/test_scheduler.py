"""What a request of one strategy asks of a runtime, shows to filters, draws, and gives back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

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

VOCAB, EOT = 6, 5


def never_ends(length: int) -> dict[int, float]:
    return {EOT: -1000.0}


@dataclass(frozen=True)
class Outcome:
    candidates: list[list[Candidate]]
    probed: list[np.ndarray]


def run(
    script: Script, strategy: Strategy, prompts: Sequence[Sequence[int]] = ((4, 3),), **options: Any
) -> tuple[Outcome, ScriptedRuntime]:
    runtime = ScriptedRuntime(script)
    requests = [
        SearchRequest(
            Prompt(np.array(prompt, np.int64), input=window),
            strategy=strategy,
            eot=EOT,
            **{"filters": (), "max_new_tokens": 8} | options,
        )
        for prompt, window in zip(prompts, windows(*range(len(prompts))), strict=True)
    ]
    rows = strategy.width * len(prompts)
    for _ in Scheduler(runtime, rows=rows, capacity=448, inputs=len(prompts)).run(requests):
        pass
    candidates = [request.search.candidates() for request in requests]
    return Outcome(candidates, [request.probed_v for request in requests]), runtime


def says(*tokens: int) -> Script:
    """Each token in its turn with a logit of 10, after a prompt of two; then the end."""

    def logits(number: int, written: tuple[int, ...]) -> np.ndarray:
        logits_v = np.zeros(VOCAB, np.float32)
        logits_v[[*tokens, EOT][min(len(written) - 2, len(tokens))]] = 10
        return logits_v

    return logits


def test_the_prompt_is_fed_once_and_then_one_token_at_a_time():
    generation, runtime = run(says(0, 2, 1), Greedy())
    assert runtime.calls == [{0: [4, 3]}, {0: [0]}, {0: [2]}, {0: [1]}]
    [[candidate]] = generation.candidates
    assert candidate.tokens == (0, 2, 1)
    each = -np.log1p((VOCAB - 1) * np.exp(-10))
    assert candidate.sum_logprob == pytest.approx(4 * each, abs=1e-6)


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(2), Sampling(0.001, 3, (0,))])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_no_more_tokens_are_written_than_asked_for(strategy: Strategy, steps: int):
    generation, runtime = run(random_script(VOCAB, 0, never_ends), strategy, max_new_tokens=steps)
    for candidate in generation.candidates[0]:
        assert len(candidate.tokens) == steps
    assert len(runtime.calls) == steps  # the last token is not fed


def test_a_row_that_ended_keeps_its_score_while_others_go_on():
    script = random_script(VOCAB, 3, lambda length: {EOT: 2.0})
    both, runtime = run(script, Greedy(), [[4, 3], [4, 3]], max_new_tokens=40)
    lengths = [len(candidates[0].tokens) for candidates in both.candidates]
    assert len(set(lengths)) == 2
    assert len(runtime.calls) == max(lengths) + 1


class Spy:
    def __init__(self) -> None:
        self.seen: list[list[list[int]]] = []

    def apply(self, logits_rv: np.ndarray, generated_rn: np.ndarray) -> None:
        self.seen.append(generated_rn.tolist())


class Only:
    def __init__(self, token: int) -> None:
        self.token = token

    def apply(self, logits_rv: np.ndarray, generated_rn: np.ndarray) -> None:
        kept_r = logits_rv[:, self.token].copy()
        logits_rv[:] = -np.inf
        logits_rv[:, self.token] = kept_r


def test_filters_see_what_was_sampled_without_the_prompt():
    spy = Spy()
    run(says(0, 2, 1), Greedy(), filters=[spy])
    assert spy.seen == [[[]], [[0]], [[0, 2]], [[0, 2, 1]]]


def test_the_choice_is_made_and_scored_after_the_filters_in_their_order():
    generation, _ = run(says(0, 2, 1), Greedy(), filters=[Only(3), Spy()], max_new_tokens=4)
    [[candidate]] = generation.candidates
    assert candidate.tokens == (3, 3, 3, 3)
    assert candidate.sum_logprob == 0


@pytest.mark.parametrize("probe", [0, 1])
@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(3)])
def test_the_probe_is_what_the_model_gave_before_any_filter(strategy: Strategy, probe: int):
    script = random_script(VOCAB, 0, never_ends)
    prompts = [[4, 3], [1, 2]]
    generation, _ = run(script, strategy, prompts, filters=[Only(3)], probe=probe)
    for number, prompt in enumerate(prompts):
        expected = script(number, tuple(prompt[: probe + 1]))
        assert generation.probed[number].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("strategy", "reorders"),
    [(Greedy(), []), (Sampling(1.0, 1, (0,)), []), (Sampling(1.0, 3, (0,)), [[0, 0, 0, 3, 3, 3]])],
    ids=repr,
)
def test_samples_fan_out_once_and_single_rows_are_never_reordered(strategy, reorders):
    _, runtime = run(random_script(VOCAB, 0, never_ends), strategy, [[4, 3], [1, 2]])
    assert runtime.reorders == reorders


def test_beams_that_stay_in_order_are_not_reordered():
    def logits(number: int, written: tuple[int, ...]) -> np.ndarray:
        """Three beams part at the first step; from then on each has one way to go."""
        logits_v = np.full(VOCAB, -100, np.float32)
        if len(written) == 2:
            logits_v[:3] = 3, 2, 1
        else:
            logits_v[written[2]] = 0
        return logits_v

    generation, runtime = run(logits, BeamSearch(3), max_new_tokens=5)
    assert runtime.reorders == [[0, 0, 0]]
    assert [c.tokens for c in generation.candidates[0]] == [(0,) * 5, (1,) * 5, (2,) * 5]


def test_beams_that_change_place_are_reordered_within_their_input():
    script = random_script(VOCAB, 1, never_ends)
    _, runtime = run(script, BeamSearch(3), [[4, 3], [1, 2]], max_new_tokens=20)
    assert runtime.reorders[0] == [0, 0, 0, 3, 3, 3]
    assert len(runtime.reorders) > 1
    for parents in runtime.reorders:
        assert max(parents[:3]) < 3 <= min(parents[3:])


DRAWS = 20_000


LOGITS_V = np.array([2, 1, 0, -np.inf, 1.5, -1], np.float32)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_tokens_are_drawn_as_often_as_they_are_probable(temperature: float):
    strategy = Sampling(temperature, DRAWS, (0,))
    generation, _ = run(lambda number, written: LOGITS_V, strategy, max_new_tokens=1)
    drawn = [(*candidate.tokens, EOT)[0] for candidate in generation.candidates[0]]
    frequencies = np.bincount(drawn, minlength=VOCAB) / DRAWS
    weights = np.exp(LOGITS_V / temperature)
    # Five standard deviations of a frequency near one half.
    assert frequencies == pytest.approx(weights / weights.sum(), abs=0.018)
    assert frequencies[3] == 0


def test_one_seed_gives_one_result_and_another_seed_another():
    script = random_script(VOCAB, 0, lambda length: {EOT: -1.0})

    def candidates(*seed: int) -> object:
        return run(script, Sampling(1.0, 5, seed), max_new_tokens=20)[0].candidates

    assert candidates(1, 2) == candidates(1, 2)
    assert candidates(1, 2) != candidates(1, 3)


def test_samples_of_one_input_differ_and_the_likeliest_is_best():
    script = random_script(VOCAB, 0, never_ends)
    generation, _ = run(script, Sampling(1.0, 5, (0,)), max_new_tokens=10)
    [candidates] = generation.candidates
    assert len({candidate.tokens for candidate in candidates}) == 5
    best = MaximumLikelihood().best(candidates)
    assert best.sum_logprob == max(candidate.sum_logprob for candidate in candidates)
