"""What a model is compared with: a checkpoint in fp32, or what an export recorded.

Knows no check, no threshold, and not what is compared.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.families.table import family_with
from kvcast.loading.proof import RecordedOutputs, TopLogits, whole_logits
from kvcast.runtimes.base import Alignment
from kvcast.runtimes.reference import Reference
from kvcast.verification import expectations
from kvcast.verification.cases import ALL, Case, Columns, Driver, Text, driver_of
from kvcast.verification.expectations import Expected, WholeLogits


class Oracle(Protocol):
    """A model that computes what is right.

    Attributes:
        name: in words.
        whole: whether it computes any text; else it knows those that were recorded.
        runtime: runs it; None where it only remembers.

    """

    name: str
    whole: bool
    runtime: Any

    def text(self, case: int, count: int, generator: np.random.Generator) -> Text:
        """Return a text that it writes after the prompt of a case, of so many tokens at most."""

    def expected(self, text: Text, columns: Columns = ALL) -> Expected:
        """Return the logits after the prompt and after each token that it knows of."""

    def cache(self, text: Text) -> Any:
        """Return a cache of one row that holds a text, computed at once; None without any."""

    def align(self, case: Case) -> Alignment | None:
        """Return the attention of a prompt's tokens to their input; None where it is unknown."""


class CheckpointOracle(Oracle):
    """A checkpoint's model in fp32, without a cache."""

    whole = True

    def __init__(self, reference: Reference, cases: Sequence[Case]) -> None:
        self.name = f"{reference.name}, all tokens at once"
        self.runtime = reference.runtime
        self._reference = reference
        self._cases = cases
        dimensions = reference.dimensions
        self._driver: Driver = driver_of(reference.runtime, family_with(dimensions), dimensions)

    @override
    def text(self, case: int, count: int, generator: np.random.Generator) -> Text:
        return self._driver.sampled(self._cases[case], count, generator)[0]

    @override
    def expected(self, text: Text, columns: Columns = ALL) -> Expected:
        if self._driver.family.whole is None:
            logits_nv, _ = self._driver.at_once(text, columns)
        else:
            logits_sv = whole_logits(self._reference, text.case.prompt_s, text.written_n)
            logits_nv = logits_sv[text.first :, columns]
        if not np.isfinite(logits_nv).all():
            raise KvcastError("the reference's logits are not all finite: fetch its weights again")
        return WholeLogits(logits_nv)

    @override
    def cache(self, text: Text) -> Any:
        return self._driver.at_once(text)[1]

    @override
    def align(self, case: Case) -> Alignment | None:
        cache = self._driver.cache([case], len(case.prompt_s))
        alignment: Alignment = self._driver.runtime.align(case.prompt_s, cache, 0)
        return alignment


class RecordedOracle(Oracle):
    """What an export recorded of its model: the texts that it wrote after the family's probe."""

    name = "the model in fp32, as the export recorded its largest logits"
    whole = False
    runtime = None

    def __init__(self, recorded: RecordedOutputs, cases: Sequence[Case]) -> None:
        """Take the probe's cases; raises ValueError where there are others than were recorded."""
        self._recorded = recorded
        self.texts = [
            Text(case, written_s[:-1])
            for case, written_s in zip(cases, recorded.written_rs, strict=True)
        ]

    @override
    def text(self, case: int, count: int, generator: np.random.Generator) -> Text:
        text = self.texts[case]
        return text.with_tokens(text.written_n[:count])

    @override
    def expected(self, text: Text, columns: Columns = ALL) -> Expected:
        row = next(i for i, known in enumerate(self.texts) if known.case is text.case)
        known_n = self.texts[row].written_n[: len(text.written_n)]
        parted = np.flatnonzero(known_n != text.written_n[: len(known_n)])
        count = (int(parted[0]) if len(parted) else len(known_n)) + 1
        return self._of_row(self._recorded.reference, row, count)

    def exported(self, row: int) -> Expected:
        """Return the bundle's own logits of a text, on the day of its export."""
        return self._of_row(self._recorded.exported, row, len(self.texts[row].written_n) + 1)

    def _of_row(self, top: TopLogits, row: int, count: int) -> Expected:
        return expectations.TopLogits(
            top.tokens_rsk[row, :count],
            top.logits_rsk[row, :count],
            top.sums_rs[row, :count],
            self._recorded.deviation,
        )

    @override
    def cache(self, text: Text) -> Any:
        return None

    @override
    def align(self, case: Case) -> Alignment | None:
        return None
