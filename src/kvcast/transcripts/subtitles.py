"""Subtitles, SubRip, WebVTT, ASS and LRC: the cues and their layout.

Without options a cue is a segment, as in OpenAI's `whisper.utils`. With options, words are laid out
by the rules of its `SubtitlesWriter`, or by sentence. Text is escaped.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from kvcast.transcripts.cues import CueWord, sentence_cues
from kvcast.transcripts.params import SENTENCE, SubtitleParams

if TYPE_CHECKING:
    from kvcast.transcripts.segments import Segment

AS_SEGMENTS = SubtitleParams()  # no options: a cue is a segment
_LONG_PAUSE = 3.0  # between the beginnings of two words, in seconds: they are in different cues
_SHORTEST = 0.02  # seconds of a cue; shorter ones are not shown, or refused

_ARROW = re.compile("--+>")
_TIME = re.compile(r"\d:\d\d[.,]\d")
_TAG = re.compile(r"\[\w+:")
_WORD_JOINER = "\u2060"

_GAP = 1.0  # seconds between two cues in which LRC shows nothing

_ASS_HEADER = """\
[Script Info]
ScriptType: v4.00+
WrapStyle: 0
ScaledBorderAndShadow: yes

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, \
Italic, Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, \
Alignment, MarginL, MarginR, MarginV, Encoding
Style: Default,Arial,16,&H00FFFFFF,&H000000FF,&H00000000,&H00000000,0,0,0,0,100,100,0,0,1,1,0,2,10,\
10,10,1

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""


@dataclass(frozen=True)
class _Cue:
    start: float
    end: float
    text: str
    channel: int | None = None


@dataclass(frozen=True)
class _Markup:
    spelled: Callable[[str], str]
    underlined: str = "<u>{}</u>"


def write_srt(segments: "Iterable[Segment]", params: SubtitleParams = AS_SEGMENTS) -> Iterator[str]:
    """Yield SubRip cues, numbered from 1; hours are always shown, milliseconds after a comma."""
    for number, cue in enumerate(_cues(segments, params, _Markup(str)), start=1):
        start, end = (_clock(t, hours=True, point=",") for t in (cue.start, cue.end))
        yield f"{number}\n{start} --> {end}\n{cue.text}\n\n"


def write_vtt(segments: "Iterable[Segment]", params: SubtitleParams = AS_SEGMENTS) -> Iterator[str]:
    """Yield a WebVTT header, then cues; hours are shown from the first hour on."""
    yield "WEBVTT\n\n"
    for cue in _cues(segments, params, _Markup(_escaped)):
        start, end = (_clock(t, hours=False, point=".") for t in (cue.start, cue.end))
        yield f"{start} --> {end}\n{cue.text}\n\n"


def write_ass(segments: "Iterable[Segment]", params: SubtitleParams = AS_SEGMENTS) -> Iterator[str]:
    """Yield the header of Advanced SubStation Alpha, then a line for each cue."""
    yield _ASS_HEADER
    markup = _Markup(_literal, "{{\\u1}}{}{{\\u0}}")
    for cue in _cues(segments, params, markup):
        times = []
        for seconds in (cue.start, cue.end):
            hours, rest = divmod(_hundredths(seconds), 360_000)
            times.append(f"{hours}:{_in_minutes(rest)}")
        text = cue.text.replace("\n", "\\N")
        yield f"Dialogue: 0,{','.join(times)},Default,,0,0,0,,{text}\n"


def write_lrc(segments: "Iterable[Segment]", params: SubtitleParams = AS_SEGMENTS) -> Iterator[str]:
    """Yield a line for each cue, behind its time; an empty one where none is shown for a while."""
    end = 0.0
    for cue in _cues(segments, params, _Markup(str, "{}")):
        if cue.start - end >= _GAP and end:
            yield f"[{_in_minutes(_hundredths(end))}]\n"
        text = cue.text.replace("\n", " ")
        literal = f"{_WORD_JOINER}{text}" if _TAG.match(text) else text
        yield f"[{_in_minutes(_hundredths(cue.start))}]{literal}\n"
        end = cue.end
    if end:
        yield f"[{_in_minutes(_hundredths(end))}]\n"


def _cues(segments: "Iterable[Segment]", params: SubtitleParams, markup: _Markup) -> Iterator[_Cue]:
    """Yield cues when complete; each lasts _SHORTEST at least, without overlaps in its channel."""
    ends: dict[int | None, int] = {}
    for cue in _as_timed(segments, params, markup):
        start = max(_milliseconds(cue.start), ends.get(cue.channel, 0))
        end = max(_milliseconds(cue.end), start + _milliseconds(_SHORTEST))
        ends[cue.channel] = end
        yield _Cue(start / 1000, end / 1000, _untimed(cue.text))


def _as_timed(
    segments: "Iterable[Segment]", params: SubtitleParams, markup: _Markup
) -> Iterator[_Cue]:
    timed = (segment for segment in segments if segment.has_times)
    for channel, spoken in groupby(timed, key=attrgetter("channel")):
        label = markup.spelled(channel_label(channel))
        for pieces in _grouped(spoken, params):
            words = [
                CueWord(piece.start, piece.end, markup.spelled(piece.text)) for piece in pieces
            ]
            cues = [_plain(words)]
            if params.highlight_words:
                cues = list(_highlighted(words, markup.underlined))
            for cue in cues:
                yield replace(cue, text=f"{label}{cue.text}", channel=channel)


def channel_label(channel: int | None) -> str:
    """Return the label before a text that names its channel; empty if channels are mixed."""
    return "" if channel is None else f"[{channel}] "


def _grouped(segments: "Iterable[Segment]", params: SubtitleParams) -> Iterator[list[CueWord]]:
    if params.cues == SENTENCE:
        words = chain.from_iterable(map(_words, segments))
        narrow = _narrow(words, params.max_line_width)
        yield from sentence_cues(narrow, params.max_line_width, params.max_line_count)
    elif params.are_chosen:
        yield from _laid_out(segments, params)
    else:
        yield from ([_whole(segment)] for segment in segments)


def _whole(segment: "Segment") -> CueWord:
    return CueWord(segment.start, segment.end, one_line(segment.text).strip())


def _plain(pieces: Sequence[CueWord]) -> _Cue:
    text = "".join(piece.text for piece in pieces)
    return _Cue(pieces[0].start, pieces[-1].end, text)


def _highlighted(pieces: Sequence[CueWord], underlined: str) -> Iterator[_Cue]:
    """Yield the text once for each word, which is underlined, and once for each pause."""
    plain = _plain(pieces)
    last = plain.start
    for index, piece in enumerate(pieces):
        if piece.start - last >= _SHORTEST:
            yield _Cue(last, piece.start, plain.text)
        word = piece.text.lstrip()
        margin = piece.text[: len(piece.text) - len(word)]
        before, after = (
            "".join(other.text for other in others)
            for others in (pieces[:index], pieces[index + 1 :])
        )
        yield _Cue(piece.start, piece.end, f"{before}{margin}{underlined.format(word)}{after}")
        last = piece.end


def _laid_out(segments: "Iterable[Segment]", params: SubtitleParams) -> Iterator[list[CueWord]]:
    """Yield each cue's words; without a number and width of lines, it ends with its segment."""
    layout = _CueLayout(params.max_line_width or math.inf, params.max_line_count or math.inf)
    for segment in segments:
        words = list(_narrow(_words(segment), params.max_line_width))
        most = params.max_words_per_line or max(1, len(words))
        for first in range(0, len(words), most):
            yield from chain.from_iterable(map(layout.add, words[first : first + most]))
            if params.max_line_count is None:
                yield from layout.ended()
    yield from layout.ended()


@dataclass
class _CueLayout:
    width: float
    lines: float
    _pieces: list[CueWord] = field(default_factory=list)
    _line: int = 1
    _column: int = 0

    def add(self, word: CueWord) -> Iterator[list[CueWord]]:
        """Add a word; yield the cue before it if it begins another."""
        text = word.text
        late = bool(self._pieces) and word.start - self._pieces[-1].start > _LONG_PAUSE
        paused = late and self.lines < math.inf
        if paused or not self._pieces or self._column + len(text) > self.width:
            text = text.strip()
            if paused or self._line >= self.lines:
                yield from self.ended()
            if self._pieces:
                self._line += 1
                text = f"\n{text}"
            self._column = 0
        self._column += len(text.strip("\n"))
        self._pieces.append(CueWord(word.start, word.end, text))

    def ended(self) -> Iterator[list[CueWord]]:
        if self._pieces:
            yield self._pieces
        self._pieces, self._line, self._column = [], 1, 0


def _words(segment: "Segment") -> list[CueWord]:
    """Return a segment's words; if it has none, the words of its text, which share its time."""
    if segment.words:
        timed = [CueWord(word.start, word.end, one_line(word.word)) for word in segment.words]
        return _lasting(timed, segment.end)
    words = [f" {word}" for word in one_line(segment.text).split()]
    return list(_spread(words, segment.start, segment.end))


def _lasting(words: Sequence[CueWord], end: float) -> list[CueWord]:
    """Extend words to _SHORTEST at least, as far as their segment's `end` allows."""
    lasting = []
    for word in reversed(words):
        start = min(word.start, end - _SHORTEST)
        lasting.append(CueWord(start, min(max(word.end, start + _SHORTEST), end), word.text))
        end = start
    return lasting[::-1]


def _narrow(words: Iterable[CueWord], width: int | None) -> Iterator[CueWord]:
    """Yield words with a visible text; one wider than a line in parts that share its time."""
    for word in words:
        text = word.text.strip()
        if width is not None and len(text) > width:
            parts = [text[first : first + width] for first in range(0, len(text), width)]
            yield from _spread(parts, word.start, word.end)
        elif text:
            yield word


def _spread(texts: Sequence[str], start: float, end: float) -> Iterator[CueWord]:
    total, done = sum(map(len, texts)), 0
    for text in texts:
        begin, done = start + (end - start) * done / total, done + len(text)
        yield CueWord(begin, start + (end - start) * done / total, text)


def one_line(text: str) -> str:
    """Replace line separators and control characters but tabs: readers may end lines there."""
    return "".join(
        " " if unicodedata.category(c) in {"Cc", "Zl", "Zp"} and c != "\t" else c for c in text
    )


def _untimed(text: str) -> str:
    """Return text without lines that a reader takes for a line of times.

    A line of times has an arrow; lenient readers take any two times for one, so an invisible
    character splits these.
    """
    return "\n".join(
        _TIME.sub(lambda match: match[0].replace(":", f":{_WORD_JOINER}"), line)
        if len(_TIME.findall(line)) > 1
        else line
        for line in _ARROW.sub("->", text).split("\n")
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _literal(text: str) -> str:
    """Spell text for Advanced SubStation Alpha, where braces and backslashes are markup.

    Braces become wide ones: not all players know a way to write them.
    """
    wide = text.translate({ord("{"): 0xFF5B, ord("}"): 0xFF5D})
    return wide.replace("\\", f"\\{_WORD_JOINER}")


def _hundredths(seconds: float) -> int:
    return _milliseconds(seconds) // 10


def _in_minutes(hundredths: int) -> str:
    """Return MM:SS.hh; minutes continue past an hour."""
    minutes, rest = divmod(hundredths, 6000)
    return f"{minutes:02d}:{rest // 100:02d}.{rest % 100:02d}"


def _clock(seconds: float, *, hours: bool, point: str) -> str:
    """Return [HH:]MM:SS and milliseconds, rounded half to even; hours if requested or not zero."""
    minutes, milliseconds = divmod(_milliseconds(seconds), 60_000)
    whole_hours, minutes = divmod(minutes, 60)
    whole_seconds, milliseconds = divmod(milliseconds, 1000)
    shown = f"{whole_hours:02d}:" if hours or whole_hours else ""
    return f"{shown}{minutes:02d}:{whole_seconds:02d}{point}{milliseconds:03d}"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000.0)
