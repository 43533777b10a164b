"""`kvcast transcribe AUDIO…`: options into keywords, inputs in turn, exit codes."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvcast.audio.params import VOICE
from kvcast.cli import console, folders, inputs, live
from kvcast.cli.arguments import Heading, Parser, add_options, headings, keywords
from kvcast.cli.console import Progress, Terminated, progress
from kvcast.cli.inputs import FORMATS, Outputs
from kvcast.cli.opening import STANDARD_INPUT, shown
from kvcast.cli.prompts import read_text
from kvcast.cluster.params import CLUSTER, ClusterParams
from kvcast.loading.params import LOADING, OF_TEXTS, LoadParams
from kvcast.speech.params import (
    FALLBACK,
    LIVE,
    RECOGNITION,
    SEARCH,
    WORDS,
    LiveParams,
    TranscribeParams,
)
from kvcast.transcripts.params import FOLDERS, SUBTITLES, FolderParams, SubtitleParams
from kvcast.transcripts.segments import Segment, Transcript
from kvcast.transcripts.unfinished import UnfinishedWork
from kvcast.transcripts.writers import TranscriptDocument

if TYPE_CHECKING:
    from kvcast.speech.channels import AnyTranscription

EPILOG = """\
Options may be spelled with hyphens or underscores; Whisper's own names are accepted.
Without --output-dir the transcript goes to standard output as it is recognised.
AUDIO may also be one folder, which needs --output-dir; the options under "folders" and
"many machines" are for it.

""" + inputs.EXIT_CODES.format(
    done="the rest are done and saved", kept="files already complete stay"
)


BRIEF = (
    *("audio", "model", "language", "task", "format", "output_dir"),
    *("word_timestamps", "vad", "beam", "batch", "live", "quiet"),
)
EXAMPLES = """\
  kvcast transcribe talk.mp3 --format srt --output-dir subtitles
  kvcast transcribe interview.m4a --model large-v3-turbo --language de --vad
"""


def add_arguments(parser: Parser) -> None:
    parser.epilog, parser.brief, parser.examples = EPILOG, BRIEF, EXAMPLES
    inputs.add_audio(parser)
    groups = (LOADING, RECOGNITION, VOICE, SEARCH, FALLBACK, WORDS, SUBTITLES, LIVE, FOLDERS)
    under = headings(parser, *groups, CLUSTER, "output")
    inputs.add_model(under[LOADING])
    add_options(under, LoadParams, leave_out=OF_TEXTS)
    add_options(under, TranscribeParams, leave_out={"replace"})
    under[RECOGNITION].add_argument(
        "--replace",
        default=(),
        metavar="FILE",
        help="replacement rules FROM => TO, one per line, for names and terms: whole words, in "
        "any case",
    )
    add_options(under, SubtitleParams)
    live.add_arguments(under[LIVE])
    add_options(under, FolderParams)
    add_options(under, ClusterParams)
    _add_output(under["output"])


def _add_output(group: Heading) -> None:
    group.add_argument(
        "--format",
        "-f",
        "--output-format",
        type=lambda name: {"txt": "text"}.get(name, name),  # Whisper's own name for it
        choices=FORMATS,
        help="format of the transcript (default: text)",
    )
    group.add_argument(
        "--output-dir",
        "-o",
        type=Path,
        metavar="DIR",
        help="save as DIR/name.ext, made if missing; text is still printed",
    )
    group.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document per input, each on one line",
    )
    group.add_argument(
        "--quiet",
        "-q",
        action="store_true",
        help="no progress, no notices, and no text where it is saved",
    )


def run(args: argparse.Namespace) -> int:
    subtitles = SubtitleParams(**keywords(args, SubtitleParams))  # raises UsageError
    args.word_timestamps |= subtitles.are_chosen
    if args.replace:
        args.replace = tuple(read_text(args.replace).splitlines())
    _check(args)
    if args.live:
        return _transcribe_live(args)
    if (folder := folders.folder_of(args)) is not None:
        return folders.run(folder, args)
    outputs = Outputs.chosen(
        subtitles=subtitles,
        sources=args.audio,
        format=args.format,
        output_dir=args.output_dir,
        json=args.json,
        quiet=args.quiet,
    )
    watcher = progress(quiet=args.quiet)
    present, failures = inputs.present(args.audio, outputs.check)
    transcriptions: Sequence[AnyTranscription] = []
    options = cache(partial(folders.decoding_fingerprint, argparse.Namespace(**vars(args))))
    if present:
        with watcher.waiting(f"loading {args.model}") as on_phase:
            model, runtime = inputs.load(args, on_phase)
        transcriptions = model.transcribe_all(present, **keywords(args, TranscribeParams))
    for source, transcription in zip(present, transcriptions, strict=True):
        try:
            with transcription, _resumable(transcription, source, outputs, options, args.quiet):
                _show(transcription, runtime, source, args, outputs, watcher)
        except console.OutputStreamError:
            raise
        except Exception as error:
            failures.append(console.report(error, about=shown(source)))
    return inputs.exit_code(failures, inputs=len(args.audio))


@contextmanager
def _resumable(
    transcription: "AnyTranscription",
    source: str,
    outputs: Outputs,
    options: Callable[[], str],
    quiet: bool,
) -> Iterator[None]:
    """Keep what is done beside the outputs until they are saved, and go on from there.

    `options`: digest of the model and the decoding options. Nothing is kept after an error.
    """
    if outputs.folder is None:
        try:
            yield
        except (KeyboardInterrupt, Terminated):
            console.say("nothing is kept to go on from; --output-dir would keep it")
            raise
        return
    work = UnfinishedWork(
        outputs.folder, inputs.stem(source), lambda: f"{options()} {_state_of(source)}"
    )
    can_go_on = transcription.remember(work)
    if len(work) and can_go_on and not quiet:
        console.say("goes on where an interrupted run ended", about=shown(source))
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        work.close()
        if len(work):
            console.say("the same command goes on from here", about=shown(source))
        raise
    except BaseException:
        work.remove()
        raise
    work.remove()


def _state_of(source: str) -> str:
    """Return what changes with a file's content: its size and date; nothing for a pipe."""
    if source == STANDARD_INPUT:
        return ""
    seen = Path(source).stat()
    return f"{seen.st_size} {seen.st_mtime_ns}"


def _transcribe_live(args: argparse.Namespace) -> int:
    intake = live.Intake(live.standard_input())  # a microphone does not wait for a model
    with progress(quiet=args.quiet).waiting(f"loading {args.model}") as on_phase:
        model, _ = inputs.load(args, on_phase)
    live.transcribe(
        model.live(**keywords(args, LiveParams)),
        intake,
        sample_rate=args.sample_rate or live.SAMPLE_RATE,
        as_json=args.json or args.format == "json",
        quiet=args.quiet,
    )
    return 0


def _check(args: argparse.Namespace) -> None:
    inputs.check(args)
    live.check(args)
    params = LiveParams if args.live else TranscribeParams
    params(**keywords(args, params))  # raises UsageError


def _show(
    transcription: "AnyTranscription",
    runtime: str,
    source: str,
    args: argparse.Namespace,
    outputs: Outputs,
    watcher: Progress,
) -> None:
    segments: list[Segment] = []

    def watched() -> Iterator[Segment]:
        for segment in transcription:
            segments.append(segment)
            watcher.reached(segment.end)
            yield segment

    with watcher.measuring(shown(source), transcription.duration):
        for piece in outputs.pieces(watched()):
            with watcher.hidden():
                console.emit(piece)
    transcript = TranscriptDocument(
        source=source,
        model=args.model,
        runtime=runtime,
        task=args.task,
        **vars(Transcript.of(transcription, segments)),
    )
    outputs.finish(transcript)
    if not args.quiet:
        for notice in transcript.notices:
            console.say(notice, about=shown(source))
        if (drafts := transcript.draft) is not None:
            console.say(str(drafts), about=shown(source))
