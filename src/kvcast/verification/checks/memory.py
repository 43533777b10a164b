"""Checks of memory: what steps take, and whether caches stay where they are."""

import os
from pathlib import Path
from typing import Any

from kvcast.errors import KvcastError
from kvcast.runtimes.copies import copies_of
from kvcast.verification.cases import one_each
from kvcast.verification.report import Check, Outcome
from kvcast.verification.trial import Trial, skipped

_PASSES, _ROUNDS = 4, 3
_SLACK = 4 << 20
"""Bytes that a process takes now and then, for reasons of its own."""
_STATUS = Path("/proc/self/statm")


def memory(trial: Trial) -> Check:
    """Step through a cache several times over; the process must not grow with the steps."""
    name, driver = "memory", trial.driver
    text = trial.baselines[0].text
    if not len(text.written_n):
        return skipped(name, "the model has no room for tokens after its prompt")
    growth = []
    cache = driver.cache([text.case], len(text))
    for _ in range(_PASSES):
        before = _resident()
        if before is None:
            return skipped(name, "this system does not tell how much memory a process has")
        for _ in range(_ROUNDS):
            cache = driver.restart(cache, 0, text.case)
            _, cache = driver.decode(cache, [text.case.prompt_s])
            for token in text.written_n:
                _, cache = driver.decode(cache, one_each([token]))
        growth.append((_resident() or before) - before)
    steps = _ROUNDS * len(text.written_n)
    row, longer = (driver.runtime.row_bytes(n) for n in (len(text), len(text) + 1))
    least = min(growth[1:])
    a_step = max(least, 0) / steps
    measured = {
        "row_bytes": row,
        "capacity": len(text),
        "position_bytes": longer - row,
        "steps": steps,
        "resident_growth": growth,
        "growth_per_step": a_step,
    }
    grows = least > _SLACK
    words = (
        f"{steps} further steps take {least / 2**20:.1f} MiB more each time"
        if grows
        else f"a row of {len(text)} positions takes {row:,} bytes; further steps take no more"
    )
    outcome: Outcome = "failed" if grows else "passed"
    return Check(name=name, outcome=outcome, detail=words, measured=measured)


def copies(trial: Trial) -> Check:
    """Look for caches that a step copies: in a bundle's graphs, and where they lie afterwards."""
    name, driver = "copies", trial.driver
    text = trial.baselines[0].text
    if not len(text.written_n):
        return skipped(name, "the model has no room for tokens after its prompt")
    cache = driver.cache([text.case], len(text))
    if not hasattr(cache, "memory"):
        return skipped(name, "the runtime keeps caches where nobody can look")
    _, cache = driver.decode(cache, [text.case.prompt_s])
    before = _addresses(cache)
    for token in text.written_n:
        _, cache = driver.decode(cache, one_each([token]))
    after = enumerate(_addresses(cache))
    moved = [i for i, address in after if address != before[i]]
    copied, read = _copied(trial)
    measured = {"caches": len(before), "moved": moved, "copied": copied}
    if copied or moved:
        words = ", ".join(copied) or f"{len(moved)} of {len(before)} caches, which lie elsewhere"
        detail = f"a step copies whole caches: {words}"
        return Check(name=name, outcome="failed", detail=detail, measured=measured)
    words = f"all {len(before)} tensors of caches stay where they are{read}"
    return Check(name=name, outcome="passed", detail=words, measured=measured)


def _copied(trial: Trial) -> tuple[list[str], str]:
    """Return the caches that a bundle's graphs copy, and in words whether these could be read."""
    if trial.bundle is None:
        return [], ""
    try:
        found = copies_of(*trial.bundle)
    except KvcastError as error:
        return [], f"; what steps do with them cannot be read: {error}"
    words = [f"{cache.name} by {', '.join(cache.by)}, {cache.copied:,} bytes" for cache in found]
    return words, "; its programs copy none whole"


def _addresses(cache: Any) -> list[int]:
    return [
        cell.data_ptr() if hasattr(cell, "data_ptr") else cell.__array_interface__["data"][0]
        for cell in cache.memory.cells
    ]


def _resident() -> int | None:
    """Return the memory that this process has, in bytes; None where the system does not say."""
    try:
        return int(_STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
