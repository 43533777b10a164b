"""Drives an exported decoder as `kvcast.verification.cases` drives kvcast's runtimes.

Knows no check and no exporter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.runtimes.base import Float32, Int64
from kvcast.verification.cases import ALL, Case, Columns, Driver, Text
from kvcast.verification.foreign.base import ForeignModel, appended


@dataclass(frozen=True, kw_only=True)
class ForeignDriver(Driver):
    """One model, on one load: what its memory held before a text is still there."""

    model: ForeignModel = field(repr=False)

    def begin(self, case: Case, rows: int = 1) -> Float32:
        """Begin rows with a case's prompt; return logits [rows, vocab] after it."""
        source = [np.repeat(part, rows, axis=0) for part in _source(case)]
        self.model.begin(rows, source)
        prompts_rs = np.repeat(case.prompt_s[None], rows, axis=0)
        return appended(self.model, prompts_rs)[:, -1].copy()

    def step(self, tokens: Sequence[int] | Int64) -> Float32:
        """Append a token to each row; return logits [rows, vocab]."""
        return self.model.feed(np.asarray(tokens, np.int64)[:, None])[:, -1].copy()

    @override
    def at_once(self, text: Text, columns: Columns = ALL) -> tuple[Float32, Any]:
        self.model.begin(1, _source(text.case))
        logits_1sv = appended(self.model, text.tokens[None])
        return logits_1sv[0, text.first :, columns].copy(), None

    @override
    def stepped(
        self,
        text: Text,
        columns: Columns = ALL,
        *,
        prompt: bool = False,
        capacity: int | None = None,
    ) -> tuple[Float32, Any]:
        logits = [self.begin(text.case)[:, columns]]
        logits += [self.step([token])[:, columns] for token in text.written_n]
        return np.concatenate(logits), None

    @override
    def _written(
        self, case: Case, count: int, choose: Any, columns: Columns, *, whole: bool = False
    ) -> tuple[Text, Float32]:
        step_rv = self.begin(case)
        logits, written = [step_rv[:, columns]], []
        for i in range(count):
            written.append(choose(step_rv[0]))
            if whole or i + 1 < count:
                step_rv = self.step(written[-1:])
                logits.append(step_rv[:, columns])
        return Text(case, np.array(written, np.int64)), np.concatenate(logits)


def _source(case: Case) -> list[NDArray[Any]]:
    """Return an encoder's input as transformers has it: without padding, and without lengths."""
    if not case.source:
        return []
    first, *lengths = case.source
    return [first[:, : int(lengths[0][0])] if lengths else first]
