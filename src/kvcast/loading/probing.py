"""Runs a family's probe through a runtime: step by step through its caches, or all tokens at once.

Knows no family, and needs no torch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvcast.families.base import PROBE_STEPS, Family, Probe
from kvcast.runtimes.base import Float32, Int64, Runtime

TOLERANCE = 1e-3
"""Largest difference of fp32 logits that comes from summing in another order; 1e-4 was seen."""


def steps_of(family: Family, dimensions: Any, probe: Probe) -> int:
    """Return how many tokens a model can generate after its probe, of those that a proof wants."""
    # The last token is not fed, so it needs no position.
    return min(PROBE_STEPS, family.positions(dimensions) - longest_prompt(probe) + 1)


def longest_prompt(probe: Probe) -> int:
    """Return the length of the longest prompt."""
    return max(map(len, probe.prompts))


def cache_for(runtime: Any, probe: Probe, capacity: int) -> Any:
    """Return a cache with a row for each prompt, which reads its input if there are any."""
    rows = range(len(probe.prompts))
    if not probe.source:
        return runtime.new_cache(len(rows), capacity)
    cache = runtime.new_cache(len(rows), capacity, inputs=len(rows))
    return runtime.reset(runtime.encode(cache, rows, *probe.source), rows, rows)


def stepped(runtime: Runtime, probe: Probe, steps: int) -> tuple[Int64, Float32]:
    """Return the generated tokens [rows, steps], each the likeliest, and their logits."""
    cache = cache_for(runtime, probe, longest_prompt(probe) + steps - 1)
    new: Sequence[Int64] = list(probe.prompts)
    logits, written = [], []
    for i in range(steps):
        compute = runtime.decode if i else runtime.prefill
        step, cache = compute(new, cache)
        logits.append(step.copy())
        written.append(step[:, -1].argmax(axis=-1))
        new = list(written[-1][:, None])
    return np.stack(written, axis=1), np.concatenate(logits, axis=1)


def at_once(runtime: Any, family: Family, probe: Probe, written_rs: Int64) -> Float32:
    """Return the logits [rows, steps, vocab] of generated tokens: none comes from a cached step.

    A model that reads a source as a prefix reads it in a call of its own; one that takes tokens one
    by one has no other way.
    """
    if family.interface == "prefix":
        return np.stack(
            [
                _after_prefix(runtime, prompt, written)
                for prompt, written in zip(probe.prompts, written_rs, strict=True)
            ]
        )
    if family.one_by_one:
        return _one_by_one(runtime, probe, written_rs)
    first = longest_prompt(probe) - 1
    capacity = first + written_rs.shape[1]
    rows = zip(probe.prompts, written_rs[:, :-1], strict=True)
    logits_rsv: Float32
    logits_rsv, _ = runtime.decode(
        [np.concatenate(row) for row in rows],
        cache_for(runtime, probe, capacity),
        positions=range(first, capacity),
    )
    return logits_rsv


def likeliest(written_rs: Int64, logits_rsv: Float32, tolerance: float) -> int:
    """Return how many tokens have a logit within the tolerance of their position's largest."""
    chosen_rs = np.take_along_axis(logits_rsv, written_rs[..., None], axis=-1)[..., 0]
    return int((chosen_rs >= logits_rsv.max(axis=-1) - tolerance).sum())


def _one_by_one(runtime: Any, probe: Probe, written_rs: Int64) -> Float32:
    cache, logits = cache_for(runtime, probe, written_rs.shape[1]), []
    for tokens in [list(probe.prompts), *(list(new) for new in written_rs[:, :-1].T[..., None])]:
        step, cache = runtime.decode(tokens, cache)
        logits.append(step.copy())
    return np.concatenate(logits, axis=1)


def _after_prefix(runtime: Any, prompt_s: Int64, written_s: Int64) -> Float32:
    cache = runtime.new_cache(1, len(prompt_s) + len(written_s) - 1)
    first_1sv, cache = runtime.decode([prompt_s], cache)
    logits = [first_1sv[0].copy()]
    if len(written_s) > 1:
        more = range(len(written_s) - 1)
        logits.append(runtime.decode([written_s[:-1]], cache, positions=more)[0][0])
    return np.concatenate(logits)
