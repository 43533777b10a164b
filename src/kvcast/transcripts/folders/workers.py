"""Recordings transcribed several at once over one model, whose weights lie in memory once.

In threads, every recording has a decoder with a cache of its own, and runtimes serve callers from
several threads; in a batch they share one.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kvcast.errors import UsageError
from kvcast.transcripts.folders.finding import RecordingFile

if TYPE_CHECKING:
    from kvcast.audio.timeline import Part
    from kvcast.decoding.speculative_decoding import DraftCounts
    from kvcast.speech.base import TranscriptionModel
    from kvcast.speech.channels import AnyTranscription
    from kvcast.transcripts.segments import Segment


@dataclass(frozen=True, kw_only=True)
class QueuedRecording:
    """A recording as it was when its turn came, and the path by which it is opened."""

    recording: RecordingFile
    source: str

    def as_it_is(self) -> "QueuedRecording":
        """Return the recording with its present size and date."""
        try:
            now = RecordingFile.at(Path(self.source), self.recording.path)
        except OSError:  # gone meanwhile, as its reader will tell
            return self
        return replace(self, recording=now)


@dataclass(frozen=True, kw_only=True)
class FolderTranscript:
    """A complete transcription; `duration` in seconds."""

    language: str
    duration: float
    notices: tuple[str, ...]
    segments: tuple["Segment", ...]
    skipped: "tuple[Part, ...] | None"
    draft: "DraftCounts | None"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a recording: either the transcript or the error is given."""

    queued: QueuedRecording
    transcript: FolderTranscript | None = None
    error: Exception | None = None


Watch: TypeAlias = Callable[[QueuedRecording, float], None]
"""Takes the share of a recording that is done, 0 to 1; called from several threads."""


def transcribe_all(
    model: "TranscriptionModel",
    queue: Iterable[QueuedRecording],
    workers: int,
    *,
    options: Mapping[str, Any],
    watch: Watch,
) -> Generator[Outcome]:
    """Transcribe recordings, several at once, and yield each when it is done.

    With the option `batch`, windows of several recordings are decoded together in the caller's
    thread. Otherwise every worker is a thread, except a single one, and takes a recording when it
    is free. Recordings that run when the iterator is closed, or an exception arrives there, are
    dropped at their next segment.

    Args:
        model: serves all recordings.
        queue: consumed by the caller's thread; with `batch` at once, and each is looked at again
            when it is opened.
        workers: recordings that run at once, without `batch`.
        options: of its `transcribe`, by keyword.
        watch: takes the progress of each recording.

    Raises:
        UsageError: for options that cannot be served.

    """
    stopped = threading.Event()
    if options.get("batch") is not None:
        yield from _in_batch(model, list(queue), options, watch, stopped)
        return

    def work(queued: QueuedRecording) -> Outcome:
        return _outcome(queued, lambda: model.transcribe(queued.source, **options), watch, stopped)

    if workers == 1:
        yield from map(work, queue)
        return
    waiting = iter(queue)
    with ThreadPoolExecutor(workers) as pool:
        try:
            running = {pool.submit(work, queued) for queued in islice(waiting, workers)}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {pool.submit(work, queued) for queued in islice(waiting, len(done))}
                yield from (future.result() for future in done)
        finally:
            stopped.set()


def _in_batch(
    model: "TranscriptionModel",
    queue: list[QueuedRecording],
    options: Mapping[str, Any],
    watch: Watch,
    stopped: threading.Event,
) -> Generator[Outcome]:
    def look(index: int) -> None:
        queue[index] = queue[index].as_it_is()

    together = model.transcribe_all([queued.source for queued in queue], **options)
    for index, transcription in enumerate(together):
        transcription.before_opening = partial(look, index)
    for index, transcription in enumerate(together):
        outcome = _outcome(queue[index], transcription.__enter__, watch, stopped)
        yield replace(outcome, queued=queue[index])


def _outcome(
    queued: QueuedRecording,
    begin: "Callable[[], AnyTranscription]",
    watch: Watch,
    stopped: threading.Event,
) -> Outcome:
    try:
        with begin() as transcription:
            return Outcome(
                queued=queued, transcript=_transcript(queued, transcription, watch, stopped)
            )
    except UsageError:
        raise
    except Exception as error:  # one recording never ends the others
        return Outcome(queued=queued, error=error)


def _transcript(
    queued: QueuedRecording,
    transcription: "AnyTranscription",
    watch: Watch,
    stopped: threading.Event,
) -> FolderTranscript:
    segments: list[Segment] = []
    for segment in transcription:
        if stopped.is_set():
            raise InterruptedError
        segments.append(segment)
        watch(
            queued, min(segment.end / transcription.duration, 1.0) if transcription.duration else 1
        )
    return FolderTranscript(
        language=transcription.language,
        duration=transcription.duration,
        notices=tuple(transcription.notices),
        segments=tuple(segments),
        skipped=transcription.skipped,
        draft=transcription.draft,
    )
