"""Formats transcripts as plain lines, subtitles, tab-separated values and JSON.

Lines, SubRip, WebVTT and values equal the output of OpenAI's `whisper.utils`, but for text that
would break their lines, and for cues too short to be seen. All of these can be streamed. JSON is
described by docs/json.md and docs/transcript.schema.json.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.options import check_path
from kvcast.transcripts.params import SubtitleParams
from kvcast.transcripts.segments import Segment, Transcript, Word
from kvcast.transcripts.subtitles import (
    AS_SEGMENTS,
    channel_label,
    one_line,
    write_ass,
    write_lrc,
    write_srt,
    write_vtt,
)

if TYPE_CHECKING:
    from kvcast.audio.timeline import Part
    from kvcast.decoding.speculative_decoding import DraftCounts

JSON_FORMAT = "kvcast.transcript"
JSON_VERSION = 4


@dataclass(frozen=True, kw_only=True)
class TranscriptDocument(Transcript):
    source: str
    model: str
    runtime: str
    task: str

    @override
    def to_dict(self) -> dict[str, Any]:
        """Return the content of the JSON format, as plain dictionaries, lists and scalars."""
        return {
            "format": JSON_FORMAT,
            "version": JSON_VERSION,
            "source": self.source,
            "model": self.model,
            "runtime": self.runtime,
            "task": self.task,
            **super().to_dict(),
        }


def transcript_fields(transcript: Transcript) -> dict[str, Any]:
    skipped = transcript.skipped
    return {
        "language": transcript.language,
        "duration": json_number(transcript.duration),
        "text": transcript.text,
        "segments": [_segment_fields(segment) for segment in transcript.segments],
        "skipped": None if skipped is None else [_part_fields(part) for part in skipped],
        "draft": draft_fields(transcript.draft),
        "notices": list(transcript.notices),
    }


def write_text(segments: Iterable[Segment]) -> Iterator[str]:
    for segment in segments:
        yield f"{channel_label(segment.channel)}{segment.text.strip()}\n"


def write_tsv(segments: Iterable[Segment]) -> Iterator[str]:
    """Yield a header line, then start and end in whole milliseconds and the text, tab-separated."""
    yield "start\tend\ttext\n"
    for segment in segments:
        if not segment.has_times:
            continue
        text = channel_label(segment.channel) + one_line(segment.text).strip().replace("\t", " ")
        yield f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t{text}\n"


STREAMED: dict[str, Callable[[Iterable[Segment], SubtitleParams], Iterator[str]]] = {
    "text": lambda segments, _: write_text(segments),
    "srt": write_srt,
    "vtt": write_vtt,
    "ass": write_ass,
    "lrc": write_lrc,
    "tsv": lambda segments, _: write_tsv(segments),
}  # formats that can be streamed segment by segment, by the name that `--format` takes

EXTENSIONS = {"text": "txt"} | {name: name for name in ("srt", "vtt", "ass", "lrc", "tsv", "json")}
"""File name extension of every format."""


SUBTITLES = frozenset({"srt", "vtt", "ass", "lrc"})  # shaped by `SubtitleParams`


def format_of(path: str | Path) -> str:
    """Return the key of EXTENSIONS that a file's name ends with; raises UsageError."""
    check_path("the transcript's file", path)
    ending = Path(path).suffix.lower().removeprefix(".")
    for name, extension in EXTENSIONS.items():
        if extension == ending:
            return name
    known = ", ".join(f".{extension}" for extension in EXTENSIONS.values())
    raise UsageError(f"{path} has none of these extensions, which choose the format: {known}")


def render(name: str, transcript: Transcript, subtitles: SubtitleParams = AS_SEGMENTS) -> str:
    """Return a finished transcript in the format `name`, a key of EXTENSIONS.

    A source's name that is not valid UTF-8 keeps its surrogate escapes: encode JSON with
    errors="backslashreplace", which its readers undo.
    """
    if name == "json":
        return json.dumps(transcript.to_dict(), ensure_ascii=False, allow_nan=False) + "\n"
    return "".join(STREAMED[name](transcript.segments, subtitles))


def _segment_fields(segment: Segment) -> dict[str, Any]:
    return {
        "id": segment.id,
        "seek": segment.seek,
        "start": json_number(segment.start),
        "end": json_number(segment.end),
        "text": segment.text,
        "tokens": [int(token) for token in segment.tokens],
        "language": segment.language,
        "temperature": json_number(segment.temperature),
        "avg_logprob": json_number(segment.avg_logprob),
        "compression_ratio": json_number(segment.compression_ratio),
        "no_speech_prob": json_number(segment.no_speech_prob),
        "fallback": list(segment.fallback),
        "channel": segment.channel,
        "score": None if segment.score is None else json_number(segment.score),
        "words": None if segment.words is None else [_word_fields(word) for word in segment.words],
    }


def _word_fields(word: Word) -> dict[str, Any]:
    return {
        "start": json_number(word.start),
        "end": json_number(word.end),
        "word": word.word,
        "probability": json_number(word.probability),
    }


def _part_fields(part: "Part") -> dict[str, Any]:
    start, end = part.seconds
    return {"start": start, "end": end}


def draft_fields(counts: "DraftCounts | None") -> dict[str, int] | None:
    """Return how many drafted tokens were checked and accepted; None for no drafts."""
    return None if counts is None else asdict(counts)


def json_number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
