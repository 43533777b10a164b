"""Checks of long texts: every position to the end of a cache, and past windows."""

from functools import partial
from typing import Any

from kvcast.errors import KvcastError
from kvcast.verification.cases import Text, one_each
from kvcast.verification.diagnosis import Place
from kvcast.verification.report import Check
from kvcast.verification.trial import Comparison, Trial, skipped


def capacity(trial: Trial) -> Check:
    """Step to the very end of a cache; every position is compared, and one more is refused."""
    name, driver = "capacity", trial.driver
    baseline = trial.long
    text = baseline.text
    if not len(text.written_n):
        return skipped(name, "the model has no room for tokens after its prompt")
    comparison = trial.comparison()
    place = partial(_place, trial, text)
    about = f"{len(text)} positions, one after the other"
    comparison.add(baseline.at_once, baseline.stepped.logits_nv, about, text.first, place)
    beside = _beside_reference(trial, comparison)
    if not comparison.problem and not _refuses(trial, text):
        comparison.problem = f"a cache of {len(text)} positions takes one more than it holds"
    ends = "the model's last" if len(text) == driver.positions else "the cache's last"
    words = f"every position to {ends}, {len(text) - 1}, is as computed at once"
    if beside is not None:
        words += " and as the reference's"
    measured: dict[str, Any] = {"capacity": len(text), "model_positions": driver.positions}
    if beside is not None:
        measured["beside_reference"] = beside.measured
    return comparison.check(name, words, **measured)


def _place(trial: Trial, text: Text) -> Place | None:
    _, cache = trial.driver.stepped(text)
    return trial.place(text, cache, 0, trial.tolerance.own)


def _beside_reference(trial: Trial, comparison: Comparison) -> Comparison | None:
    """Compare with the reference as well, which may find positions that are wrong in any order."""
    if trial.oracle is None or not trial.oracle.whole or trial.tolerance.far is None:
        return None
    text = trial.long.text
    beside = trial.comparison(trial.tolerance.far)
    expected = trial.oracle.expected(text, trial.columns)
    beside.add(expected, trial.long.stepped.logits_nv, "beside the reference", text.first)
    comparison.problem = comparison.problem or beside.problem
    return beside


def _refuses(trial: Trial, text: Text) -> bool:
    """Tell whether a full cache takes no further token; it is filled in one call where it can."""
    driver = trial.driver
    cache = driver.cache([text.case], len(text))
    if driver.family.one_by_one or driver.family.interface == "prefix":
        _, cache = driver.stepped(text)
    else:
        _, cache = driver.decode(cache, [text.tokens])
    try:
        driver.decode(cache, one_each([0]))
    except KvcastError:
        return True
    return False


def window(trial: Trial) -> Check:
    """Feed pieces that end before, at and past each window's end, then steps."""
    name, driver = "window", trial.driver
    windows = [window for window in trial.windows if window <= trial.positions]
    if not trial.windows:
        return skipped(name, "no layer has a window")
    if not windows:
        return skipped(
            name,
            f"windows of {trial.windows[0]} positions are longer than texts: raise --positions",
        )
    baseline, comparison = trial.long, trial.comparison()
    text, tokens = baseline.text, baseline.text.tokens
    if len(text) <= windows[0]:
        return skipped(name, "the model has no more positions than its windows")
    for window in windows:
        for size in {max(window - 1, 1), window, window + 1, window + 5}:
            cache = driver.cache([text.case], len(text))
            stop = min(2 * window + 8, len(text))
            done, about = 0, f"pieces of {size} tokens beside a window of {window}"
            for length in _lengths(size, stop):
                logits_rv, cache = driver.decode(cache, [tokens[done : done + length]])
                done += length
                if done > text.first:
                    n = done - 1 - text.first
                    expected = baseline.at_once.part(n, n + 1)
                    comparison.add(expected, logits_rv[:, trial.columns], about, done - 1)
    if not comparison.compared:
        return skipped(name, "prompts are longer than twice the windows")
    numbers = ", ".join(map(str, windows))
    return comparison.check(name, f"pieces around windows of {numbers} give what all at once give")


def _lengths(size: int, stop: int) -> list[int]:
    """Return a piece, four steps, and so on to the end."""
    lengths: list[int] = []
    while (left := stop - sum(lengths)) > 0:
        lengths += [min(size, left)]
        lengths += [1] * min(4, left - lengths[-1])
    return lengths
