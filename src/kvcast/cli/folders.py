"""`kvcast transcribe DIR`: a folder's recordings, a line for each, and the summary."""

import argparse
import functools
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from kvcast.cli import console, inputs
from kvcast.cli.arguments import GIVEN, keywords
from kvcast.cli.console import Progress, Terminated, progress
from kvcast.cli.inputs import Outputs
from kvcast.cli.opening import for_actor
from kvcast.cluster.params import CLUSTER, ClusterParams
from kvcast.errors import InputMissingError, UsageError
from kvcast.loading.params import LoadParams
from kvcast.spec.runtimes import ignore_phase
from kvcast.speech.params import TranscribeParams
from kvcast.transcripts.params import FOLDERS, FolderParams, SubtitleParams
from kvcast.transcripts.writers import TranscriptDocument

if TYPE_CHECKING:
    from kvcast.cluster.mapping import Opened
    from kvcast.transcripts.folders.recordings import (
        Outcome,
        QueuedRecording,
        Watch,
    )
    from kvcast.transcripts.folders.run import FileResult, FolderRun, Summary
    from kvcast.transcripts.segments import Transcript

Begin: TypeAlias = "Callable[[Watch], Generator[Outcome]]"  # starts to transcribe; reports progress
_MOST_KINDS = 8  # extensions that the last line names, of files that were passed over

_WITHOUT_EFFECT = frozenset(
    {"audio", "output_dir", "json", "quiet", "run", "threads", "trust", GIVEN}
)  # arguments that a transcript does not depend on, besides those of folders


def folder_of(args: argparse.Namespace) -> Path | None:
    """Return the folder that is to be transcribed, or None if the inputs are files.

    Raises UsageError or InputMissingError if the inputs and the options do not go together.
    """
    params = FolderParams(**keywords(args, FolderParams))
    folders = [source for source in args.audio if _is_folder(source)]
    cluster = ClusterParams(**keywords(args, ClusterParams))
    changed = [name for name in params.changed(FOLDERS) if getattr(params, name)]
    changed += cluster.changed(CLUSTER)
    if folders and len(args.audio) > 1:
        raise UsageError(f"{folders[0]} is a folder: transcribe it in a run of its own")
    if folders and args.output_dir is None:
        raise UsageError(f"{folders[0]} is a folder: add --output-dir for its transcripts")
    if folders:
        return Path(folders[0])
    if changed and not any(source == "-" or os.path.lexists(source) for source in args.audio):
        raise InputMissingError(f"{args.audio[0]}: there is no such folder")
    if args.output_dir is not None and "resume" in changed:
        changed.remove("resume")  # a file's run goes on in any case
    if changed:
        raise UsageError(f"--{changed[0]} is for a folder, and {args.audio[0]} is a file")
    return None


def _is_folder(source: str) -> bool:
    try:
        return bool(source) and Path(source).is_dir()
    except OSError:  # its reader will report it
        return False


def run(folder: Path, args: argparse.Namespace) -> int:
    from kvcast.transcripts.folders.run import opened_run

    outputs = Outputs.chosen(
        sources=args.audio,
        format=args.format,
        output_dir=args.output_dir,
        json=args.json,
        quiet=args.quiet,
        subtitles=SubtitleParams(**keywords(args, SubtitleParams)),
    )
    params = FolderParams(**keywords(args, FolderParams))
    if args.batch is not None and params.workers > 1:
        raise UsageError(
            "--batch decodes several recordings together already: drop it or --workers"
        )
    cluster = ClusterParams(**keywords(args, ClusterParams))
    if cluster.ray is not None and params.workers > 1:
        raise UsageError("--workers is for one machine: with --ray, give --actors")
    watcher = progress(quiet=args.quiet)
    with console.own_error_stream(), ExitStack() as held:
        with watcher.waiting(f"looking at {folder}"):
            options = fingerprint(args, outputs)
            work = held.enter_context(
                opened_run(
                    folder, args.output_dir, params, options=options, extensions=outputs.extensions
                )
            )
        _refuse_nothing(folder, work, params)
        if not args.quiet:
            for notice in _notices(work):
                console.say(notice)
        course = _ResultCollector(folder, args, outputs, watcher, work)
        outcomes = course.here if cluster.ray is None else course.on_cluster
        for problem in work.problems:
            course.ended(problem)
        if work.waiting:
            with outcomes() as begin:
                course.transcribe(begin)
        summary = course.summary()
    if args.json:
        console.emit(json.dumps(summary.document(), ensure_ascii=False) + "\n")
    elif not args.quiet:
        console.emit("".join(_table(summary)))
    return inputs.exit_code(course.failures, inputs=len(summary.files))


class _ResultCollector:
    def __init__(
        self,
        folder: Path,
        args: argparse.Namespace,
        outputs: Outputs,
        watcher: Progress,
        work: "FolderRun",
    ) -> None:
        self._folder = folder
        self._args = args
        self._outputs = outputs
        self._watcher = watcher
        self._work = work
        self._results: list[FileResult] = list(work.kept)
        self._runtime: str | None = None
        self._seconds = 0.0
        self.failures: list[int] = []

    def ended(self, result: "FileResult") -> None:
        self._results.append(result)
        if result.error is not None:
            with self._watcher.aside():
                code = console.report(result.error, about=str(self._folder / result.path))
            self.failures.append(code)

    @contextmanager
    def here(self) -> "Iterator[Begin]":
        from kvcast.transcripts.folders.recordings import transcribe_all

        with self._watcher.waiting(f"loading {self._args.model}") as on_phase:
            model, self._runtime = inputs.load(self._args, on_phase)
        yield lambda watch: transcribe_all(
            model,
            self._work.queue(),
            self._args.workers,
            options=keywords(self._args, TranscribeParams),
            watch=watch,
        )

    @contextmanager
    def on_cluster(self) -> "Iterator[Begin]":
        from kvcast.cluster.connection import connected
        from kvcast.cluster.mapping import transcribed

        def run_by(runtime: str) -> None:
            self._runtime = runtime

        args = self._args
        with ExitStack() as held:
            with self._watcher.waiting(f"connecting to Ray at {args.ray}"):
                held.enter_context(connected(args.ray))
            yield lambda _: transcribed(
                functools.partial(opened_on_cluster, for_actor(args)),
                self._work.queue(),
                actors=args.actors,
                cores=args.threads or 1,
                on_runtime=run_by,
            )

    def transcribe(self, begin: "Begin") -> None:
        waiting = self._work.waiting
        begun = time.monotonic()
        finished = 0
        with self._watcher.covering(
            len(waiting), sum(recording.size for recording in waiting)
        ) as bar:
            outcomes = begin(
                lambda queued, share: bar.reached(queued.source, share * queued.recording.size)
            )
            try:
                with closing(outcomes):
                    for outcome in outcomes:
                        self.ended(self._work.finish(outcome, self._render))
                        finished += 1
                        bar.finished(outcome.queued.source, outcome.queued.recording.size)
                        self._say_notices(outcome.queued, outcome.transcript)
            except (KeyboardInterrupt, Terminated):
                console.say(
                    f"{finished} of {len(waiting)} recordings are finished; the same command with "
                    "--resume does the rest"
                )
                raise
        self._seconds = time.monotonic() - begun

    def summary(self) -> "Summary":
        from kvcast.transcripts.folders.run import Summary

        return Summary(
            folder=str(self._folder),
            output_dir=str(self._args.output_dir),
            model=self._args.model,
            runtime=self._runtime,
            seconds=self._seconds,
            files=tuple(sorted(self._results, key=lambda result: PurePosixPath(result.path).parts)),
            passed_over=self._work.passed_over,
            closed=self._work.listing.closed,
        )

    def _render(self, source: str, transcript: "Transcript") -> dict[str, str]:
        return self._outputs.rendered(
            TranscriptDocument(
                source=source,
                model=self._args.model,
                runtime=self._runtime or "",
                task=self._args.task,
                **vars(transcript),
            )
        )

    def _say_notices(self, queued: "QueuedRecording", transcript: "Transcript | None") -> None:
        if transcript is None or self._args.quiet:
            return
        for notice in transcript.notices:
            with self._watcher.aside():
                console.say(notice, about=queued.source)


def opened_on_cluster(args: argparse.Namespace) -> "Opened":
    model, runtime = inputs.load(args, ignore_phase)
    return model, runtime, keywords(args, TranscribeParams)


def fingerprint(args: argparse.Namespace, outputs: Outputs) -> str:
    """Return the digest of the model and of all options that saved transcripts depend on."""
    declared = (*FolderParams.declared(), *ClusterParams.declared())
    elsewhere = {option.name for option in declared}
    given = {
        name: value
        for name, value in vars(args).items()
        if name not in _WITHOUT_EFFECT and name not in elsewhere
    }
    return _digest(args, given | {"format": outputs.saved})


def decoding_fingerprint(args: argparse.Namespace) -> str:
    """Return the digest of the model and of the options that decoding depends on."""
    return _digest(args, keywords(args, LoadParams) | keywords(args, TranscribeParams))


def _digest(args: argparse.Namespace, given: dict[str, Any]) -> str:
    from kvcast.loading.opening import model_digest

    given["model's files"] = model_digest(args.model, LoadParams(**keywords(args, LoadParams)))
    return hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()


def _refuse_nothing(folder: Path, work: "FolderRun", params: FolderParams) -> None:
    if work.waiting or work.kept or work.problems or work.listing.older:
        return
    hints = [] if params.recursive else ["add --recursive for those in its folders"]
    hints.append("give another --glob" if params.patterns else "name files with --glob")
    raise InputMissingError(f"{folder} holds no matching recordings: {', or '.join(hints)}")


def _notices(work: "FolderRun") -> Iterable[str]:
    if work.damaged:
        yield f"damaged lines of the journal: {work.damaged}; their recordings are done again"
    if work.tried_again:
        yield f"recordings that failed before and are tried again: {work.tried_again}"
    if links := work.listing.links:
        yield f"links to folders are not followed: {', '.join(links)}"


def _table(summary: "Summary") -> Iterable[str]:
    yield f"{'':8}{'files':>8}  audio\n"
    for status in ("done", "kept", "failed"):
        audio = _clock(summary.audio_seconds(status)) if status != "failed" else ""
        yield f"{status:8}{summary.count(status):>8}  {audio}".rstrip() + "\n"
    if summary.seconds and summary.audio_seconds("done"):
        speed = summary.audio_seconds("done") / summary.seconds
        yield f"in {_clock(summary.seconds)}: {speed:.1f} times as fast as it plays\n"
    for file in summary.files:
        if file.reason:
            named = file.path in file.reason
            line = file.reason if named else f"{file.path}: {file.reason}"
            yield f"{console.one_line(line)}\n"
    if passed := _passed_over(summary):
        yield f"passed over: {passed}\n"


def _passed_over(summary: "Summary") -> str:
    """Return how many files and folders of which kinds were left alone, or nothing."""
    counts = []
    if files := summary.passed_over:
        kinds = Counter(PurePosixPath(path).suffix.lower() or "no extension" for path in files)
        named = [f"{kind} {count}" for kind, count in kinds.most_common(_MOST_KINDS)]
        more = ["…"] if len(kinds) > _MOST_KINDS else []
        counts.append(f"{_counted(len(files), 'file')} ({', '.join(named + more)})")
    if summary.closed:
        counts.append(f"{_counted(len(summary.closed), 'folder')} (--recursive)")
    return console.one_line(" and ".join(counts))


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
