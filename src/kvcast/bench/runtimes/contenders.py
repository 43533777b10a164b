"""A model in one form, with its caches or recomputing cross keys and values in every call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvcast.bench.runtimes.forms import EAGER, PRECISIONS, RUNTIMES, Form

RECOMPUTE = "-recompute"


@dataclass(frozen=True, kw_only=True)
class Task:
    """The same for everybody.

    Attributes:
        model: as the user called it.
        folder: the checkpoint's folder or file.
        threads: to compute with.

    """

    model: str
    folder: str
    threads: int


class Cached:
    """Meets `kvcast.bench.contender.Contender`: kvcast's own programs, from `kvcast.load`."""

    recomputes = False
    settings = "kvcast's programs and caches"

    def __init__(self, task: Task, form: Form) -> None:
        self._task = task
        self.form = form
        self.name = form.name
        self.dtype = form.dtype
        self.packages = form.of.packages
        self.modules = ("kvcast.tasks.loading", form.of.module)
        self.model: Any = None

    def unfit(self) -> str | None:
        """See the protocol."""
        return self.form.refused()

    def prepare(self) -> None:
        """Export, which loading does the first time."""

    def load(self) -> None:
        """See the protocol."""
        from kvcast.tasks.loading import load

        asked = self.form.asked
        self.model = load(
            self._task.model,
            runtime=self.form.runtime,
            quantize=asked.quantize,
            dtype=asked.dtype,
            threads=self._task.threads,
        )


class Recomputing(Cached):
    """The baseline: see `kvcast.bench.runtimes.recompute`."""

    recomputes = True
    settings = "cross keys and values of every layer projected anew in every call"

    def __init__(self, task: Task, form: Form) -> None:
        super().__init__(task, form)
        self.name = form.name + RECOMPUTE

    def load(self) -> None:
        """See the protocol."""
        from kvcast.bench.runtimes import baselines
        from kvcast.bench.speech.peers.base import whisper_checkpoint
        from kvcast.tasks.families import family_of

        folder, threads = Path(self._task.folder), self._task.threads
        checkpoint = whisper_checkpoint(folder)
        if self.form.runtime == EAGER:
            quantize = PRECISIONS[self.form.precision]
            runtime = baselines.open_eager(checkpoint, quantize, threads)
        else:
            runtime = baselines.open_exported(
                checkpoint, folder, self.form.runtime, self.form.numbers, threads
            )
        family = family_of(checkpoint.family)
        self.model = family.model(runtime, checkpoint.dimensions, family.text_files(checkpoint))


_FORMS = [
    Form(runtime=runtime, precision=precision) for precision in PRECISIONS for runtime in RUNTIMES
]
CONTENDERS: Mapping[str, Callable[[Task], Cached]] = {
    **{form.name: partial(Cached, form=form) for form in _FORMS},
    **{form.name + RECOMPUTE: partial(Recomputing, form=form) for form in _FORMS},
}
"""Everybody that there could be, by name."""
