"""What a step of an exported decoder costs beside what is new: memory, copies, work done again.

These are findings, not verdicts: a decoder that copies its caches can be right.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvcast.verification.foreign.base import Movement, StepWork
from kvcast.verification.report import Check

if TYPE_CHECKING:
    from kvcast.verification.foreign.checks import ForeignTrial

_LONGEST = 1024
"""Positions that bytes are told for, where a sequence may be longer."""


def memory(trial: "ForeignTrial") -> Check:
    """Tell the bytes of caches after a prompt and after each further token."""
    driver, text = trial.driver, trial.baselines[0].text
    driver.begin(text.case)
    held = [driver.model.held_bytes()]
    for token in text.written_n:
        driver.step([token])
        held.append(driver.model.held_bytes())
    more = {after - before for before, after in pairwise(held)}
    grows = more != {0} and bool(more)
    words = (
        f"caches of a row hold {held[-1]:,} bytes at {len(text)} positions"
        if grows
        else f"caches of a row hold {held[-1]:,} bytes, for all positions from the beginning"
    )
    measured = {"held_bytes": held, "bytes_per_step": max(more, default=0)}
    return Check(name="memory", outcome="noted", detail=words, measured=measured)


def copies(trial: "ForeignTrial") -> Check:
    """Tell which caches a step makes anew, and the bytes of whole caches that it writes."""
    work, length = trial.work, _length(trial)
    held = _held(trial, length)
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
        words = f"the file and the runtime's profile tell different bytes of {', '.join(odd)}"
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


def recomputed(trial: "ForeignTrial") -> Check:
    """Tell what each step computes again from an encoder's output, and its branches."""
    work = trial.work
    measured = {"operators": dict(work.recomputed), "branches": work.branches}
    if not trial.driver.model.encoder:
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


def weights(trial: "ForeignTrial") -> Check:
    """Tell how much of a decoder's weights is in memory more than once."""
    work = trial.work
    measured = {"bytes": work.weights, "repeated_bytes": work.repeated_weights}
    if not work.weights:
        words = "its weights lie inside of delegates, where nobody can look"
        return Check(name="weights", outcome="skipped", detail=words)
    words = f"the decoder has {work.weights:,} bytes of weights"
    if work.repeated_weights:
        words += f", of which {work.repeated_weights:,} are others once more"
    return Check(name="weights", outcome="noted", detail=words, measured=measured)


def _length(trial: "ForeignTrial") -> int:
    return min(trial.driver.positions - 1, _LONGEST)


def _held(trial: "ForeignTrial", length: int) -> int:
    text = trial.baselines[0].text
    trial.driver.begin(text.case)
    begun = trial.driver.model.held_bytes()
    trial.driver.step([0])
    a_step = trial.driver.model.held_bytes() - begun
    return begun + (length - len(text.case.prompt_s)) * a_step


def _differing(work: StepWork) -> list[str]:
    """Name operators whose bytes by position are others in the profile than in the graph."""
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
