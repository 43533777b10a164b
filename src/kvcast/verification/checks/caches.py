"""Checks of copied, cut and growing caches: beams, prefixes, truncation, memory and copies."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.errors import KvcastError
from kvcast.runtimes.base import Int64
from kvcast.runtimes.copies import copies_of
from kvcast.runtimes.trial import Trial as RowTrial
from kvcast.runtimes.trial import roll_back
from kvcast.verification.cases import Case, Text, one_each
from kvcast.verification.checks.rows import ONE_ROW
from kvcast.verification.references import WholeLogits
from kvcast.verification.report import Check, Outcome
from kvcast.verification.trial import Baseline, Comparison, Trial, skipped

_WIDTH = 3
_PARENTS = ((0, 1, 2), (1, 1, 0), (2, 0, 0), (0, 0, 0), (1, 2, 0))


def beams(trial: Trial) -> Check:
    """Reorder rows: each continues from its new past."""
    name, driver = "beams", trial.driver
    case, generator = trial.cases[0], trial.generator()
    if driver.most_rows == 1:
        return skipped(name, ONE_ROW)
    most = (driver.positions - len(case.prompt_s)) // 2
    parents = _PARENTS[:most]
    if not parents:
        return skipped(name, "the model has no room for tokens after its prompt")
    comparison = trial.comparison()
    cache = driver.cache([case] * _WIDTH, len(case.prompt_s) + 2 * len(parents))
    if case.source:
        # Beams read one input.
        cache = driver.runtime.reset(cache, range(_WIDTH), [0] * _WIDTH)
    _, cache = driver.decode(cache, [case.prompt_s] * _WIDTH)
    histories: list[list[int]] = [[]] * _WIDTH
    for step in parents:
        cache = driver.runtime.reorder(cache, step)
        histories = [histories[parent] for parent in step]
        for _ in range(2):
            new = generator.choice(_safe(trial), _WIDTH)
            logits_rv, cache = driver.decode(cache, one_each(new))
            histories = [[*old, int(token)] for old, token in zip(histories, new, strict=True)]
        for row, history in enumerate(histories):
            text = Text(case, np.array(history, np.int64))
            alone = WholeLogits(trial.beside.stepped(text)[0])
            n = len(history)
            about = f"beam {row}, which continues beam {step[row]}"
            place = partial(trial.place, text, cache, row, trial.tolerance.own)
            comparison.add(
                alone.part(n, n + 1),
                logits_rv[row : row + 1],
                about,
                text.first + n,
                place,
                {
                    f"what follows the past of beam {step[other]}": partial(
                        _last, trial, case, histories[other][:-2] + history[-2:]
                    )
                    for other in range(_WIDTH)
                    if step[other] != step[row]
                },
            )
    words = f"{_WIDTH} beams that change places {len(parents)} times go on from their new pasts"
    return comparison.check(name, words)


def _last(trial: Trial, case: Case, generated: Sequence[int] | Int64) -> WholeLogits:
    return WholeLogits(trial.beside.stepped(Text(case, np.array(generated, np.int64)))[0][-1:])


def _safe(trial: Trial) -> Int64:
    return np.unique(np.concatenate([each.text.generated_n for each in trial.baselines]))


def prefix(trial: Trial) -> Check:
    """Compute a prefix once, and continue it in rows of another, running cache."""
    name, driver = "prefix", trial.driver
    if driver.prefix or trial.cases[0].source:
        return skipped(name, "a target depends on its source: no two share a prefix")
    comparison = trial.comparison(trial.tolerance.same)
    # Texts that begin with what is computed as a prefix.
    texts = [_halved(trial, baseline) for baseline in trial.baselines]
    prompts = [each.text.case.prompt_s for each in texts]
    longest = max(len(each.text) for each in texts)
    kept = driver.cache([each.text.case for each in texts], max(map(len, prompts)))
    for row, prompt_s in enumerate(prompts):
        _, kept = driver.decode(kept, [prompt_s], [row])
    for again in ("a fork of a prefix", "a second fork of a prefix"):
        forked = driver.runtime.fork(kept, [1, 0], capacity=longest)
        for row, i in enumerate((1, 0)):
            forked = _continue(trial, comparison, forked, row, texts[i], again, texts)
    busy = driver.cache([each.text.case for each in texts], longest)
    for row, i in enumerate((0, 2, 1)):
        _, busy = driver.decode(busy, [prompts[i]], [row])
    busy = driver.runtime.adopt(busy, [0, 2], kept, [1, 0])
    for row, i in ((0, 1), (2, 0)):
        about = f"row {row}, which adopts a prefix"
        busy = _continue(trial, comparison, busy, row, texts[i], about, texts)
    about = "row 1, beside rows that adopt a prefix"
    _continue(trial, comparison, busy, 1, texts[2], about, texts)
    return comparison.check(name, "prefixes are continued as where they were computed")


def _halved(trial: Trial, baseline: Baseline) -> Baseline:
    """Return a text with half of its tokens moved to its prompt."""
    text = baseline.text
    cut = len(text.generated_n) // 2
    prompt_s = np.concatenate([text.case.prompt_s, text.generated_n[:cut]])
    return trial.baseline(Text(Case(prompt_s, text.case.source), text.generated_n[cut:]))


def _continue(
    trial: Trial,
    comparison: Comparison,
    cache: Any,
    row: int,
    baseline: Baseline,
    about: str,
    texts: Sequence[Baseline],
) -> Any:
    """Feed a text step by step, after its prompt or that of one of `texts`; return the cache."""
    text = baseline.text
    for n, token in enumerate(text.generated_n, 1):
        logits_rv, cache = trial.driver.decode(cache, one_each([token]), [row])
        place = partial(trial.place, text, cache, row, trial.tolerance.own)
        expected = baseline.stepped.part(n, n + 1)
        others = {
            f"what follows prefix {i}": partial(_last, trial, other.text.case, text.generated_n[:n])
            for i, other in enumerate(texts)
            if other is not baseline
        }
        comparison.add(expected, logits_rv, about, text.first + n, place, others)
    return cache


def truncate(trial: Trial) -> Check:
    """Truncate rows after draft tokens, and continue with others."""
    name = "truncate"
    baseline = trial.baselines[0]
    text = baseline.text
    kept = len(text.case.prompt_s) + len(text.generated_n) // 2
    other_n = trial.baselines[-1].text.generated_n
    most = min(len(text) - kept, len(other_n))
    if most < 1:
        return skipped(name, "the model has no room for tokens after its prompt")
    comparison, counts = trial.comparison(trial.tolerance.same), []
    for wanted in sorted({1, 3, most}):
        count = _cut(trial, comparison, baseline, kept, other_n[:wanted])
        if count:
            counts.append(count)
    if not counts:
        return skipped(name, "rows with states or full rings cannot be cut back")
    words = f"rows that lose {', '.join(map(str, counts))} tokens go on as if they never had them"
    return comparison.check(name, words, cut=counts)


def _cut(
    trial: Trial, comparison: Comparison, baseline: Baseline, kept: int, wrong_n: Int64
) -> int:
    """Feed a text, wrong tokens, truncate, then the rest; return the number truncated."""
    driver, text = trial.driver, baseline.text
    runtime = driver.runtime
    cache = driver.cache([text.case], len(text) + len(wrong_n))
    _, cache = driver.decode(cache, [text.case.prompt_s])
    for token in text.tokens[len(text.case.prompt_s) : kept]:
        _, cache = driver.decode(cache, one_each([token]))
    on_trial = RowTrial(runtime, cache, 0, kept=0, most=len(wrong_n))
    count = on_trial.most
    if not count:
        return 0
    cache = on_trial.begin(cache, count)
    for token in wrong_n[:count]:
        _, cache = driver.decode(cache, one_each([token]))
    cache, reached = roll_back(runtime, cache, 0, kept)
    if reached != kept:
        return 0
    about = f"a row that was cut back by {count} tokens to {kept}"
    for at in range(kept, len(text)):
        logits_rv, cache = driver.decode(cache, one_each([text.tokens[at]]))
        n = at - text.first
        place = partial(trial.place, text, cache, 0, trial.tolerance.own)
        uncut_n = np.concatenate(
            [text.generated_n[: kept - len(text.case.prompt_s)], wrong_n[:count]]
        )
        since_n = text.generated_n[kept - len(text.case.prompt_s) : n]
        uncut = partial(_last, trial, text.case, np.concatenate([uncut_n, since_n]))
        others = {"a row that was not cut back": uncut}
        comparison.add(baseline.stepped.part(n, n + 1), logits_rv, about, at, place, others)
    return count


_PASSES, _ROUNDS = 4, 3
_SLACK = 4 << 20
"""Bytes that a process takes now and then, for reasons of its own."""
_STATUS = Path("/proc/self/statm")


def memory(trial: Trial) -> Check:
    """Step through a cache several times; the process must not grow with the steps."""
    name, driver = "memory", trial.driver
    text = trial.baselines[0].text
    if not len(text.generated_n):
        return skipped(name, "the model has no room for tokens after its prompt")
    growth = []
    cache = driver.cache([text.case], len(text))
    for _ in range(_PASSES):
        before = _resident()
        if before is None:
            return skipped(name, "this system does not report a process's memory")
        for _ in range(_ROUNDS):
            cache = driver.restart(cache, 0, text.case)
            _, cache = driver.decode(cache, [text.case.prompt_s])
            for token in text.generated_n:
                _, cache = driver.decode(cache, one_each([token]))
        growth.append((_resident() or before) - before)
    steps = _ROUNDS * len(text.generated_n)
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
    """Find caches that a step copies: in a bundle's graphs, and by addresses after steps."""
    name, driver = "copies", trial.driver
    text = trial.baselines[0].text
    if not len(text.generated_n):
        return skipped(name, "the model has no room for tokens after its prompt")
    cache = driver.cache([text.case], len(text))
    if not hasattr(cache, "memory"):
        return skipped(name, "the runtime keeps caches where nobody can look")
    _, cache = driver.decode(cache, [text.case.prompt_s])
    before = _addresses(cache)
    for token in text.generated_n:
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
    """Return the caches that a bundle's graphs copy, and a note if they are unreadable."""
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
    """Return the process's resident bytes, if the system reports them."""
    try:
        return int(_STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
