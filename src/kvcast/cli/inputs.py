"""Inputs of commands, and where a transcript goes: standard output, or files and their formats."""

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from kvcast.cli import console
from kvcast.cli.arguments import Heading, filled
from kvcast.cli.opening import STANDARD_INPUT, chosen_model, drafted_by, opened, shown
from kvcast.errors import InputMissingError, KvcastError, PartialFailureError, UsageError
from kvcast.saving import check_target, prepare_folder, save
from kvcast.spec.runtimes import OnPhase
from kvcast.transcripts import writers
from kvcast.transcripts.folders.recordings import folded
from kvcast.transcripts.params import SUBTITLES, SubtitleParams
from kvcast.transcripts.subtitles import AS_SEGMENTS

if TYPE_CHECKING:
    from kvcast.speech.base import TranscriptionModel
    from kvcast.transcripts.segments import Segment


def stem(source: str) -> str:
    return "stdin" if source == STANDARD_INPUT else Path(source).stem


def refuse_shared_names(sources: Iterable[str]) -> None:
    """Raise UsageError if two inputs would write the same files."""
    owners: dict[str, str] = {}
    for source in sources:
        name = folded(stem(source))
        if name in owners:
            other = owners[name]
            same = stem(source) == stem(other)
            where = "" if same else " where capitals and accents do not count"
            raise UsageError(
                f"{other} and {source} would both be saved as {stem(other)}.*{where}; "
                "transcribe them in two runs, each with its own --output-dir"
            )
        owners[name] = source


MODEL_VARIABLE = "KVCAST_MODEL"
MODEL_CHOICES = (
    "a kvcast bundle, a Hugging Face folder of a model of speech, a CTranslate2 Whisper folder, "
    "a hub id org/name[@revision], demo or demo-base"
)

EXIT_CODES = """\
exit codes:
  0    done
  1    error
  2    wrong usage
  3    some of several files failed; {done}
  66   input missing
  74   input cannot be read, or output cannot be written
  130  interrupted; {kept}
  141  the reader of standard output left early
  143  terminated; as 130

If all of several files fail, the exit code is the one they share, or else 1.
"""


def add_audio(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "audio", nargs="+", metavar="AUDIO", help="audio files, or - for standard input"
    )


def add_model(group: Heading) -> None:
    group.add_argument(
        "--model",
        "-m",
        type=filled,
        default=os.environ.get(MODEL_VARIABLE),
        metavar="MODEL",
        help=f"{MODEL_CHOICES} (default: ${MODEL_VARIABLE}, or a model that is here)",
    )


def check(args: argparse.Namespace) -> None:
    """Raise UsageError for a missing model or an impossible input, before any work."""
    if not args.model:
        args.model = chosen_model("transcribe", quiet=args.quiet)
    if args.audio.count(STANDARD_INPUT) > 1:
        raise UsageError("standard input (-) can be read only once")
    if STANDARD_INPUT in args.audio and not console.is_piped():
        raise UsageError("standard input (-) is not a recording: pipe one in")


def present(
    sources: Sequence[str], check: Callable[[str], None] | None = None
) -> tuple[list[str], list[int]]:
    """Return the inputs that exist and pass `check`, and exit codes of others; report these."""
    passing, failures = [], []
    for source in sources:
        try:
            if _is_missing(source):
                raise InputMissingError("there is no such file")
            if check is not None:
                check(source)
            passing.append(source)
        except KvcastError as error:
            failures.append(console.report(error, about=shown(source)))
    return passing, failures


def load(args: argparse.Namespace, on_phase: OnPhase) -> "tuple[TranscriptionModel, str]":
    loaded = opened(args.model, args, on_phase, task="transcribe")
    assert loaded.model.task == "transcribe"
    if "draft" in args:
        args.draft = drafted_by(args, on_phase, task="transcribe")
    return cast("TranscriptionModel", loaded.model), loaded.runtime


def exit_code(failures: Sequence[int], *, inputs: int) -> int:
    if failures and len(failures) < inputs:
        return PartialFailureError.exit_code
    shared = set(failures) or {0}
    return shared.pop() if len(shared) == 1 else 1


def _is_missing(source: str) -> bool:
    """Report missing files before a model is loaded; the audio reader finds all other faults."""
    try:
        return source != STANDARD_INPUT and not (source and Path(source).stat())
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


ALL = "all"
FORMATS = (*writers.EXTENSIONS, ALL)


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The formats of one run; `folder` is where the saved ones go."""

    printed: str | None
    saved: tuple[str, ...] = ()
    folder: Path | None = None
    subtitles: SubtitleParams = AS_SEGMENTS

    @classmethod
    def chosen(
        cls,
        *,
        format: str | None,
        output_dir: Path | None,
        json: bool,
        quiet: bool,
        sources: list[str],
        subtitles: SubtitleParams,
    ) -> Self:
        """Combine the options, and prepare the folder; raises UsageError, InputOutputError."""
        if subtitles.are_chosen and format not in {*writers.SUBTITLES, ALL}:
            changed = subtitles.changed(SUBTITLES)
            shape = "shapes" if len(changed) == 1 else "shape"
            raise UsageError(
                f"{' and '.join(changed)} {shape} subtitles: add --format srt, or vtt, ass or lrc"
            )
        if output_dir is None:
            alone = _printed_alone(format, json=json, several=len(sources) > 1)
            return cls(printed=alone, subtitles=subtitles)
        _refuse_file_names(output_dir)
        refuse_shared_names(sources)
        prepare_folder(output_dir)
        saved = tuple(writers.EXTENSIONS) if format == ALL else (format or "text",)
        printed = "json" if json else None if quiet else "text"
        return cls(printed=printed, saved=saved, folder=output_dir, subtitles=subtitles)

    @property
    def extensions(self) -> tuple[str, ...]:
        return tuple(writers.EXTENSIONS[saved] for saved in self.saved)

    def check(self, source: str) -> None:
        """Raise InputOutputError if an input's files cannot have their names."""
        for target in self._targets(source).values():
            check_target(target)

    def pieces(self, segments: "Iterable[Segment]") -> Iterator[str]:
        write = writers.STREAMED.get(self.printed or "", _no_pieces)
        return write(segments, self.subtitles)

    def rendered(self, transcript: writers.TranscriptDocument) -> dict[str, str]:
        return {
            writers.EXTENSIONS[saved]: writers.render(saved, transcript, self.subtitles)
            for saved in self.saved
        }

    def finish(self, transcript: writers.TranscriptDocument) -> None:
        """Save the files, then print a format that needs the whole transcript."""
        targets = self._targets(transcript.source)
        if targets:
            for extension, text in self.rendered(transcript).items():
                save(targets[extension], text)
        if self.printed == "json":
            console.emit(writers.render("json", transcript))

    def _targets(self, source: str) -> dict[str, Path]:
        if self.folder is None:
            return {}
        name = stem(source)
        return {extension: self.folder / f"{name}.{extension}" for extension in self.extensions}


def _refuse_file_names(folder: Path) -> None:
    """Raise UsageError for a file's name, or a format, in place of the output folder."""
    named = folder.suffix[1:] or folder.name
    formats = {extension: name for name, extension in writers.EXTENSIONS.items()}
    if named in formats and not folder.is_dir():
        raise UsageError(
            f"--output-dir {folder} names a folder: --output-dir . --format {formats[named]} saves "
            f"a .{named} beside you"
        )


def _no_pieces(segments: "Iterable[Segment]", _: SubtitleParams) -> Iterator[str]:
    """Take the segments for a format that is printed at the end, or not at all."""
    for _segment in segments:
        pass
    return iter(())


def _printed_alone(chosen: str | None, *, json: bool, several: bool) -> str:
    if chosen == ALL:
        raise UsageError("--format all makes several files and needs --output-dir")
    if json and chosen not in {None, "json"}:
        raise UsageError(
            f"--json and --format {chosen} both use standard output: "
            f"add --output-dir to save the {chosen}, or drop one"
        )
    if several and chosen in {*writers.SUBTITLES, "tsv"}:
        raise UsageError(
            f"several {chosen} transcripts cannot share standard output: add --output-dir"
        )
    return "json" if json else chosen or "text"
