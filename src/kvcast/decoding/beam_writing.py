"""Beam search after a computed prefix: the search decides, the runtime's rows follow.

Knows a `DecoderOnly` runtime, and neither what tokens mean nor how beams are chosen.
"""

from collections.abc import Callable, Sequence

import numpy as np

from kvcast.decoding.beams import Ended, Hypothesis, NormalisedBeamSearch
from kvcast.decoding.numerics import log_softmax
from kvcast.decoding.prefixes import Prefix
from kvcast.decoding.sampling import RepetitionPenalty
from kvcast.runtimes.base import Float32


def write_beams(
    prefix: Prefix,
    search: NormalisedBeamSearch,
    *,
    ended: Ended,
    end_tokens: int,
    max_new_tokens: int,
    penalty: RepetitionPenalty,
    on_step: Callable[[], None],
) -> list[Hypothesis]:
    """Continue a prefix by up to `max_new_tokens` tokens; return the finished, best first.

    Args:
        prefix: what to continue.
        search: how.
        ended: tells of all new tokens whether the last of them ends the sequence.
        end_tokens: how many tokens may end one.
        max_new_tokens: longest sequence, 1 or more.
        penalty: applied to log-probabilities.
        on_step: called when the tokens of a step were chosen.

    """
    runtime = prefix.runtime
    beams = search.start(
        1, lambda tokens: ended(tokens) or len(tokens) == max_new_tokens, end_tokens
    )

    def step(logits_rv: Float32) -> list[int]:
        logprobs_rv = log_softmax(logits_rv)
        scores_rv = _penalised(logprobs_rv, penalty, prefix.tokens, beams.histories)
        sources = beams.advance(scores_rv, logprobs_rv)
        on_step()
        return sources

    step(prefix.logits_v[None].copy())
    cache = prefix.rows(len(beams.histories), 0, len(prefix.tokens) + max_new_tokens - 1)
    while not beams.done:
        last_tokens = [np.array(history[-1:], np.int64) for history in beams.histories]
        logits_rpv, cache = runtime.decode(last_tokens, cache)
        sources = step(logits_rpv[:, -1])
        if sources != list(range(len(sources))):
            cache = runtime.reorder(cache, sources)
    [hypotheses] = beams.hypotheses()
    return hypotheses


def _penalised(
    logprobs_rv: Float32,
    penalty: RepetitionPenalty,
    prompt: Sequence[int],
    histories: Sequence[Sequence[int]],
) -> Float32:
    """Return scores to choose by; log-probabilities stay what the model gave."""
    if penalty.penalty == 1:
        return logprobs_rv
    scores_rv = logprobs_rv.copy()
    for scores_v, history in zip(scores_rv, histories, strict=True):
        penalty.apply(scores_v, np.array([*prompt, *history], np.int64))
    return scores_rv
