"""References of a comparison: a checkpoint in fp32, or logits that an export recorded.

Errors are in standard deviations of a position's logits, so they mean the same for every model.
Letters in shapes: n positions, v logits, k recorded logits.
"""

from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.checkpoints.base import Checkpoint
from kvcast.errors import KvcastError
from kvcast.families.table import family_of, family_with
from kvcast.loading.export_proof import RecordedOutputs, TopLogits, log_sum_exp, whole_logits
from kvcast.runtimes.base import Alignment, Float32, Int64
from kvcast.runtimes.reference import Reference
from kvcast.runtimes.target import TARGETS, Stored
from kvcast.spec.program import Program
from kvcast.verification.cases import ALL, Case, Columns, Driver, Text, driver_of

_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True)
class Errors:
    """Errors of logits by position, in standard deviations of the expected ones."""

    largest_n: Float32
    mean_n: Float32

    @property
    def largest(self) -> float:
        return float(self.largest_n.max(initial=0))

    @property
    def mean(self) -> float:
        return float(self.mean_n.mean()) if len(self.mean_n) else 0.0


class Expected(ABC):
    deviation: float

    @abstractmethod
    def __len__(self) -> int:
        """Return how many positions are known."""

    @abstractmethod
    def errors(self, logits_nv: Float32) -> Errors:
        """Compare logits with the logits of at least as many positions; the rest is ignored."""

    @abstractmethod
    def best(self, position: int) -> int:
        """Return the likeliest token."""

    @abstractmethod
    def margin(self, position: int, token: int) -> float:
        """Return by how much the likeliest token's logit exceeds another's, at least."""


class WholeLogits(Expected):
    """All logits [n, v], or the columns that are compared."""

    def __init__(self, logits_nv: Float32) -> None:
        self.logits_nv = logits_nv
        self.deviation = max(float(logits_nv.std(axis=-1).mean()), _LEAST_DEVIATION)

    def part(self, start: int, stop: int) -> "WholeLogits":
        """Return the logits of some positions; errors stay in the standard deviation of all."""
        return self.like(self.logits_nv[start:stop])

    def like(self, logits_nv: Float32) -> "WholeLogits":
        other = WholeLogits(logits_nv)
        other.deviation = self.deviation
        return other

    @override
    def __len__(self) -> int:
        return len(self.logits_nv)

    @override
    def errors(self, logits_nv: Float32) -> Errors:
        return errors_of(logits_nv[: len(self)], self.logits_nv, self.deviation)

    @override
    def best(self, position: int) -> int:
        return int(self.logits_nv[position].argmax())

    @override
    def margin(self, position: int, token: int) -> float:
        logits_v = self.logits_nv[position]
        return float(logits_v.max() - logits_v[token])


@dataclass(frozen=True)
class LargestLogits(Expected):
    """The largest logits [n, k] of tokens [n, k], descending, and log-sum-exps [n] of all."""

    tokens_nk: Int64
    logits_nk: Float32
    sums_n: Float32
    deviation: float

    @override
    def __len__(self) -> int:
        return len(self.sums_n)

    @override
    def errors(self, logits_nv: Float32) -> Errors:
        logits_nv = logits_nv[: len(self)]
        known_nk = np.take_along_axis(logits_nv, self.tokens_nk, axis=-1)
        got = np.concatenate([known_nk, log_sum_exp(logits_nv)[:, None]], axis=-1)
        want = np.concatenate([self.logits_nk, self.sums_n[:, None]], axis=-1)
        return errors_of(got, want, self.deviation)

    @override
    def best(self, position: int) -> int:
        return int(self.tokens_nk[position, 0])

    @override
    def margin(self, position: int, token: int) -> float:
        logits_k = self.logits_nk[position]
        known = logits_k[self.tokens_nk[position] == token]
        return float(logits_k[0] - (known[0] if len(known) else logits_k[-1]))


def errors_of(got_nv: Float32, want_nv: Float32, deviation: float) -> Errors:
    """Return the errors of logits; infinite for logits that are not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        off_nv = np.abs(got_nv - want_nv) / deviation
    off_nv = np.where(np.isnan(off_nv), np.inf, off_nv)
    return Errors(off_nv.max(axis=-1), off_nv.mean(axis=-1))


class Oracle(Protocol):
    name: str
    whole: bool  # computes any text, not only recorded ones
    runtime: Any  # None for recorded texts

    def text(self, case: int, count: int, generator: np.random.Generator) -> Text:
        """Return a text, of limited length, that it generates after the prompt of a case."""

    def expected(self, text: Text, columns: Columns = ALL) -> Expected:
        """Return the logits after the prompt and after each token that it knows of."""

    def cache(self, text: Text) -> Any:
        """Return a cache of one row that holds a text, computed at once; None without any."""

    def align(self, case: Case) -> Alignment | None:
        """Return the attention of a prompt's tokens to their input; None where it is unknown."""


class CheckpointOracle(Oracle):
    whole = True

    def __init__(self, reference: Reference, cases: Sequence[Case]) -> None:
        self.name = f"{reference.name}, all tokens at once"
        self.runtime = reference.runtime
        self._reference = reference
        self._cases = cases
        dimensions = reference.dimensions
        self._family = family_with(dimensions)
        self._driver: Driver = driver_of(reference.runtime, self._family, dimensions)

    @override
    def text(self, case: int, count: int, generator: np.random.Generator) -> Text:
        return self._driver.sampled(self._cases[case], count, generator)[0]

    @override
    def expected(self, text: Text, columns: Columns = ALL) -> Expected:
        if self._family.whole is None:
            logits_nv, _ = self._driver.at_once(text, columns)
        else:
            logits_sv = whole_logits(self._reference, text.case.prompt_s, text.generated_n)
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
    """An export's record: texts generated after the family's probe, and their logits."""

    name = "the model in fp32, as the export recorded its largest logits"
    whole = False
    runtime = None

    def __init__(
        self, recorded: RecordedOutputs, cases: Sequence[Case], end: int | None = None
    ) -> None:
        """Take the probe's cases; raises ValueError if they differ from the recorded ones."""
        self._recorded = recorded
        self.texts = []
        for case, generated_s in zip(cases, recorded.generated_rs, strict=True):
            ends_n = np.flatnonzero(generated_s[:-1] == end)
            count = int(ends_n[0]) if len(ends_n) else len(generated_s) - 1
            self.texts.append(Text(case, generated_s[:count]))

    @override
    def text(self, case: int, count: int, generator: np.random.Generator) -> Text:
        text = self.texts[case]
        return text.with_tokens(text.generated_n[:count])

    @override
    def expected(self, text: Text, columns: Columns = ALL) -> Expected:
        row = next(i for i, known in enumerate(self.texts) if known.case is text.case)
        known_n = self.texts[row].generated_n[: len(text.generated_n)]
        parted = np.flatnonzero(known_n != text.generated_n[: len(known_n)])
        count = (int(parted[0]) if len(parted) else len(known_n)) + 1
        return self._of_row(self._recorded.reference, row, count)

    def exported(self, row: int) -> Expected:
        """Return the bundle's own logits of a text at its export."""
        return self._of_row(self._recorded.exported, row, len(self.texts[row].generated_n) + 1)

    def _of_row(self, top: TopLogits, row: int, count: int) -> Expected:
        return LargestLogits(
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


@dataclass(frozen=True)
class Files:
    stored: Stored
    expected: Mapping[str, NDArray[np.generic]]
    programs: Mapping[
        str, Program
    ]  # programs that the family builds from the manifest's dimensions
    checkpoint: Any = None  # its dimensions, if any
    calibrated: bool = False  # int4 was calibrated: codes need not be the nearest


def files_of(
    folder: Path, manifest: Manifest, dimensions: Any, checkpoint: Checkpoint | None
) -> Files:
    family = family_of(manifest.family)
    tensors: Mapping[str, NDArray[Any]] = {} if checkpoint is None else checkpoint.tensors
    wanted = dimensions if checkpoint is None else checkpoint.dimensions
    try:
        constants = dict(family.constants(wanted, tensors))
    except KeyError:  # some are made of tensors
        constants = {}
    return Files(
        stored=TARGETS[manifest.runtime].read_stored(
            folder, manifest, family.tensor_shapes(dimensions)
        ),
        # A ChainMap wants to be able to write to its first.
        expected=ChainMap(constants, tensors),  # type: ignore[arg-type]
        programs=family.write_programs(dimensions),
        checkpoint=None if checkpoint is None else checkpoint.dimensions,
        calibrated=bool(manifest.calibration),
    )
