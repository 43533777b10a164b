"""Proves that an exported model gives the same results as its programs without a cache.

The candidate generates tokens one by one through its caches. The reference processes them all at
once in eager fp32, so none of its results comes from a cached step. A family's record has
the inputs of both. Knows no family.
"""

from typing import Any

import numpy as np

from kvcast.errors import KvcastError
from kvcast.families.base import Family, Probe
from kvcast.families.programs import ALIGNMENT_QUERIES
from kvcast.families.table import family_with
from kvcast.loading.probing import at_once, cache_for, stepped, steps_of
from kvcast.runtimes.base import Float32, Int64, Runtime
from kvcast.runtimes.eager.opening import eager_runtime

# Largest difference of fp32 logits that comes from summing in another order; 1e-4 was seen.
TOLERANCE = 1e-3


def prove(candidate: Runtime, programs: Any, *, exact: bool) -> dict[str, Any]:
    """Compare greedy tokens and logits of the family's probe; return the manifest's record.

    Where a model has alignment heads, their scores are compared as well.

    Args:
        candidate: the exported programs, run by their runtime.
        programs: the same model in eager fp32.
        exact: refuse a candidate whose tokens or logits differ (fp32 bundles).

    Raises:
        KvcastError: the reference's logits are not all finite, the candidate's results contain NaN,
            or `exact` is set and the candidate differs.

    """
    dimensions = programs.dimensions
    family = family_with(dimensions)
    probe = family.probe(dimensions)
    written_rs, stepped_rsv = stepped(candidate, probe, steps_of(family, dimensions, probe))
    whole_rsv = _whole(programs, family, probe, written_rs)
    record = _record(written_rs, stepped_rsv, whole_rsv, exact=exact)
    if ALIGNMENT_QUERIES not in family.programs(dimensions)["decode"].outputs:
        return record
    error = _alignment_error(candidate, programs, probe)
    if np.isnan(error) or (exact and error > TOLERANCE):
        raise KvcastError(
            f"the exported graphs differ from the model: scores of alignment heads are off by up "
            f"to {error:.2g}; please report this with the model's name"
        )
    return {**record, "max_score_error": error}


def _whole(programs: Any, family: Family, probe: Probe, written_rs: Int64) -> Float32:
    """Return the logits [rows, steps, vocab] of the generated tokens, all at once."""
    if family.interface != "prefix":
        return at_once(eager_runtime(programs), family, probe, written_rs)
    steps, rows = written_rs.shape[1], zip(probe.prompts, written_rs[:, :-1], strict=True)
    return np.stack([programs.whole(prompt, written)[-steps:] for prompt, written in rows])


def _alignment_error(candidate: Any, programs: Any, probe: Probe) -> float:
    """Return the largest difference of the scores of each input's prompt."""
    scores, expected = (
        [
            runtime.align(tokens_s, cache, row).scores_hst.copy()
            for row, tokens_s in enumerate(probe.prompts)
        ]
        for runtime in (candidate, eager_runtime(programs))
        for cache in [cache_for(runtime, probe, len(probe.prompts[0]))]
    )
    return float(np.abs(np.stack(scores) - np.stack(expected)).max())


def _record(
    written_rs: Int64, stepped_rsv: Float32, whole_rsv: Float32, *, exact: bool
) -> dict[str, Any]:
    if not np.isfinite(whole_rsv).all():
        raise KvcastError("the model's logits are not all finite: fetch its weights again")
    error = float(np.abs(stepped_rsv - whole_rsv).max())
    # A token counts as equal if its logit is within the tolerance of the reference's best.
    chosen_rs = np.take_along_axis(whole_rsv, written_rs[..., None], axis=-1)[..., 0]
    equal = int((chosen_rs >= whole_rsv.max(axis=-1) - TOLERANCE).sum())
    if np.isnan(error) or (exact and (error > TOLERANCE or equal < written_rs.size)):
        raise KvcastError(
            f"the exported graphs differ from the model: {equal} of {written_rs.size} tokens "
            f"equal, logits off by up to {error:.2g}; please report this with the model's name"
        )
    return {
        "reference": "eager fp32, all tokens at once",
        "tokens": written_rs.size,
        "tokens_equal": equal,
        "max_logit_error": error,
    }
