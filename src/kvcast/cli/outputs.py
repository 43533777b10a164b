"""Where a transcript goes: which format to standard output, which ones to files.

Knows how the output options combine.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kvcast.cli import console
from kvcast.cli.inputs import refuse_shared_names, stem
from kvcast.errors import UsageError
from kvcast.saving import check_target, prepare_folder, save
from kvcast.transcripts import writers
from kvcast.transcripts.params import SUBTITLES, SubtitleParams
from kvcast.transcripts.subtitles import AS_SEGMENTS

if TYPE_CHECKING:
    from kvcast.transcripts.segments import Segment

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
        """Return the printed text as segments come; takes all of them in every format."""
        write = writers.STREAMED.get(self.printed or "", _no_pieces)
        return write(segments, self.subtitles)

    def rendered(self, transcript: writers.TranscriptDocument) -> dict[str, str]:
        """Return the content of every file to save, by the file's extension."""
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
