"""Checks of an exported decoder: kvcast's own, and the cost of a step, which is no verdict."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

import numpy as np
from typing_extensions import override

from kvcast.families.table import family_with
from kvcast.verification.cases import Driver, Text, one_each
from kvcast.verification.checks import CHECKS as OWN_CHECKS
from kvcast.verification.checks import rows
from kvcast.verification.foreign.base import ForeignModel, ForeignRuntime, Movement, StepWork
from kvcast.verification.references import WholeLogits
from kvcast.verification.report import Check
from kvcast.verification.trial import ROWS, Baseline, Trial, skipped

_LONGEST = 1024
"""The longest sequence whose bytes per step are reported."""


@dataclass(kw_only=True, eq=False)
class ForeignTrial(Trial):
    """An exported decoder under verification; `reopen` loads it once more."""

    model: ForeignModel
    reopen: Callable[[], ForeignModel]

    @cached_property
    def work(self) -> StepWork:
        """The work of a step, measured on a separate load."""
        return self.reopen().work()

    @override
    def fresh(self) -> Driver:
        return replace(self.driver, runtime=ForeignRuntime(self.reopen()))

    @cached_property
    @override
    def beside(self) -> Driver:
        return self.fresh()

    @cached_property
    @override
    def together(self) -> Sequence[Baseline]:
        """Texts of one length: the first with permuted tokens."""
        text = self.baselines[0].text
        orders = [np.random.default_rng(self.seed + i) for i in range(ROWS)]
        return [
            self.baseline(text.with_tokens(order.permutation(text.generated_n))) for order in orders
        ]


def second_input(trial: ForeignTrial) -> Check:
    """Run a second input after the longest text on one load."""
    trial.driver.stepped(trial.long.text)
    return rows.second_input(trial)


def window(trial: ForeignTrial) -> Check:
    """Compare positions past the shortest window with the reference's."""
    if trial.oracle is None or trial.dimensions is None:
        return skipped("window", "there is no reference with windows")
    layers = family_with(trial.dimensions).caches(trial.dimensions)
    windows = sorted({layer.capacity for layer in layers if layer.kind == "ring"})
    text = trial.long.text
    if not windows:
        return skipped("window", "no layer has a window")
    if len(text) <= windows[0] + 1:
        why = f"the longest text ends before the window of {windows[0]}: raise --positions"
        return skipped("window", why)
    begun = max(windows[0] - text.first, 0)
    expected = trial.oracle.expected(text, trial.columns)
    past = WholeLogits(expected.logits_nv[begun:]) if isinstance(expected, WholeLogits) else None
    if past is None:
        return skipped("window", "the reference has no whole texts")
    comparison = trial.comparison(trial.tolerance.reference)
    about = f"past a window of {windows[0]}"
    comparison.add(past, trial.long.stepped.logits_nv[begun:], about, text.first + begun)
    words = f"{len(past)} positions past the window of {windows[0]} are the reference's"
    return comparison.check("window", words)


def memory(trial: ForeignTrial) -> Check:
    """Report the bytes of caches after a prompt and after each further token."""
    text = trial.baselines[0].text
    held = list(_held(trial, text))
    more = {after - before for before, after in pairwise(held)}
    grows = more != {0} and bool(more)
    words = (
        f"caches of a row hold {held[-1]:,} bytes at {len(text)} positions"
        if grows
        else f"caches of a row hold {held[-1]:,} bytes, for all positions from the beginning"
    )
    measured = {"held_bytes": held, "bytes_per_step": max(more, default=0)}
    return Check(name="memory", outcome="noted", detail=words, measured=measured)


def copies(trial: ForeignTrial) -> Check:
    """Report which caches a step copies, and the bytes of whole caches that it writes."""
    work, length = trial.work, _length(trial)
    begun, after = islice(_held(trial, trial.baselines[0].text), 2)
    held = begun + (length - len(trial.cases[0].prompt_s)) * (after - begun)
    copied = [name for name, how in work.caches.items() if how == "copied"]
    moved = work.moved if work.measured is None else work.measured
    measured: dict[str, Any] = {
        "caches": dict(work.caches),
        "length": length,
        "held_bytes": held,
        "bytes_a_step": sum(each.at(length) for each in moved),
        "from_the_file": [_plain(each, length) for each in work.moved],
        "profiled": None if work.measured is None else [_plain(m, length) for m in work.measured],
    }
    if work.measured is not None and (odd := _differing(work)):
        words = f"the file and the runtime's profile give different bytes of {', '.join(odd)}"
        return Check(name="copies", outcome="failed", detail=words, measured=measured)
    if not copied and not moved:
        written = sum(how == "in place" for how in work.caches.values())
        words = f"a step writes {written} tensors of caches in place, and copies none"
    else:
        words = (
            f"a step at {length} positions writes {sum(m.at(length) for m in moved):,} bytes of "
            f"whole caches, of {held:,} held: {_told(moved, length)}; {len(copied)} of "
            f"{len(work.caches)} tensors are made anew"
        )
    if work.spans_capacity:
        words += "; queries meet all slots, also empty ones"
    return Check(name="copies", outcome="noted", detail=words, measured=measured)


def recomputed(trial: ForeignTrial) -> Check:
    """Report the operators that each step repeats on the encoder's output, and branches."""
    work = trial.work
    measured = {"operators": dict(work.recomputed), "branches": work.branches}
    if not trial.model.encoder:
        words = "there is no encoder, whose output could be read again"
    elif work.recomputed:
        operators = ", ".join(f"{count} {name}" for name, count in work.recomputed.items())
        words = (
            f"each step computes cross keys and values anew from the encoder's output: {operators}"
        )
    else:
        words = "cross keys and values are computed once"
    if work.branches:
        words += f"; {work.branches} If chooses a graph at each step"
    return Check(name="recomputed", outcome="noted", detail=words, measured=measured)


def weights(trial: ForeignTrial) -> Check:
    """Report how much of a decoder's weights is in memory more than once."""
    work = trial.work
    measured = {"bytes": work.weights, "repeated_bytes": work.repeated_weights}
    if not work.weights:
        words = "its weights lie inside of delegates, where nobody can look"
        return Check(name="weights", outcome="skipped", detail=words)
    words = f"the decoder has {work.weights:,} bytes of weights"
    if work.repeated_weights:
        words += f", of which {work.repeated_weights:,} are others once more"
    return Check(name="weights", outcome="noted", detail=words, measured=measured)


_SHARED = (
    *("teacher-forced", "free-running", "second-input", "chunks", "batch", "beams"),
    *("truncate", "capacity"),
)
CHECKS: Mapping[str, Callable[[ForeignTrial], Check]] = {
    **{name: OWN_CHECKS[name] for name in _SHARED},
    "second-input": second_input,
    "window": window,
    "memory": memory,
    "copies": copies,
    "recomputed": recomputed,
    "weights": weights,
}
"""In the order in which they are made."""


def _length(trial: ForeignTrial) -> int:
    return min(trial.driver.positions - 1, _LONGEST)


def _held(trial: ForeignTrial, text: Text) -> Iterator[int]:
    cache = trial.driver.cache([text.case], len(text))
    for tokens in (text.case.prompt_s, *one_each(text.generated_n)):
        _, cache = trial.driver.decode(cache, [tokens])
        yield trial.model.held_bytes()


def _differing(work: StepWork) -> list[str]:
    """Return the graph's operators whose bytes per position differ from the profile's."""
    profiled = {each.operator: each.per_position for each in work.measured or ()}
    return [m.operator for m in work.moved if profiled.get(m.operator) != m.per_position]


def _told(moved: Sequence[Movement], length: int) -> str:
    return ", ".join(f"{each.count} {each.operator} {each.at(length):,}" for each in moved)


def _plain(movement: Movement, length: int) -> dict[str, Any]:
    return {
        "operator": movement.operator,
        "count": movement.count,
        "bytes": movement.at(length),
        "bytes_per_position": movement.per_position,
    }
