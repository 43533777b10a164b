"""Beam search over prompts or sources that were read: the search decides, the rows follow.

Knows neither runtimes nor what tokens mean, nor how beams are chosen.
"""

from collections.abc import Callable, Sequence

import numpy as np

from kvcast.decoding.beams import Ended, Hypothesis, NormalisedBeamSearch
from kvcast.decoding.drafts import Endings
from kvcast.decoding.numerics import log_softmax
from kvcast.decoding.rows import Beginning, Tokens
from kvcast.decoding.sampling import RepetitionPenalty
from kvcast.runtimes.base import Float32


def write_beams(
    beginning: Beginning,
    search: NormalisedBeamSearch,
    *,
    ended: Sequence[Ended],
    endings: Endings,
    penalty: RepetitionPenalty,
    on_step: Callable[[int], None],
) -> list[list[Hypothesis]]:
    """Continue prompts in step; return the finished sequences of each, best first.

    What is found for a prompt does not depend on the others: once its search is over, its rows take
    no part.

    Args:
        beginning: what to continue.
        search: how.
        ended: for each prompt, tells of all new tokens whether the last of them ends the sequence;
            must be true of sequences that have no room for more.
        endings: which tokens end a sequence, and from which length on.
        penalty: applied to log-probabilities.
        on_step: called with a prompt's number when tokens were chosen for its rows.

    """
    beams = search.start(ended, len(endings.end_tokens))
    prompt_of_row = np.repeat(np.arange(len(ended)), search.beams)

    def step(logits_rv: Float32, prompts: Sequence[Tokens]) -> list[int]:
        logprobs_rv = log_softmax(logits_rv)
        histories = beams.histories
        scores_rv = _penalised(logprobs_rv, penalty, prompts, histories)
        scores_rv = endings.withheld(scores_rv, len(histories[0]))
        searched = beams.inputs
        sources = beams.advance(scores_rv, logprobs_rv)
        for i in searched:
            on_step(i)
        return sources

    step(beginning.logits_bv.copy(), beginning.preceding)
    if not beams.inputs:
        return beams.hypotheses()
    rows = beginning.rows(search.beams)
    while live := beams.rows:
        last_tokens_r = np.array([history[-1] for history in beams.histories], np.int64)
        prompts = [beginning.preceding[i] for i in prompt_of_row[live]]
        sources = step(rows.step(live, last_tokens_r), prompts)
        if beams.inputs and sources != list(range(len(sources))):
            rows.reorder(sources)
    return beams.hypotheses()


def _penalised(
    logprobs_rv: Float32,
    penalty: RepetitionPenalty,
    prompts: Sequence[Tokens],
    histories: Sequence[Tokens],
) -> Float32:
    """Return scores to choose by; log-probabilities stay what the model gave."""
    if penalty.penalty == 1:
        return logprobs_rv
    scores_rv = logprobs_rv.copy()
    for scores_v, prompt, history in zip(scores_rv, prompts, histories, strict=True):
        penalty.apply(scores_v, np.array([*prompt, *history], np.int64))
    return scores_rv
