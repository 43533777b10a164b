"""Proves that an exported model gives the same results as its programs without a cache.

The candidate generates tokens one by one through its caches. The reference processes them all at
once in fp32, so none of its results comes from a cached step. A family's record has the inputs of
both. Knows no family, and not what executes the reference.
"""

from typing import Any

import numpy as np

from kvcast.errors import KvcastError
from kvcast.families.base import Probe
from kvcast.families.programs import ALIGNMENT_QUERIES, cache_names
from kvcast.families.table import family_with
from kvcast.loading.probing import TOLERANCE, at_once, cache_for, likeliest, stepped, steps_of
from kvcast.loading.recorded import KEY, record_of
from kvcast.runtimes.base import Float32, Int64, Runtime
from kvcast.runtimes.reference import Reference


def prove(candidate: Runtime, reference: Reference, *, exact: bool) -> dict[str, Any]:
    """Compare greedy tokens and logits of the family's probe; return the manifest's record.

    Where a model has alignment heads, their scores are compared as well. The record keeps the
    largest logits (`kvcast.loading.recorded`), with which the bundle can be compared again.

    Args:
        candidate: the exported programs, run by their runtime.
        reference: the same model in fp32.
        exact: refuse a candidate whose tokens or logits differ (fp32 bundles).

    Raises:
        KvcastError: the reference's logits are not all finite, the candidate's results contain NaN,
            or `exact` is set and the candidate differs.

    """
    dimensions = reference.dimensions
    family = family_with(dimensions)
    probe = family.probe(dimensions)
    written_rs, stepped_rsv = stepped(candidate, probe, steps_of(family, dimensions, probe))
    whole_rsv = _whole(reference, probe, written_rs)
    record = _record(written_rs, stepped_rsv, whole_rsv, exact=exact)
    record[KEY] = record_of(written_rs, stepped_rsv, whole_rsv)
    record = {"reference": f"{reference.name}, all tokens at once", **record}
    if ALIGNMENT_QUERIES not in family.programs(dimensions)["decode"].outputs:
        return record
    error = _alignment_error(candidate, reference.runtime, probe)
    if np.isnan(error) or (exact and error > TOLERANCE):
        raise KvcastError(
            f"the exported graphs differ from the model: scores of alignment heads are off by up "
            f"to {error:.2g}; please report this with the model's name"
        )
    return {**record, "max_score_error": error}


def _whole(reference: Reference, probe: Probe, written_rs: Int64) -> Float32:
    """Return the logits [rows, steps, vocab] of the generated tokens, all at once."""
    family = family_with(reference.dimensions)
    if family.whole is None:
        return at_once(reference.runtime, family, probe, written_rs)
    steps, rows = written_rs.shape[1], zip(probe.prompts, written_rs[:, :-1], strict=True)
    return np.stack([whole_logits(reference, *row)[-steps:] for row in rows])


def whole_logits(reference: Reference, source: Int64, target: Int64) -> Float32:
    """Return logits [len(source) + len(target), vocab] of a prefix model, from one call.

    The source is given, not derived from lengths: steps must equal this.

    Raises TypeError for models of other kinds.
    """
    dimensions = reference.dimensions
    write = family_with(dimensions).whole
    if write is None:
        raise TypeError("`decode` itself takes whole sequences")
    program, tokens_s = write(dimensions), np.concatenate([source, target])
    shape = (1, dimensions.kv_heads, len(tokens_s), dimensions.head_dim)
    caches = cache_names("past", len(dimensions.windows))
    inputs = {
        "tokens": tokens_s[None],
        "lengths": np.zeros(1, np.int32),
        "offsets": np.arange(len(tokens_s)),
        "sources": np.array([len(source)], np.int32),
        **{name: np.zeros(shape, np.float32) for name in caches},
    }
    logits_1sv = np.empty((1, len(tokens_s), dimensions.vocab_size), np.float32)
    reference.run(program, inputs, {"logits": logits_1sv})
    logits_sv: Float32 = logits_1sv[0]
    return logits_sv


def _alignment_error(candidate: Any, reference: Any, probe: Probe) -> float:
    """Return the largest difference of the scores of each input's prompt."""
    scores, expected = (
        [
            runtime.align(tokens_s, cache, row).scores_hst.copy()
            for row, tokens_s in enumerate(probe.prompts)
        ]
        for runtime in (candidate, reference)
        for cache in [cache_for(runtime, probe, len(probe.prompts[0]))]
    )
    return float(np.abs(np.stack(scores) - np.stack(expected)).max())


def _record(
    written_rs: Int64, stepped_rsv: Float32, whole_rsv: Float32, *, exact: bool
) -> dict[str, Any]:
    if not np.isfinite(whole_rsv).all():
        raise KvcastError("the model's logits are not all finite: fetch its weights again")
    error = float(np.abs(stepped_rsv - whole_rsv).max())
    equal = likeliest(written_rs, whole_rsv, TOLERANCE)
    if np.isnan(error) or (exact and (error > TOLERANCE or equal < written_rs.size)):
        raise KvcastError(
            f"the exported graphs differ from the model: {equal} of {written_rs.size} tokens "
            f"equal, logits off by up to {error:.2g}; please report this with the model's name"
        )
    return {
        "tokens": written_rs.size,
        "tokens_equal": equal,
        "max_logit_error": error,
    }
