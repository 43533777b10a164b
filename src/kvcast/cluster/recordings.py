"""A folder's recordings, transcribed on the machines of a cluster.

Outcomes arrive as from one machine. Knows neither journal nor formats.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from kvcast.cluster.connection import machine
from kvcast.cluster.mapping import mapped, portable
from kvcast.errors import InputOutputError
from kvcast.transcripts.folders.workers import (
    Outcome,
    QueuedRecording,
    Transcriber,
    transcribe_all,
)

Opened: TypeAlias = tuple[Transcriber, str, Mapping[str, Any]]
"""A model, its runtime's name, and the options of its `transcribe`."""


def transcribed(
    open_model: Callable[[], Opened],
    queue: Iterable[QueuedRecording],
    *,
    actors: int | None,
    cores: int,
    on_runtime: Callable[[str], None],
) -> Generator[Outcome]:
    """Yield each recording's outcome, as they are done.

    Args:
        open_model: is called once in each process.
        queue: the recordings; all machines see them at the same path.
        actors: processes at most.
        cores: of each.
        on_runtime: is called with the model's runtime, before each outcome.

    Raises as `kvcast.cluster.mapping.mapped`.

    """
    make = _RecordingActor(open_model)
    for runtime, outcome in mapped(make, list(queue), actors=actors, cores=cores):
        on_runtime(runtime)
        yield outcome


@dataclass(frozen=True)
class _RecordingActor:
    open_model: Callable[[], Opened]

    def __call__(self) -> Callable[[QueuedRecording], tuple[str, Outcome]]:
        model, runtime, options = self.open_model()

        def transcribe(queued: QueuedRecording) -> tuple[str, Outcome]:
            if (problem := _unlike(queued)) is not None:
                return runtime, Outcome(queued=queued, error=problem)
            (outcome,) = transcribe_all(model, [queued], 1, options=options, watch=lambda *_: None)
            return runtime, replace(outcome, error=portable(outcome.error))

        return transcribe


def _unlike(queued: QueuedRecording) -> InputOutputError | None:
    """Tell whether this machine does not see the file that the journal is about."""
    try:
        size = Path(queued.source).stat().st_size
    except OSError as error:
        return InputOutputError(
            f"{queued.source}: the machine {machine()} does not see it ({error.strerror}): put "
            "recordings where all machines find them under one path"
        )
    if size != queued.recording.size:
        return InputOutputError(
            f"{queued.source}: the machine {machine()} has another file there, or an old one"
        )
    return None
