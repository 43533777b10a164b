"""Proves that an exported model gives the same results as its programs without a cache.

The candidate generates tokens one by one through its caches. The reference processes them all at
once in fp32, so none of its results comes from a cached step. A family's record has the inputs of
both. A bundle keeps the tokens and the largest logits of every step, so that it can be verified
where the checkpoint is not at hand.

Letters in shapes: r rows, s steps, k largest logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcast.errors import KvcastError
from kvcast.families.base import PROBE_STEPS, Family, Probe
from kvcast.families.programs import ALIGNMENT_QUERIES, cache_names
from kvcast.families.table import family_with
from kvcast.runtimes.base import Float32, Int64, Runtime
from kvcast.runtimes.reference import Reference


def prove(candidate: Runtime, reference: Reference, *, exact: bool) -> dict[str, Any]:
    """Compare greedy tokens and logits of the family's probe, and alignment scores.

    KvcastError if a result is not finite or, with `exact` (fp32 bundles), differs.
    """
    dimensions = reference.dimensions
    family = family_with(dimensions)
    probe = family.probe(dimensions)
    generated_rs, stepped_rsv = generate_greedily(
        candidate, probe, steps_of(family, dimensions, probe)
    )
    whole_rsv = _whole(reference, probe, generated_rs)
    record = _record(generated_rs, stepped_rsv, whole_rsv, exact=exact)
    record[KEY] = record_of(probe, generated_rs, stepped_rsv, whole_rsv)
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


def _whole(reference: Reference, probe: Probe, generated_rs: Int64) -> Float32:
    """Logits [rows, steps, vocab] of the generated tokens, all at once."""
    family = family_with(reference.dimensions)
    if family.whole is None:
        return at_once(reference.runtime, family, probe, generated_rs)
    steps, rows = generated_rs.shape[1], zip(probe.prompts, generated_rs[:, :-1], strict=True)
    return np.stack([whole_logits(reference, *row)[-steps:] for row in rows])


def whole_logits(reference: Reference, source: Int64, target: Int64) -> Float32:
    """Logits [len(source) + len(target), vocab] of a prefix LM, from one call.

    The source is given, not derived from lengths: steps must equal this.
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
    generated_rs: Int64, stepped_rsv: Float32, whole_rsv: Float32, *, exact: bool
) -> dict[str, Any]:
    if not np.isfinite(whole_rsv).all():
        raise KvcastError("the model's logits are not all finite: fetch its weights again")
    error = float(np.abs(stepped_rsv - whole_rsv).max())
    equal = likeliest(generated_rs, whole_rsv, TOLERANCE)
    if np.isnan(error) or (exact and (error > TOLERANCE or equal < generated_rs.size)):
        raise KvcastError(
            f"the exported graphs differ from the model: {equal} of {generated_rs.size} tokens "
            f"equal, logits off by up to {error:.2g}; please report this with the model's name"
        )
    return {
        "tokens": generated_rs.size,
        "tokens_equal": equal,
        "max_logit_error": error,
    }


KEY = "outputs"
"""Their name in a manifest's `verification`."""

_LARGEST = 8
_DIGITS = 7  # of a float32


@dataclass(frozen=True)
class TopLogits:
    """The largest logits of tokens, descending, and log-sum-exps [r, s] of all."""

    tokens_rsk: Int64
    logits_rsk: Float32
    sums_rs: Float32


@dataclass(frozen=True)
class RecordedOutputs:
    generated_rs: Int64
    reference: TopLogits
    exported: TopLogits
    deviation: float


def log_sum_exp(logits: Float32) -> Float32:
    largest = logits.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", over="ignore"):
        sums: Float32 = np.log(np.exp(logits - largest).sum(axis=-1)) + largest[..., 0]
    return sums


def record_of(
    probe: Probe, generated_rs: Int64, stepped_rsv: Float32, whole_rsv: Float32
) -> dict[str, Any]:
    return {
        "prompts": [prompt_s.tolist() for prompt_s in probe.prompts],
        "written": generated_rs.tolist(),
        "reference": _largest(whole_rsv),
        "exported": _largest(stepped_rsv),
        "deviation": float(whole_rsv.std(axis=-1).mean()),
    }


def read_record(verification: Mapping[str, Any], dimensions: Any) -> RecordedOutputs | None:
    """None if an older export has none, or of another probe; KvcastError for malformed ones."""
    if KEY not in verification:
        return None
    probe = family_with(dimensions).probe(dimensions)
    try:
        fields = verification[KEY]
        if fields.get("prompts") != [prompt_s.tolist() for prompt_s in probe.prompts]:
            return None
        generated_rs = np.array(fields["written"], np.int64)
        reference, exported = (_top(fields[name]) for name in ("reference", "exported"))
        deviation = float(fields["deviation"])
        sizes = {top.sums_rs.shape for top in (reference, exported)} | {generated_rs.shape}
        tokens = [generated_rs, reference.tokens_rsk, exported.tokens_rsk]
        known = all(
            part.size and part.min() >= 0 and part.max() < dimensions.vocab_size for part in tokens
        )
        values = [top.logits_rsk for top in (reference, exported)]
        finite = all(np.isfinite(part).all() for part in values) and np.isfinite(deviation)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise _wrong() from None
    rows = len(probe.prompts)
    if sizes != {(rows, generated_rs.shape[-1])} or not known or not finite or deviation <= 0:
        raise _wrong()
    return RecordedOutputs(generated_rs, reference, exported, deviation)


def _wrong() -> KvcastError:
    return KvcastError("bundle.json records outputs that no export wrote; export it again")


def _largest(logits_rsv: Float32) -> dict[str, Any]:
    count = min(_LARGEST, logits_rsv.shape[-1])
    tokens_rsk = np.argsort(-logits_rsv, axis=-1, kind="stable")[..., :count]
    logits_rsk = np.take_along_axis(logits_rsv, tokens_rsk, axis=-1)
    return {
        "tokens": tokens_rsk.tolist(),
        "logits": _round(logits_rsk.tolist()),
        "log_sum_exps": _round(log_sum_exp(logits_rsv).tolist()),
    }


def _round(values: Sequence[Any]) -> list[Any]:
    return [
        _round(each) if isinstance(each, list) else float(f"{each:.{_DIGITS}g}") for each in values
    ]


def _top(fields: Mapping[str, Any]) -> TopLogits:
    tokens_rsk = np.array(fields["tokens"], np.int64)
    logits_rsk = np.array(fields["logits"], np.float32)
    sums_rs = np.array(fields["log_sum_exps"], np.float32)
    if not tokens_rsk.shape == logits_rsk.shape == (*sums_rs.shape, tokens_rsk.shape[-1]):
        raise ValueError
    return TopLogits(tokens_rsk, logits_rsk, sums_rs)


TOLERANCE = 1e-3
"""Largest difference of fp32 logits that comes from summing in another order; 1e-4 was seen."""


def steps_of(family: Family, dimensions: Any, probe: Probe) -> int:
    """Tokens that a model can generate after its probe, at most a proof's number."""
    # The last token is not fed, so it needs no position.
    return min(PROBE_STEPS, family.positions(dimensions) - longest_prompt(probe) + 1)


def longest_prompt(probe: Probe) -> int:
    return max(map(len, probe.prompts))


def cache_for(runtime: Any, probe: Probe, capacity: int) -> Any:
    rows = range(len(probe.prompts))
    if not probe.source:
        return runtime.new_cache(len(rows), capacity)
    cache = runtime.new_cache(len(rows), capacity, inputs=len(rows))
    return runtime.reset(runtime.encode(cache, rows, *probe.source), rows, rows)


def generate_greedily(runtime: Runtime, probe: Probe, steps: int) -> tuple[Int64, Float32]:
    """Generate tokens [rows, steps], each the likeliest; return them and their logits."""
    cache = cache_for(runtime, probe, longest_prompt(probe) + steps - 1)
    new: Sequence[Int64] = list(probe.prompts)
    logits, generated = [], []
    for i in range(steps):
        compute = runtime.decode if i else runtime.prefill
        step, cache = compute(new, cache)
        logits.append(step.copy())
        generated.append(step[:, -1].argmax(axis=-1))
        new = list(generated[-1][:, None])
    return np.stack(generated, axis=1), np.concatenate(logits, axis=1)


def at_once(runtime: Any, family: Family, probe: Probe, generated_rs: Int64) -> Float32:
    if family.interface == "prefix":
        return np.stack(
            [
                _after_prefix(runtime, prompt, generated)
                for prompt, generated in zip(probe.prompts, generated_rs, strict=True)
            ]
        )
    if family.one_by_one:
        return _one_by_one(runtime, probe, generated_rs)
    first = longest_prompt(probe) - 1
    capacity = first + generated_rs.shape[1]
    rows = zip(probe.prompts, generated_rs[:, :-1], strict=True)
    logits_rsv: Float32
    logits_rsv, _ = runtime.decode(
        [np.concatenate(row) for row in rows],
        cache_for(runtime, probe, capacity),
        positions=range(first, capacity),
    )
    return logits_rsv


def likeliest(generated_rs: Int64, logits_rsv: Float32, tolerance: float) -> int:
    """Tokens whose logit is within the tolerance of their position's largest."""
    chosen_rs = np.take_along_axis(logits_rsv, generated_rs[..., None], axis=-1)[..., 0]
    return int((chosen_rs >= logits_rsv.max(axis=-1) - tolerance).sum())


def _one_by_one(runtime: Any, probe: Probe, generated_rs: Int64) -> Float32:
    cache, logits = cache_for(runtime, probe, generated_rs.shape[1]), []
    for tokens in [list(probe.prompts), *(list(new) for new in generated_rs[:, :-1].T[..., None])]:
        step, cache = runtime.decode(tokens, cache)
        logits.append(step.copy())
    return np.concatenate(logits, axis=1)


def _after_prefix(runtime: Any, prompt_s: Int64, generated_s: Int64) -> Float32:
    cache = runtime.new_cache(1, len(prompt_s) + len(generated_s) - 1)
    first_1sv, cache = runtime.decode([prompt_s], cache)
    logits = [first_1sv[0].copy()]
    if len(generated_s) > 1:
        more = range(len(generated_s) - 1)
        logits.append(runtime.decode([generated_s[:-1]], cache, positions=more)[0][0])
    return np.concatenate(logits)
