"""Segments of a recording's text with their times, and replacement rules for names and terms."""

import math
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.keywords import keywords_of
from kvcast.saving import save
from kvcast.transcripts.params import SubtitleParams

if TYPE_CHECKING:
    from kvcast.audio.timeline import Part, Timeline
    from kvcast.decoding.speculative_decoding import DraftCounts
    from kvcast.speech.segment_stream import SegmentStream


FRAMES_PER_SECOND = 100


@dataclass(frozen=True, kw_only=True)
class Word:
    """A spoken word, with adjacent punctuation.

    Attributes:
        start, end: seconds.
        word: as decoded; usually starts with a space.
        probability: mean of its tokens' probabilities.

    """

    start: float
    end: float
    word: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of speech with its text.

    Attributes:
        id: counts from 0.
        seek: frame (of 10 ms) at which its window began.
        start, end: seconds.
        text: as decoded; usually starts with a space.
        tokens: ids, timestamps included.
        language: code of the window's language.
        temperature: at which the window was decoded.
        avg_logprob: mean log-probability of the window's tokens.
        compression_ratio: of the window's text; high if it repeats itself.
        no_speech_prob: probability that the window holds no speech.
        fallback: why each lower temperature was rejected, in the order tried.
        words: in order, with word timestamps.
        channel: of the recording, from 1 on, if channels are transcribed one by one.
        score: of an aligned line, 0 to 1: the mean probability of its words. Those that are not
            found count 0; a line without any has no words, and NaN for its times.

    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    language: str
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    fallback: tuple[str, ...]
    words: tuple[Word, ...] | None = None
    channel: int | None = None
    score: float | None = None

    @property
    def has_times(self) -> bool:
        return math.isfinite(self.start)


class Formats(ABC):
    """A transcript as text, subtitles, dictionaries and files."""

    @property
    @abstractmethod
    def transcript(self) -> "Transcript":
        """The transcript, after decoding what is left of it."""

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.transcript.segments).strip()

    @keywords_of(SubtitleParams)
    def to_srt(self, params: SubtitleParams) -> str:
        """Return SubRip subtitles."""
        return self._render("srt", params)

    @keywords_of(SubtitleParams)
    def to_vtt(self, params: SubtitleParams) -> str:
        """Return WebVTT subtitles."""
        return self._render("vtt", params)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries, lists and scalars, with the fields of docs/json.md."""
        from kvcast.transcripts.writers import transcript_fields

        return transcript_fields(self.transcript)

    @keywords_of(SubtitleParams)
    def save(self, path: str | Path, params: SubtitleParams) -> None:
        """Write a .txt, .srt, .vtt, .ass, .lrc, .tsv or .json file, by the name's extension.

        Raises UsageError for another extension, InputOutputError if it cannot be written.
        """
        from kvcast.transcripts.writers import format_of

        name = format_of(path)
        save(Path(path), self._render(name, params))

    def _render(self, name: str, params: SubtitleParams) -> str:
        from kvcast.transcripts.writers import render

        return render(name, self.transcript, params)


@dataclass(frozen=True, kw_only=True)
class Transcript(Formats):
    """The complete transcription of a recording."""

    segments: tuple[Segment, ...]
    language: str
    duration: float  # seconds of the whole recording
    notices: tuple[str, ...]
    skipped: "tuple[Part, ...] | None" = None  # parts without speech; None without `vad`
    draft: "DraftCounts | None" = None

    @property
    @override
    def transcript(self) -> "Transcript":
        return self

    @classmethod
    def of(cls, transcription: "SegmentStream", segments: Sequence[Segment]) -> "Transcript":
        """Return the transcript of a transcription whose segments, all of them, were taken."""
        return cls(
            segments=tuple(segments),
            language=transcription.language,
            duration=transcription.duration,
            notices=tuple(transcription.notices),
            skipped=transcription.skipped,
            draft=transcription.draft,
        )


def compression_ratio(text: str) -> float:
    encoded = text.encode()
    return len(encoded) / len(zlib.compress(encoded))


def placed(segment: Segment, timeline: "Timeline") -> Segment:
    """Return a segment of a recording's parts with the times that it has in the recording.

    With words it begins and ends with them. Times are rounded to milliseconds.
    """
    if not timeline.leaves_out:
        return segment
    begun, _ = timeline.original(*[segment.seek / FRAMES_PER_SECOND] * 2)
    words = segment.words and tuple(_placed_word(word, timeline) for word in segment.words)
    if words:
        start, end = words[0].start, words[-1].end
    else:
        start, end = map(_to_milliseconds, timeline.original(segment.start, segment.end))
    return replace(
        segment, seek=round(begun * FRAMES_PER_SECOND), start=start, end=end, words=words
    )


def _placed_word(word: Word, timeline: "Timeline") -> Word:
    start, end = map(_to_milliseconds, timeline.of_word(word.start, word.end))
    return replace(word, start=start, end=end)


def _to_milliseconds(seconds: float) -> float:
    return round(seconds, 3)


_ARROW = "=>"


@dataclass(frozen=True)
class Replacements:
    """Rules by which texts are changed, the longest first where several apply."""

    rules: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, given: str | Sequence[str]) -> "Replacements":
        """Read rules, one a line, besides empty lines and comments (#); raises UsageError."""
        rules = []
        lines = given.splitlines() if isinstance(given, str) else given
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            source, arrow, target = (part.strip() for part in line.partition(_ARROW))
            if not arrow or not source.split():
                raise UsageError(f"replacement {number} must be FROM {_ARROW} TO, not {line!r}")
            rules.append((" ".join(source.split()), target))
        return cls(tuple(rules))

    def apply(self, segment: "Segment") -> "Segment":
        """Return a segment with its text and words changed; its tokens stay the model's.

        Words that are replaced together become one, from the first one's start to the last one's
        end.
        """
        if not self.rules:
            return segment
        text = self._pattern.sub(self._target, segment.text)
        words = None if segment.words is None else tuple(self._replaced(segment.words))
        return replace(segment, text=text, words=words)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        sources = sorted((source for source, _ in self.rules), key=len, reverse=True)
        choices = "|".join(r"\s+".join(map(re.escape, words.split())) for words in sources)
        return re.compile(rf"(?<!\w)(?:{choices})(?!\w)", re.IGNORECASE)

    @cached_property
    def _by_source(self) -> dict[str, str]:
        return {source.casefold(): target for source, target in reversed(self.rules)}

    def _target(self, match: re.Match[str]) -> str:
        return self._by_source[" ".join(match[0].split()).casefold()]

    def _replaced(self, words: "Sequence[Word]") -> "list[Word]":
        """Return the words of a text in which matches of several words are one word each."""
        text = "".join(word.word for word in words)
        joined = {
            at
            for match in self._pattern.finditer(text)
            for at in range(match.start() + 1, match.end())
        }
        groups: list[list[Word]] = []
        at = 0
        for word in words:
            if groups and at in joined:
                groups[-1].append(word)
            else:
                groups.append([word])
            at += len(word.word)
        changed = map(self._changed, groups)
        return [word for word in changed if word.word.strip()]

    def _changed(self, group: "Sequence[Word]") -> "Word":
        return replace(
            group[0],
            end=group[-1].end,
            word=self._pattern.sub(self._target, "".join(word.word for word in group)),
            probability=sum(word.probability for word in group) / len(group),
        )
