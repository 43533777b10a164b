"""Formats transcripts as plain lines, SubRip, WebVTT, tab-separated values and JSON.

The first four equal the output of OpenAI's `whisper.utils` to the byte and can be streamed: a
generator yields each piece as soon as its segment is known. JSON is one line with a format version,
described by docs/json.md and docs/transcript.schema.json.

Knows nothing of files, standard output or how segments are found.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcast.tasks.transcribe import Segment

JSON_FORMAT = "kvcast.transcript"
JSON_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """A finished transcription and where it came from; `duration` is in seconds."""

    source: str
    model: str
    runtime: str
    task: str
    language: str
    duration: float
    notices: tuple[str, ...]
    segments: tuple["Segment", ...]

    def document(self) -> dict[str, Any]:
        """Return the content of the JSON format, as plain dictionaries, lists and numbers."""
        return {
            "format": JSON_FORMAT,
            "version": JSON_VERSION,
            "source": self.source,
            "model": self.model,
            "runtime": self.runtime,
            "task": self.task,
            "language": self.language,
            "duration": json_number(self.duration),
            "text": "".join(segment.text for segment in self.segments).strip(),
            "segments": [_segment_fields(segment) for segment in self.segments],
            "notices": list(self.notices),
        }


def write_text(segments: "Iterable[Segment]") -> Iterator[str]:
    """Yield one line of text per segment."""
    for segment in segments:
        yield f"{segment.text.strip()}\n"


def write_srt(segments: "Iterable[Segment]") -> Iterator[str]:
    """Yield SubRip cues, numbered from 1; hours are always shown, milliseconds after a comma."""
    for number, segment in enumerate(segments, start=1):
        start, end = (_clock(t, hours=True, point=",") for t in (segment.start, segment.end))
        yield f"{number}\n{start} --> {end}\n{_cue_text(segment)}\n\n"


def write_vtt(segments: "Iterable[Segment]") -> Iterator[str]:
    """Yield a WebVTT header, then cues; hours are shown from the first hour on."""
    yield "WEBVTT\n\n"
    for segment in segments:
        start, end = (_clock(t, hours=False, point=".") for t in (segment.start, segment.end))
        yield f"{start} --> {end}\n{_cue_text(segment)}\n\n"


def write_tsv(segments: "Iterable[Segment]") -> Iterator[str]:
    """Yield a header line, then start and end in whole milliseconds and the text, tab-separated."""
    yield "start\tend\ttext\n"
    for segment in segments:
        text = segment.text.strip().replace("\t", " ")
        yield f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t{text}\n"


STREAMED: "dict[str, Callable[[Iterable[Segment]], Iterator[str]]]" = {
    "text": write_text,
    "srt": write_srt,
    "vtt": write_vtt,
    "tsv": write_tsv,
}
"""Formats that can be streamed segment by segment, by the name that `--format` takes."""

EXTENSIONS = {"text": "txt", "srt": "srt", "vtt": "vtt", "tsv": "tsv", "json": "json"}
"""File name extension of every format."""


def render(name: str, transcript: Transcript) -> str:
    """Return a finished transcript in the format `name`, a key of EXTENSIONS.

    JSON is UTF-8 text on one line. A source's name that is not valid UTF-8 keeps its surrogate
    escapes: encode with errors="backslashreplace", which JSON readers undo.
    """
    if name == "json":
        return json.dumps(transcript.document(), ensure_ascii=False, allow_nan=False) + "\n"
    return "".join(STREAMED[name](transcript.segments))


def _segment_fields(segment: "Segment") -> dict[str, Any]:
    return {
        "id": segment.id,
        "seek": segment.seek,
        "start": json_number(segment.start),
        "end": json_number(segment.end),
        "text": segment.text,
        "tokens": [int(token) for token in segment.tokens],
        "temperature": json_number(segment.temperature),
        "avg_logprob": json_number(segment.avg_logprob),
        "compression_ratio": json_number(segment.compression_ratio),
        "no_speech_prob": json_number(segment.no_speech_prob),
        "fallback": list(segment.fallback),
    }


def json_number(value: float) -> float | None:
    """Return null for infinities and NaN, which JSON lacks."""
    return float(value) if math.isfinite(value) else None


def _cue_text(segment: "Segment") -> str:
    # Readers would take an arrow inside a cue's text for its timing line.
    return segment.text.strip().replace("-->", "->")


def _clock(seconds: float, *, hours: bool, point: str) -> str:
    """Return [HH:]MM:SS and milliseconds, rounded half to even; hours if requested or not zero."""
    minutes, milliseconds = divmod(round(seconds * 1000.0), 60_000)
    whole_hours, minutes = divmod(minutes, 60)
    whole_seconds, milliseconds = divmod(milliseconds, 1000)
    shown = f"{whole_hours:02d}:" if hours or whole_hours else ""
    return f"{shown}{minutes:02d}:{whole_seconds:02d}{point}{milliseconds:03d}"
