"""One run over a folder: recordings to transcribe, recordings to keep, and the result of each.

A recording is done when its transcripts are in place and the journal records it, in this order; a
run that is killed in between does it again, with the same result.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kvcast.errors import InputOutputError, KvcastError, in_one_line
from kvcast.saving import check_target, encoded, save, unwritable
from kvcast.spec.files import file_sha256
from kvcast.transcripts.folders.journal import Entry, Journal, opened_journal
from kvcast.transcripts.folders.recordings import (
    Outcome,
    QueuedRecording,
    RecordingFile,
    find,
    named,
)
from kvcast.transcripts.params import FolderParams
from kvcast.transcripts.segments import Transcript
from kvcast.transcripts.writers import json_number

SUMMARY_FORMAT = "kvcast.folder"
SUMMARY_VERSION = 2

Render: TypeAlias = Callable[[str, Transcript], Mapping[str, str]]
"""Takes a recording's path and transcription; returns texts by their files' extensions."""


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """The result of a file."""

    path: str
    status: Literal["done", "kept", "failed"]  # `kept`: done before and not changed
    error: Exception | None = None
    outputs: tuple[str, ...] = ()
    duration: float | None = None  # seconds of audio, if it is done
    language: str | None = None

    @property
    def reason(self) -> str:
        return "" if self.error is None else reason_of(self.error)

    def document(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "status": self.status,
            "reason": self.reason,
            "outputs": list(self.outputs),
            "duration": self.duration,
            "language": self.language,
        }


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The summary of a run over a folder.

    `runtime`: None if nothing was transcribed. `passed_over`: files that are neither recordings nor
    transcripts of earlier runs.
    """

    folder: str
    output_dir: str
    model: str
    runtime: str | None
    seconds: float
    files: tuple[FileResult, ...]
    passed_over: tuple[str, ...]
    closed: tuple[str, ...]

    def count(self, status: str) -> int:
        return sum(result.status == status for result in self.files)

    def audio_seconds(self, status: str) -> float:
        return sum(result.duration or 0.0 for result in self.files if result.status == status)

    def document(self) -> dict[str, Any]:
        return {
            "format": SUMMARY_FORMAT,
            "version": SUMMARY_VERSION,
            "folder": self.folder,
            "output_dir": self.output_dir,
            "model": self.model,
            "runtime": self.runtime,
            "done": self.count("done"),
            "kept": self.count("kept"),
            "failed": self.count("failed"),
            "duration": self.audio_seconds("done"),
            "seconds": round(self.seconds, 3),
            "passed_over": len(self.passed_over),
            "files": [result.document() for result in self.files],
        }


@contextmanager
def opened_run(
    folder: Path, output: Path, params: FolderParams, *, options: str, extensions: Sequence[str]
) -> Iterator["FolderRun"]:
    """Lock the existing folder `output` and list the recordings to transcribe.

    `options`: digest of all options that decide a transcript's content. Raises UsageError for
    another folder's transcripts, and InputOutputError if another run holds `output` or it cannot be
    written.
    """
    with opened_journal(output, folder) as journal:
        yield FolderRun(folder, output, params, options, extensions, journal)


class FolderRun:
    """One run over a folder: its recordings and their outcomes.

    `waiting`: to be transcribed, in order. `problems`: of files and folders that could not be read,
    and of recordings whose transcripts cannot have their names. `damaged`: lines of the journal.
    """

    def __init__(
        self,
        folder: Path,
        output: Path,
        params: FolderParams,
        options: str,
        extensions: Sequence[str],
        journal: Journal,
    ) -> None:
        self._folder, self._output = folder, output
        self._options = options
        self._journal = journal
        self.damaged = journal.damaged
        self.listing = find(folder, params, besides=output)
        own = self._outputs_before()

        def is_foreign(path: str) -> bool:
            return not own or os.path.realpath(folder / path) not in own

        self.passed_over = tuple(filter(is_foreign, self.listing.others))
        # Patterns may match transcripts of earlier runs; extensions do not.
        recordings = [
            recording
            for recording in self.listing.recordings
            if not params.patterns or is_foreign(recording.path)
        ]
        given = {path: entry.name for path, entry in journal.entries.items()}
        self._names = named([recording.path for recording in recordings], given)
        before = journal.entries if params.resume else {}
        self.problems = [
            FileResult(path=problem.path, status="failed", error=InputOutputError(problem.reason))
            for problem in self.listing.problems
        ]
        self.waiting: list[RecordingFile] = []
        self.kept: list[FileResult] = []
        for recording in recordings:
            entry = before.get(recording.path)
            if entry is not None and self._stands(entry, recording):
                self.kept.append(_result(entry, "kept"))
            elif (error := self._unnamable(recording, extensions)) is not None:
                self.problems.append(FileResult(path=recording.path, status="failed", error=error))
            else:
                self.waiting.append(recording)
        self.tried_again = sum(
            recording.path in before and before[recording.path].status == "failed"
            for recording in self.waiting
        )

    def queue(self) -> Iterator[QueuedRecording]:
        """Yield the waiting recordings, each with its size and date when its turn comes."""
        for recording in self.waiting:
            yield QueuedRecording(
                recording=recording, source=str(self._folder / recording.path)
            ).as_it_is()

    def finish(self, outcome: Outcome, render: Render) -> FileResult:
        """Save the transcripts of a recording, then record its outcome.

        Raises InputOutputError if the journal cannot be written. Every other error is the
        recording's.
        """
        recording = outcome.queued.recording
        entry = Entry(
            path=recording.path,
            size=recording.size,
            mtime_ns=recording.mtime_ns,
            sha256="",
            options=self._options,
            status="failed",
            reason="",
            name=self._names[recording.path],
            outputs={},
            duration=None,
            language=None,
        )
        error = outcome.error
        if outcome.transcript is not None:
            try:
                entry = self._saved(entry, outcome.queued, outcome.transcript, render)
            except KvcastError as failure:
                error = failure
        if error is not None:
            entry = replace(entry, reason=reason_of(error))
        self._journal.append(entry)
        return _result(entry, entry.status, error)

    def _saved(
        self, entry: Entry, queued: QueuedRecording, transcript: Transcript, render: Render
    ) -> Entry:
        digest = self._digest(queued.recording)
        outputs = {}
        for extension, text in render(queued.source, transcript).items():
            path = f"{entry.name}.{extension}"
            target = self._output / path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise unwritable(target, error) from None
            save(target, text, staging=self._journal.staging)
            outputs[path] = hashlib.sha256(encoded(text)).hexdigest()
        return replace(
            entry,
            sha256=digest,
            status="done",
            outputs=outputs,
            duration=json_number(transcript.duration),
            language=transcript.language,
        )

    def _digest(self, recording: RecordingFile) -> str:
        """Return a recording's SHA-256; raises InputOutputError if it changed since its turn."""
        try:
            file = self._folder / recording.path
            digest, now = file_sha256(file), RecordingFile.at(file, recording.path)
        except OSError as error:
            raise InputOutputError(f"cannot be read again: {error.strerror}") from None
        if now != recording:
            raise InputOutputError("changed while it was transcribed: transcribe it again")
        return digest

    def _unnamable(
        self, recording: RecordingFile, extensions: Sequence[str]
    ) -> InputOutputError | None:
        name = self._names[recording.path]
        try:
            for extension in extensions:
                check_target(self._output / f"{name}.{extension}")
        except InputOutputError as error:
            return error
        return None

    def _stands(self, entry: Entry, recording: RecordingFile) -> bool:
        """Return whether a recording's transcripts are valid; records a mere change of its date."""
        if (entry.status, entry.options, entry.size) != ("done", self._options, recording.size):
            return False
        if self._names[recording.path] != entry.name or not self._has_outputs(entry):
            return False
        if entry.mtime_ns == recording.mtime_ns:
            return True
        try:
            same = file_sha256(self._folder / recording.path) == entry.sha256
        except OSError:
            return False
        if same:
            self._journal.append(replace(entry, mtime_ns=recording.mtime_ns))
        return same

    def _has_outputs(self, entry: Entry) -> bool:
        try:
            return bool(entry.outputs) and all(
                not (self._output / path).is_symlink()
                and (self._output / path).is_file()
                and file_sha256(self._output / path) == digest
                for path, digest in entry.outputs.items()
            )
        except OSError:
            return False

    def _outputs_before(self) -> frozenset[str]:
        return frozenset(
            os.path.realpath(self._output / path)
            for entry in self._journal.entries.values()
            for path in entry.outputs
        )


def reason_of(error: Exception) -> str:
    if isinstance(error, KvcastError):
        return str(error)
    return in_one_line(f"internal error ({type(error).__name__}: {error})")


def _result(
    entry: Entry, status: Literal["done", "kept", "failed"], error: Exception | None = None
) -> FileResult:
    return FileResult(
        path=entry.path,
        status=status,
        error=error,
        outputs=tuple(entry.outputs),
        duration=entry.duration,
        language=entry.language,
    )
