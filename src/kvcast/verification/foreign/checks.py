"""Checks of an exported decoder beside itself: in pieces, in rows, after other inputs, to its end.

Those beside a checkpoint are kvcast's own (`kvcast.verification.checks.reference`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvcast.families.table import family_with
from kvcast.runtimes.base import Int64
from kvcast.verification.cases import Text
from kvcast.verification.checks.reference import free_running, teacher_forced
from kvcast.verification.foreign.base import ForeignDriver, ForeignModel, StepWork
from kvcast.verification.foreign.step import copies, memory, recomputed, weights
from kvcast.verification.references import WholeLogits
from kvcast.verification.report import Check
from kvcast.verification.trial import Trial, skipped

_WIDTH = 3
_PARENTS = ((0, 1, 2), (1, 1, 0), (2, 0, 0), (0, 0, 0))
_ONE_ROW = "its caches have one row"
_NO_ROOM = "there is no room for tokens after the prompt"


@dataclass(kw_only=True, eq=False)
class ForeignTrial(Trial):
    """An exported decoder under verification; `reopen` loads it once more."""

    driver: ForeignDriver
    reopen: Callable[[], ForeignModel]

    @cached_property
    def work(self) -> StepWork:
        """What a step does, told on a load of its own."""
        return self.reopen().work()

    def fresh(self) -> ForeignDriver:
        """Return a driver of another load, whose memory nothing was written to."""
        own = self.driver
        return ForeignDriver(
            runtime=None,
            family=own.family,
            vocab=own.vocab,
            positions=own.positions,
            model=self.reopen(),
        )


def second_input(trial: ForeignTrial) -> Check:
    """Give the same load one input after another: nothing of the earlier ones may be left."""
    comparison, driver = trial.comparison(), trial.driver
    texts = [baseline.text for baseline in trial.baselines]
    longest = trial.long.text
    driver.stepped(longest)
    for i, text in enumerate(texts):
        logits_nv, _ = driver.stepped(text)
        alone_nv, _ = trial.fresh().stepped(text)
        before = "a longer one" if i == 0 else f"input {i}"
        comparison.add(
            WholeLogits(alone_nv), logits_nv, f"input {i + 1} after {before}", text.first
        )
    return comparison.check("second-input", "inputs after others give what a fresh load gives")


def chunks(trial: ForeignTrial) -> Check:
    """Feed texts in steps, at once, and in pieces over what is held."""
    comparison, driver = trial.comparison(), trial.driver
    if not driver.model.takes_chunks:
        return skipped("chunks", "its graph takes one token at a time")
    for i, baseline in enumerate(trial.baselines):
        about = f"text {i}, one token after the other"
        first = baseline.text.first
        comparison.add(baseline.at_once, baseline.stepped.logits_nv, about, first)
    baseline = trial.baselines[0]
    for size in (2, 3, 7):
        logits = [driver.begin(baseline.text.case)]
        written_n = baseline.text.written_n
        for piece in np.split(written_n, range(size, len(written_n), size)):
            logits.append(driver.model.feed(piece[None])[0].copy())
        about = f"text 0 in pieces of {size}"
        comparison.add(baseline.at_once, np.concatenate(logits), about, baseline.text.first)
    return comparison.check("chunks", "steps and pieces give what all tokens at once give")


def batch(trial: ForeignTrial) -> Check:
    """Compute rows in one call, each as if alone."""
    driver = trial.driver
    if driver.model.most_rows == 1:
        return skipped("batch", _ONE_ROW)
    case = trial.baselines[0].text.case
    generated_rn = np.stack([_other(trial, row) for row in range(_WIDTH)])
    comparison = trial.comparison()
    logits = [driver.begin(case, _WIDTH)]
    logits += [driver.step(tokens_r) for tokens_r in generated_rn.T]
    together_rnv = np.stack(logits, axis=1)
    for row, written_n in enumerate(generated_rn):
        alone = trial.baseline(Text(case, written_n)).stepped
        about = f"row {row} of {_WIDTH}"
        comparison.add(alone, together_rnv[row], about, len(case.prompt_s) - 1)
    return comparison.check("batch", f"{_WIDTH} rows give what each gives alone")


def beams(trial: ForeignTrial) -> Check:
    """Let rows change places: each goes on from its new past."""
    driver, generator = trial.driver, trial.generator()
    if driver.model.most_rows == 1:
        return skipped("beams", f"{_ONE_ROW}: it has no beams")
    case = trial.baselines[0].text.case
    parents = _PARENTS[: trial.steps(case)]
    if not parents:
        return skipped("beams", _NO_ROOM)
    histories: list[list[int]] = [[]] * _WIDTH
    logits_rv = driver.begin(case, _WIDTH)
    for step in parents:
        driver.model.reorder(step)
        new = generator.choice(_safe(trial), _WIDTH).tolist()
        histories = [[*histories[old], token] for old, token in zip(step, new, strict=True)]
        logits_rv = driver.step(new)
    comparison = trial.comparison()
    for row, history in enumerate(histories):
        text = Text(case, np.array(history, np.int64))
        n = len(history)
        alone = trial.baseline(text).stepped.part(n, n + 1)
        comparison.add(alone, logits_rv[row : row + 1], f"beam {row}", text.first + n)
    words = f"{_WIDTH} beams that change places {len(parents)} times go on from their new pasts"
    return comparison.check("beams", words)


def truncate(trial: ForeignTrial) -> Check:
    """Cut a row back after tokens on trial, and go on with others."""
    driver, baseline = trial.driver, trial.baselines[0]
    text, wrong_n = baseline.text, _other(trial, 1)
    kept = len(text.written_n) // 2
    count = min(len(text.written_n) - kept, len(wrong_n))
    if not count:
        return skipped("truncate", _NO_ROOM)
    driver.begin(text.case)
    for token in (*text.written_n[:kept], *wrong_n[:count]):
        driver.step([token])
    driver.model.cut(len(text.case.prompt_s) + kept)
    comparison = trial.comparison()
    logits_nv = np.concatenate([driver.step([token]) for token in text.written_n[kept:]])
    expected = baseline.stepped.part(kept + 1, len(text.written_n) + 1)
    about = f"a row that was cut back by {count} tokens"
    comparison.add(expected, logits_nv, about, text.first + kept + 1)
    return comparison.check("truncate", f"a row that loses {count} tokens goes on without them")


def capacity(trial: ForeignTrial) -> Check:
    """Step through every position to the end; beside all at once, and beside the reference."""
    driver, (text, logits_nv) = trial.driver, (trial.long.text, trial.long.stepped.logits_nv)
    if not len(text.written_n):
        return skipped("capacity", _NO_ROOM)
    comparison = trial.comparison()
    about = f"{len(text)} positions, one after the other"
    comparison.add(trial.long.at_once, logits_nv, about, text.first)
    measured: dict[str, object] = {"capacity": len(text), "model_positions": driver.positions}
    words = f"every position up to {len(text) - 1} is as computed at once"
    if trial.oracle is not None:
        beside = trial.comparison(trial.tolerance.reference)
        expected = trial.oracle.expected(text, trial.columns)
        beside.add(expected, logits_nv, "beside the reference", text.first)
        comparison.problem = comparison.problem or beside.problem
        measured["beside_reference"] = beside.measured
        words += " and as the reference's"
    return comparison.check("capacity", words, **measured)


def window(trial: ForeignTrial) -> Check:
    """Compare positions past the shortest window with the reference's."""
    if trial.oracle is None or trial.dimensions is None:
        return skipped("window", "there is no reference to tell of windows")
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
        return skipped("window", "the reference knows no whole texts")
    comparison = trial.comparison(trial.tolerance.reference)
    about = f"past a window of {windows[0]}"
    comparison.add(past, trial.long.stepped.logits_nv[begun:], about, text.first + begun)
    words = f"{len(past)} positions past the window of {windows[0]} are the reference's"
    return comparison.check("window", words)


CHECKS: Mapping[str, Callable[[ForeignTrial], Check]] = {
    "teacher-forced": teacher_forced,
    "free-running": free_running,
    "second-input": second_input,
    "chunks": chunks,
    "batch": batch,
    "beams": beams,
    "truncate": truncate,
    "capacity": capacity,
    "window": window,
    "memory": memory,
    "copies": copies,
    "recomputed": recomputed,
    "weights": weights,
}
"""In the order in which they are made."""


def _other(trial: ForeignTrial, row: int) -> Int64:
    """Return the text of a row with its tokens in another order, each of which the model wrote."""
    written_n = trial.baselines[0].text.written_n
    return np.random.default_rng(trial.seed + row).permutation(written_n)


def _safe(trial: ForeignTrial) -> Int64:
    return np.unique(np.concatenate([each.text.written_n for each in trial.baselines]))
