"""Checks of rows: alone, in a batch, in chunks, one after the other, to the end of a cache."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32, Int64
from kvcast.verification.cases import Case, Text, one_each
from kvcast.verification.diagnosis import Place
from kvcast.verification.references import WholeLogits
from kvcast.verification.report import Check
from kvcast.verification.trial import Baseline, Comparison, Trial, skipped

ONE_ROW = "its caches have one row"
_EMPTY = -1  # tokens of a row that has not begun


def chunks(trial: Trial) -> Check:
    """Feed texts in steps and in pieces of several sizes; prompts in pieces, too."""
    name, driver = "chunks", trial.driver
    comparison = trial.comparison()
    for i, baseline in enumerate(trial.baselines):
        logits_nv, cache = driver.stepped(baseline.text)
        place = partial(trial.place, baseline.text, cache, 0, trial.tolerance.own)
        about = f"text {i}, one token after the other"
        comparison.add(baseline.at_once, logits_nv, about, baseline.text.first, place)
    if driver.one_by_one:
        return comparison.check(name, "steps give the same again; tokens are taken one by one")
    baseline, generator = trial.baselines[0], trial.generator()
    text, tokens = baseline.text, baseline.text.tokens
    whole = driver.prefix
    sizes = [(each,) for each in (2, 3, 7)] + [tuple(generator.integers(1, 12, 9).tolist())]
    for pattern in sizes:
        cache = driver.cache([text.case], len(text))
        begun = len(text.case.prompt_s) if whole else 0
        if whole:
            _, cache = driver.decode(cache, [text.case.prompt_s])
        for stop, piece in _pieces(tokens, begun, pattern):
            logits_rv, cache = driver.decode(cache, [piece])
            if stop > text.first:
                about = f"text 0 in pieces of {', '.join(map(str, pattern))}"
                n = stop - 1 - text.first
                expected = baseline.at_once.part(n, n + 1)
                comparison.add(expected, logits_rv, about, stop - 1)
    if not whole:
        _prompts(trial, comparison)
    return comparison.check(name, "steps and pieces give what all tokens at once give")


def _prompts(trial: Trial, comparison: Comparison) -> None:
    """Compare chunked with whole prompts, which may differ from decode steps."""
    text, driver = trial.baselines[0].text, trial.driver
    whole_rv, _ = driver.prefill(driver.cache([text.case], len(text)), [text.tokens])
    expected = trial.baselines[0].at_once.like(whole_rv)
    for size in (1, 5):
        cache = driver.cache([text.case], len(text))
        for _, piece in _pieces(text.tokens, 0, (size,)):
            logits_rv, cache = driver.prefill(cache, [piece])
        about = f"text 0 as a prompt in pieces of {size}"
        comparison.add(expected, logits_rv, about, len(text) - 1)


def second_input(trial: Trial) -> Check:
    """Give one row a second input: nothing of the first may remain."""
    driver, comparison = trial.driver, trial.comparison(trial.tolerance.same)
    first, *others = trial.baselines
    # Room for all of them, so that what is not forgotten shows in logits.
    room = sum(len(baseline.text) for baseline in [*trial.baselines, first])
    cache = driver.cache([first.text.case], min(room, driver.positions))
    _, cache = _fed(trial, cache, 0, first.text)
    for i, baseline in enumerate([*others, first], 1):
        cache = driver.restart(cache, 0, baseline.text.case)
        logits_nv, cache = _fed(trial, cache, 0, baseline.text)
        text = baseline.text
        place = partial(trial.place, text, cache, 0, trial.tolerance.own)
        about = f"input {i + 1} in the row of input {i}"
        stale = {f"input {i}": partial(_with_source, trial, text, trial.baselines[i - 1].text)}
        comparison.add(
            baseline.stepped, logits_nv, about, text.first, place, stale if text.case.source else {}
        )
    return comparison.check("second-input", "inputs after others give what they give alone")


def _with_source(trial: Trial, text: Text, other: Text) -> WholeLogits:
    """Return the logits of a text with the input of another."""
    stale = Text(Case(text.case.prompt_s, other.case.source), text.generated_n)
    return WholeLogits(trial.beside.stepped(stale)[0])


def batch(trial: Trial) -> Check:
    """Compute rows of different lengths in one call, each as if alone."""
    driver, comparison = trial.driver, trial.comparison()
    if driver.most_rows == 1:
        return skipped("batch", ONE_ROW)
    baselines = trial.together
    texts = [baseline.text for baseline in baselines]
    cache = driver.cache([text.case for text in texts], max(map(len, texts)))
    ahead = 0 if driver.same_lengths else 4
    begun = [min(ahead * i, len(text.generated_n)) for i, text in enumerate(texts)]
    _, cache = driver.decode(cache, [text.case.prompt_s for text in texts])
    for row, text in enumerate(texts):
        cache = _steps(trial, cache, row, text.generated_n[: begun[row]])
    logits: list[list[Float32]] = [[] for _ in texts]
    for i in range(max(len(text.generated_n) for text in texts)):
        rows = [row for row, text in enumerate(texts) if begun[row] + i < len(text.generated_n)]
        if not rows:
            break
        new = [int(texts[row].generated_n[begun[row] + i]) for row in rows]
        logits_rv, cache = driver.decode(cache, one_each(new), rows)
        for row, logits_v in zip(rows, logits_rv, strict=True):
            logits[row].append(logits_v)
    for row, baseline in enumerate(baselines):
        if logits[row]:
            after = 1 + begun[row]
            expected = baseline.stepped.part(after, after + len(logits[row]))
            place = partial(trial.place, baseline.text, cache, row, trial.tolerance.own)
            about = f"row {row} of {len(texts)}"
            comparison.add(
                expected, np.stack(logits[row]), about, baseline.text.first + after, place
            )
    if not comparison.compared:
        return skipped("batch", "the model has no room for tokens after its prompt")
    return comparison.check("batch", f"{len(texts)} rows give what each gives alone")


def rows_come_and_go(trial: Trial) -> Check:
    """Begin, pause, end and restart rows while others continue."""
    driver, comparison = trial.driver, trial.comparison()
    generator, baselines = trial.generator(), list(trial.baselines)
    texts = [baseline.text for baseline in baselines]
    cache = driver.cache([text.case for text in texts], max(map(len, texts)))
    fed = [_EMPTY] * len(texts)
    holds = list(range(len(texts)))  # number of the text in each row
    restarts = 0
    for _ in range(3 * max(len(text.generated_n) for text in texts)):
        rows = np.flatnonzero(generator.random(len(texts)) < 0.6).tolist()
        for row in rows:
            baseline = baselines[holds[row]]
            if fed[row] == len(baseline.text.generated_n):
                holds[row] = (holds[row] + 1) % len(texts)
                baseline, fed[row], restarts = baselines[holds[row]], _EMPTY, restarts + 1
                cache = driver.restart(cache, row, baseline.text.case)
            if fed[row] == _EMPTY:
                logits_rv, cache = driver.decode(cache, [baseline.text.case.prompt_s], [row])
                fed[row] = 0
                comparison.add(_at(baseline, 0), logits_rv, _row(row, holds), baseline.text.first)
        going = [row for row in rows if fed[row] != len(texts[holds[row]].generated_n)]
        if not going:
            continue
        new = [int(texts[holds[row]].generated_n[fed[row]]) for row in going]
        logits_rv, cache = driver.decode(cache, one_each(new), going)
        for i, row in enumerate(going):
            fed[row] += 1
            baseline = baselines[holds[row]]
            position = baseline.text.first + fed[row]
            comparison.add(
                _at(baseline, fed[row]), logits_rv[i : i + 1], _row(row, holds), position
            )
    words = f"rows that pause, end and begin anew ({restarts} times) leave others as they are"
    return comparison.check("rows-come-and-go", words, restarts=restarts)


def _row(row: int, holds: Sequence[int]) -> str:
    return f"row {row} with text {holds[row]}, while others come and go"


def _at(baseline: Baseline, n: int) -> WholeLogits:
    return baseline.stepped.part(n, n + 1)


def _pieces(tokens: Int64, begun: int, pattern: Sequence[int]) -> Iterator[tuple[int, Int64]]:
    """Yield pieces of these sizes, in turns, each with its end."""
    i = 0
    while begun < len(tokens):
        piece = tokens[begun : begun + pattern[i % len(pattern)]]
        begun, i = begun + len(piece), i + 1
        yield begun, piece


def _fed(trial: Trial, cache: Any, row: int, text: Text) -> tuple[Float32, Any]:
    step_rv, cache = trial.driver.decode(cache, [text.case.prompt_s], [row])
    logits = [step_rv]
    for token in text.generated_n:
        step_rv, cache = trial.driver.decode(cache, one_each([token]), [row])
        logits.append(step_rv)
    return np.concatenate(logits), cache


def _steps(trial: Trial, cache: Any, row: int, tokens: Int64) -> Any:
    for token in tokens:
        _, cache = trial.driver.decode(cache, one_each([token]), [row])
    return cache


def capacity(trial: Trial) -> Check:
    """Decode to the end of a cache, comparing every position; one more must be refused."""
    name, driver = "capacity", trial.driver
    baseline = trial.long
    text = baseline.text
    if not len(text.generated_n):
        return skipped(name, "the model has no room for tokens after its prompt")
    comparison = trial.comparison()
    place = partial(_place, trial, text)
    about = f"{len(text)} positions, one after the other"
    comparison.add(baseline.at_once, baseline.stepped.logits_nv, about, text.first, place)
    beside = _beside_reference(trial, comparison)
    if not comparison.problem and driver.refuses and not _refuses(trial, text):
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
    if not trial.layers:
        return None
    _, cache = trial.driver.stepped(text)
    return trial.place(text, cache, 0, trial.tolerance.own)


def _beside_reference(trial: Trial, comparison: Comparison) -> Comparison | None:
    """Compare with the reference, too, which finds errors that any order of calls shares."""
    if trial.oracle is None or not trial.oracle.whole or trial.tolerance.far is None:
        return None
    text = trial.long.text
    beside = trial.comparison(trial.tolerance.far)
    expected = trial.oracle.expected(text, trial.columns)
    beside.add(expected, trial.long.stepped.logits_nv, "beside the reference", text.first)
    comparison.problem = comparison.problem or beside.problem
    return beside


def _refuses(trial: Trial, text: Text) -> bool:
    """Return whether a full cache (filled in one call where possible) refuses a token."""
    driver = trial.driver
    cache = driver.cache([text.case], len(text))
    if driver.one_by_one or driver.prefix:
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
    sizes = ", ".join(map(str, windows))
    return comparison.check(
        name, f"pieces around windows of {sizes} give the same logits as one call"
    )


def _lengths(size: int, stop: int) -> list[int]:
    """Return a piece, four steps, and so on until `stop`."""
    lengths: list[int] = []
    while (left := stop - sum(lengths)) > 0:
        lengths += [min(size, left)]
        lengths += [1] * min(4, left - lengths[-1])
    return lengths
