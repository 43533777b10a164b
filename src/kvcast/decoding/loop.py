"""The generation loop: prefill once, then filter, choose, and feed what was chosen.

Knows an `EncoderDecoder`, and neither the tokens' meaning nor how they are chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvcast.decoding.filters import LogitFilter
from kvcast.decoding.strategies import Candidate, Strategy
from kvcast.runtimes.base import CrossCache, EncoderDecoder, Float32, Int64


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Candidates of each input, and the unfiltered logits [inputs, vocab] at the probe."""

    candidates: list[list[Candidate]]
    probe_bv: Float32


def generate(
    runtime: EncoderDecoder,
    cross: CrossCache,
    prompt_bs: Int64,
    *,
    strategy: Strategy,
    filters: Sequence[LogitFilter],
    eot: int,
    max_new_tokens: int,
    probe: int = -1,
) -> Generation:
    """Continue one prompt for each encoded input.

    Args:
        runtime: runs the model; the logits it returns are overwritten.
        cross: the encoded inputs.
        prompt_bs: tokens [inputs, S], S >= 1.
        strategy: chooses tokens.
        filters: applied to the logits of each step, in this order.
        eot: the token that ends a sequence.
        max_new_tokens: steps after which the search ends, 1 or more.
        probe: offset into the prompt whose logits to return as the model gave them.

    """
    search = strategy.start(len(prompt_bs), eot)
    # The last token is chosen and never fed.
    cache = runtime.new_cache(cross, len(prompt_bs), prompt_bs.shape[1] + max_new_tokens - 1)
    logits_rpv, cache = runtime.decode(prompt_bs, cache, (probe, -1))
    probe_bv = logits_rpv[:, 0].copy()
    for remaining in reversed(range(max_new_tokens)):
        logits_rv = logits_rpv[:, -1]
        for logit_filter in filters:
            logit_filter.apply(logits_rv, search.histories)
        rows = len(search.histories)
        sources = search.advance(logits_rv)
        if search.done or not remaining:
            break
        if sources != list(range(rows)):
            cache = runtime.reorder(cache, sources)
        last_r1 = np.array([history[-1:] for history in search.histories], np.int64)
        logits_rpv, cache = runtime.decode(last_r1, cache)
    return Generation(candidates=search.candidates(), probe_bv=probe_bv)
