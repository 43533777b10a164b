"""Finds a folder's recordings, names their transcripts, and transcribes several at once.

`talks/a.mp3` becomes `talks/a.txt`. Where recordings of one folder differ in their extension alone,
each keeps its whole name: `a.mp3.txt` and `a.wav.txt`. In threads, every recording has its own
cache; in a batch they share one.
"""

import itertools
import os
import stat
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from kvcast.audio.formats import EXTENSIONS
from kvcast.errors import UsageError
from kvcast.transcripts.params import FolderParams
from kvcast.transcripts.segments import Transcript

if TYPE_CHECKING:
    from kvcast.speech.base import TranscriptionModel
    from kvcast.speech.channels import AnyTranscription


@dataclass(frozen=True, kw_only=True, order=True)
class RecordingFile:
    """A file to transcribe."""

    path: str  # relative to the folder, separated by "/"
    size: int
    mtime_ns: int  # since 1970

    @classmethod
    def at(cls, file: Path, path: str) -> "RecordingFile":
        return cls.of(path, file.stat())

    @classmethod
    def of(cls, path: str, seen: os.stat_result) -> "RecordingFile":
        return cls(path=path, size=seen.st_size, mtime_ns=seen.st_mtime_ns)


@dataclass(frozen=True, kw_only=True)
class Problem:
    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class FolderListing:
    """The recordings, links and problems in a folder, in the order of their paths.

    `older`: recordings left out because they are not newer. `others`: files that no pattern and no
    extension names. `closed`: folders that were not entered without `recursive`.
    """

    recordings: tuple[RecordingFile, ...]
    problems: tuple[Problem, ...]
    links: tuple[str, ...]
    older: int
    others: tuple[str, ...]
    closed: tuple[str, ...]


def find(folder: Path, params: FolderParams, *, besides: Path) -> FolderListing:
    """Return the recordings of a folder outside `besides`; UsageError: `newer` is no file or date.

    Names that begin with a dot are passed over, as are links to folders, so that no path is taken
    twice and none leaves the folder. Links to files are followed.
    """
    after_ns = None if params.newer is None else instant_ns(params.newer)
    problems: list[Problem] = []
    links: list[str] = []
    closed: list[str] = []
    others: list[str] = []
    recordings: list[RecordingFile] = []
    older = 0
    for path in _paths(folder, params.recursive, besides, problems, links, closed):
        if not _wanted(path, params.patterns):
            others.append(path)
            continue
        try:
            seen = (folder / path).stat()
        except OSError as error:
            problems.append(Problem(path=path, reason=f"cannot be read: {error.strerror}"))
            continue
        if not stat.S_ISREG(seen.st_mode):  # a pipe would be waited for
            continue
        if after_ns is not None and seen.st_mtime_ns <= after_ns:
            older += 1
            continue
        recordings.append(RecordingFile.of(path, seen))
    recordings.sort(key=lambda recording: PurePosixPath(recording.path).parts)
    return FolderListing(
        recordings=tuple(recordings),
        problems=tuple(problems),
        links=tuple(links),
        older=older,
        others=tuple(others),
        closed=tuple(closed),
    )


def instant_ns(newer: str) -> int:
    """Return when a file was last changed, or the instant of an ISO 8601 date (local time).

    Raises UsageError for any other text.
    """
    try:
        return Path(newer).stat().st_mtime_ns
    except (OSError, ValueError) as error:
        problem = error
    try:
        date = datetime.fromisoformat(newer)
        return int(date.replace(microsecond=0).timestamp()) * 10**9 + date.microsecond * 1000
    except (ValueError, OverflowError, OSError):
        reason = getattr(problem, "strerror", None) or problem
        raise UsageError(
            f"newer: {newer} is not a date such as 2026-01-31 or 2026-01-31T18:30, and no file "
            f"({reason})"
        ) from None


def _paths(
    folder: Path,
    recursive: bool,
    besides: Path,
    problems: list[Problem],
    links: list[str],
    closed: list[str],
) -> Iterator[str]:
    """Yield the paths of all files; adds unreadable folders, links to folders, closed folders."""
    relative = _relative_to(folder)

    def unreadable(error: OSError) -> None:
        problems.append(
            Problem(path=relative(error.filename), reason=f"cannot be read: {error.strerror}")
        )

    own = os.path.realpath(besides)
    for place, folders, files in os.walk(folder, onerror=unreadable):
        here = Path(place)
        visible = sorted(name for name in folders if not name.startswith("."))
        if recursive:
            links.extend(relative(here / name) for name in visible if (here / name).is_symlink())
        folders[:] = [name for name in visible if os.path.realpath(here / name) != own]
        if not recursive:
            closed.extend(relative(here / name) for name in folders)
            folders.clear()
        yield from (relative(here / name) for name in files if not name.startswith("."))


def _relative_to(folder: Path) -> Callable[[str | Path], str]:
    return lambda path: Path(path).relative_to(folder).as_posix()


def _wanted(path: str, patterns: tuple[str, ...]) -> bool:
    if patterns:
        return any(PurePosixPath(path).match(pattern) for pattern in patterns)
    return PurePosixPath(path).suffix.lower().removeprefix(".") in EXTENSIONS


def named(paths: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return a name for each recording's transcripts, relative to the other folder, by its path.

    `given`: earlier names by path, which stay, also those of recordings that are not among `paths`.
    Names differ even where capitals and the composition of accents do not count, as on macOS and
    Windows.
    """
    taken = {folded(name) for name in given.values()}
    names = {path: given[path] for path in paths if path in given}
    fresh = [path for path in paths if path not in given]
    claims = Counter(claim for path in paths for claim in {folded(_stem(path)), folded(path)})
    for path in fresh:
        stem = _stem(path)
        bare = [stem] if claims[folded(stem)] == 1 else []
        numbered = (f"{path}-{number}" for number in itertools.count(2))
        candidates = itertools.chain(bare, [path], numbered)
        names[path] = next(name for name in candidates if folded(name) not in taken)
        taken.add(folded(names[path]))
    return names


def may_be_named(path: str, name: str) -> bool:
    """Return whether `named` could have given `name` to the recording at `path`."""
    number = name.removeprefix(f"{path}-")
    return name in {path, _stem(path)} or (number != name and number.isdecimal())


def _stem(path: str) -> str:
    return PurePosixPath(path).with_suffix("").as_posix()


def folded(name: str) -> str:
    """Return an equal key for names that some file systems take for the same."""
    return unicodedata.normalize("NFC", name).casefold()


@dataclass(frozen=True, kw_only=True)
class QueuedRecording:
    """A recording as it was when its turn came, and the path by which it is opened."""

    recording: RecordingFile
    source: str

    def as_it_is(self) -> "QueuedRecording":
        try:
            now = RecordingFile.at(Path(self.source), self.recording.path)
        except OSError:  # removed meanwhile: reading it will fail
            return self
        return replace(self, recording=now)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    queued: QueuedRecording
    transcript: Transcript | None = None
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
    thread. Otherwise each of `workers` is a thread, except a single one, and takes a recording when
    it is free. Recordings that run when the iterator is closed, or an exception arrives there, are
    dropped at their next segment. `queue` is consumed by the caller's thread; with `batch` at once,
    and each recording is looked at again when it is opened. Raises UsageError for options that
    cannot be served.
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
) -> Transcript:
    segments = []
    for segment in transcription:
        if stopped.is_set():
            raise InterruptedError
        segments.append(segment)
        watch(
            queued, min(segment.end / transcription.duration, 1.0) if transcription.duration else 1
        )
    return Transcript.of(transcription, segments)
