"""The interface of another tool's exported decoder, its driver, and the record of a step's work.

`foreign/readers.py` has a reader for each kind of folder.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.runtimes.base import Float32, Int64
from kvcast.spec.runtimes import BundlePrecision
from kvcast.verification.cases import ALL, Case, Columns, Driver, Text

Source: TypeAlias = Sequence[NDArray[Any]]
"""Input of an encoder, one entry a row: tokens int64 [rows, t], or features fp32 [rows, f, t]."""

How: TypeAlias = Literal["copied", "in place", "kept"]
"""What a step does to a cache: makes all of it anew, adds to it where it lies, or only reads it."""


@dataclass(frozen=True, kw_only=True)
class Movement:
    """Bytes that operators of a step write which hold whole caches, or as much of them.

    Attributes:
        fixed: bytes that they write in a step, whatever the length.
        per_position: bytes more for each position that the sequence holds.

    """

    operator: str
    count: int
    fixed: int
    per_position: int

    def at(self, length: int) -> int:
        """Return the bytes of a step over so many positions."""
        return self.fixed + length * self.per_position


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """What a step of one row does beside what is new.

    Attributes:
        caches: what happens to each tensor of the caches, by the tensor's name.
        moved: whole caches that are written elsewhere, from what the file says.
        measured: the same as the runtime's profile has it; None where it has none.
        recomputed: operators over what the encoder gave alone: as often as there are steps, to the
            same result; by the operator's name.
        branches: operators that choose between graphs at each step.
        spans_capacity: whether queries meet all slots of a cache, and not only those in use.
        weights: bytes of the decoder's weights in the files that are opened.
        repeated_weights: how many of these bytes are another file's or tensor's once more.

    """

    caches: Mapping[str, How]
    moved: Sequence[Movement]
    measured: Sequence[Movement] | None = None
    recomputed: Mapping[str, int] = field(default_factory=dict)
    branches: int = 0
    spans_capacity: bool = False
    weights: int = 0
    repeated_weights: int = 0


class ForeignModel(ABC):
    """A decoder whose caches hold `rows` sequences of the same length.

    Attributes:
        encoder: what its encoder takes: "tokens" or "features"; empty without one.
        capacity: most positions of a sequence; None where the files do not say.
        most_rows: most sequences at once; None: any number.
        takes_chunks: whether a call takes several tokens of each row.

    """

    exporter: str
    runtime: str
    precision: BundlePrecision
    encoder: Literal["", "tokens", "features"] = ""
    vocab_size: int
    capacity: int | None
    most_rows: int | None = None
    takes_chunks: bool = True
    tools: Mapping[str, str]

    @abstractmethod
    def begin(self, rows: int, source: Source = ()) -> None:
        """Begin `rows` empty sequences on the same load, over the same memory where it has any.

        Args:
            rows: at most `most_rows`.
            source: arrays [rows, ...] for the encoder; empty without one.

        """

    @abstractmethod
    def feed(self, tokens_rs: Int64) -> Float32:
        """Append s tokens to each row; return logits fp32 [rows, s, vocab]."""

    @abstractmethod
    def cut(self, length: int) -> None:
        """Keep the first `length` positions of each row."""

    @abstractmethod
    def reorder(self, parents: Sequence[int]) -> None:
        """Let row i go on from row `parents[i]`; only where there may be several rows."""

    @abstractmethod
    def held_bytes(self) -> int:
        """Return the bytes of the self caches of all rows, as they are now."""

    @abstractmethod
    def work(self) -> StepWork:
        """Tell what a step does; it may run steps of its own, so no sequence goes on afterwards."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A kind of folder.

    Attributes:
        name: of the tool, with the files that tell.
        detect: whether a folder is of this kind, by its files' names.
        open: opens it, with so many threads; raises KvcastError with one line.
        native: the folder's files that can contain native code, which opening runs.

    """

    name: str
    detect: Callable[[Path], bool]
    open: Callable[[Path, int], ForeignModel]
    native: Callable[[Path], Sequence[Path]] = field(default=lambda _: ())


def one_by_one(model: ForeignModel, tokens_rs: Int64) -> Float32:
    """Append tokens one after the other; return logits fp32 [rows, s, vocab]."""
    steps = [
        model.feed(tokens_r1).copy() for tokens_r1 in np.split(tokens_rs, tokens_rs.shape[1], 1)
    ]
    return np.concatenate(steps, axis=1)


def appended(model: ForeignModel, tokens_rs: Int64) -> Float32:
    """Append tokens in one call, or one by one where it takes no more at once."""
    return model.feed(tokens_rs) if model.takes_chunks else one_by_one(model, tokens_rs)


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
