"""`kvcast transcribe AUDIO…`: options into keywords, one input after the other, exit codes.

Knows no decoding: transcriptions yield segments, `Outputs` prints and saves them.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvcast.cli import console, live
from kvcast.cli.arguments import Heading, add_options, headings, keywords
from kvcast.cli.files import STANDARD_INPUT, shown
from kvcast.cli.opening import opened
from kvcast.cli.outputs import FORMATS, Outputs
from kvcast.cli.progress import Progress, progress
from kvcast.errors import InputMissingError, PartialFailureError, UsageError
from kvcast.spec.phases import OnPhase
from kvcast.tasks.params import (
    FALLBACK,
    LIVE,
    LOADING,
    RECOGNITION,
    SEARCH,
    LiveParams,
    LoadParams,
    TranscribeParams,
)
from kvcast.tasks.writers import Transcript

if TYPE_CHECKING:
    from kvcast.tasks.model import WhisperModel
    from kvcast.tasks.transcribe import Segment, Transcription

MODEL_VARIABLE = "KVCAST_MODEL"
MODEL_CHOICES = (
    "a kvcast bundle, a Hugging Face or CTranslate2 Whisper folder, "
    "a hub id org/name[@revision], demo or demo-base"
)

EPILOG = """\
Options may be spelled with hyphens or underscores; Whisper's own names are accepted.
Without --output-dir the transcript goes to standard output as it is recognised.

exit codes:
  0    done
  1    error
  2    wrong usage
  3    some of several files failed; the others are done and saved
  66   input missing
  74   input cannot be read, or output cannot be written
  130  interrupted; files already complete stay
  141  the reader of standard output left early
  143  terminated; as 130

If all of several files fail, the exit code is the one they share, or else 1.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = EPILOG
    parser.add_argument(
        "audio", nargs="+", metavar="AUDIO", help="audio files, or - for standard input"
    )
    under = headings(parser, LOADING, RECOGNITION, SEARCH, FALLBACK, LIVE, "output")
    under[LOADING].add_argument(
        "--model",
        "-m",
        default=os.environ.get(MODEL_VARIABLE),
        metavar="MODEL",
        help=f"{MODEL_CHOICES} (default: ${MODEL_VARIABLE})",
    )
    add_options(under, LoadParams, leave_out={"cache"})  # Whisper's are in fp32
    add_options(under, TranscribeParams)
    live.add_arguments(under[LIVE])
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
    """Transcribe every input and return the exit code; raises what concerns all of them."""
    _check(args)
    if args.live:
        return _transcribe_live(args)
    outputs = Outputs.chosen(
        sources=args.audio,
        format=args.format,
        output_dir=args.output_dir,
        json=args.json,
        quiet=args.quiet,
    )
    watcher = progress(quiet=args.quiet)
    failures = [
        console.report(InputMissingError("there is no such file"), about=source)
        for source in args.audio
        if _is_missing(source)
    ]
    present = [source for source in args.audio if not _is_missing(source)]
    transcriptions: Sequence[Transcription] = []
    if present:
        with watcher.waiting(f"loading {args.model}") as on_phase:
            model, runtime = _load(args, on_phase)
        transcriptions = model.transcribe_all(present, **keywords(args, TranscribeParams))
    for source, transcription in zip(present, transcriptions, strict=True):
        try:
            with transcription:
                _show(transcription, runtime, source, args, outputs, watcher)
        except console.OutputStreamError:
            raise
        except Exception as error:
            failures.append(console.report(error, about=shown(source)))
    return _exit_code(failures, inputs=len(args.audio))


def _transcribe_live(args: argparse.Namespace) -> int:
    intake = live.Intake(live.standard_input())  # a microphone does not wait for a model
    with progress(quiet=args.quiet).waiting(f"loading {args.model}") as on_phase:
        model, _ = _load(args, on_phase)
    live.transcribe(
        model.live(**keywords(args, LiveParams)),
        intake,
        sample_rate=args.sample_rate or live.SAMPLE_RATE,
        as_json=args.json or args.format == "json",
        quiet=args.quiet,
    )
    return 0


def _load(args: argparse.Namespace, on_phase: OnPhase) -> "tuple[WhisperModel, str]":
    """Return the model and the name of what runs it."""
    found = opened(args, on_phase)
    model = found.model
    if model.task != "transcribe":
        raise UsageError(
            f"{args.model} generates text and cannot transcribe: "
            "use kvcast generate, or another model"
        )
    return model, found.runtime


def _check(args: argparse.Namespace) -> None:
    if not args.model:
        raise UsageError(f"--model is missing: give {MODEL_CHOICES}; or set {MODEL_VARIABLE}")
    live.check(args)
    params = LiveParams if args.live else TranscribeParams
    params(**keywords(args, params))  # raises UsageError
    if args.audio.count(STANDARD_INPUT) > 1:
        raise UsageError("standard input (-) can be read only once")
    if STANDARD_INPUT in args.audio and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("standard input (-) is not a recording: pipe one in")


def _is_missing(source: str) -> bool:
    """Tell before a model is loaded; what else may be wrong, the reader of audio finds."""
    try:
        return source != STANDARD_INPUT and not (source and Path(source).stat())
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _show(
    transcription: "Transcription",
    runtime: str,
    source: str,
    args: argparse.Namespace,
    outputs: Outputs,
    watcher: Progress,
) -> None:
    segments: list[Segment] = []

    def watched() -> Iterator["Segment"]:
        for segment in transcription:
            segments.append(segment)
            watcher.reached(segment.end)
            yield segment

    with watcher.measuring(shown(source), transcription.duration):
        outputs.show(watched(), watcher)
    transcript = Transcript(
        source=source,
        model=args.model,
        runtime=runtime,
        task=args.task,
        language=transcription.language,
        duration=transcription.duration,
        notices=tuple(transcription.notices),
        segments=tuple(segments),
    )
    outputs.finish(transcript)
    if not args.quiet:
        for notice in transcript.notices:
            console.say(notice, about=shown(source))


def _exit_code(failures: list[int], *, inputs: int) -> int:
    if failures and len(failures) < inputs:
        return PartialFailureError.exit_code
    shared = set(failures) or {0}
    return shared.pop() if len(shared) == 1 else 1
