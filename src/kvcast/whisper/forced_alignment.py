"""Forced alignment: finds when each word of a given text is spoken in a recording.

The transcript decides which part of the text belongs to which window; each part is then forced into
its window, and attention gives the times of its words, as in a transcription with word timestamps.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from operator import attrgetter

from kvcast.audio.features import MelWindows
from kvcast.engine.callers import Policy
from kvcast.errors import UsageError
from kvcast.speech.params import TranscribeParams
from kvcast.transcripts.segments import Segment, Transcript, Word, compression_ratio
from kvcast.whisper.decoding import DecodingOptions
from kvcast.whisper.long_form import LongForm
from kvcast.whisper.requests import Features
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast.whisper.windows import WindowRequests
from kvcast.whisper.word_timestamps import (
    ENCODER_FRAMES_PER_SECOND,
    WINDOW_FRAMES,
    Punctuation,
    Span,
    TokenWord,
    Window,
    split_words,
    with_words,
)

_AHEAD = 40  # words of the text that are compared beyond twice the number of recognized words
_DOUBTFUL = 0.5  # share of the text that must be recognized verbatim


@dataclass(frozen=True, kw_only=True)
class Alignment(Transcript):
    """A text with its times; each of its lines is a segment with words."""


@dataclass(frozen=True)
class _GivenWord:
    word: TokenWord
    line: int


@dataclass(frozen=True)
class _RecognizedWindow:
    window: Window
    words: tuple[str, ...]


def aligned(
    requests: WindowRequests,
    recording: MelWindows,
    text: str,
    *,
    language: str,
    attempts: Sequence[DecodingOptions],
    params: TranscribeParams,
) -> Policy[Alignment]:
    """Find when a text's words are spoken; `attempts`: for the first decoding and each rejection.

    Raises UsageError for an empty text, and a recording without recognized speech.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    given = list(_given(lines, requests.tokenizer, language))
    if not given:
        raise UsageError("there is no text to align")
    clip = [(0, recording.content_frames)]
    form = LongForm(recording, clip, requests=requests, attempts=attempts, params=params)
    yield from form.decode()
    recognized = list(_recognized_windows(form.segments, recording.content_frames))
    if not recognized:
        raise UsageError("no speech was recognised in the recording")
    placed: list[tuple[int, Word]] = []
    parts, known = _parts(given, recognized)
    for part, window in zip(parts, recognized, strict=True):
        if part:
            placed += yield from _placed(part, window.window, recording, requests, language, params)
    return Alignment(
        segments=tuple(_lines(lines, placed, recognized, language)),
        language=language,
        duration=recording.duration,
        notices=(
            *recording.notices,
            *_notices(known, given),
        ),
    )


def _given(
    lines: Sequence[str], tokenizer: WhisperTokenizer, language: str
) -> Iterator[_GivenWord]:
    for number, line in enumerate(lines):
        for word in split_words(tokenizer, tokenizer.encode(f" {line}"), language):
            yield _GivenWord(word, number)


def _recognized_windows(
    segments: Sequence[Segment], content_frames: int
) -> Iterator[_RecognizedWindow]:
    for seek, spoken in groupby(segments, attrgetter("seek")):
        words = tuple(word.word for segment in spoken for word in segment.words or ())
        yield _RecognizedWindow(Window(seek, min(WINDOW_FRAMES, content_frames - seek)), words)


def _parts(
    given: Sequence[_GivenWord], recognized: Sequence[_RecognizedWindow]
) -> tuple[list[Sequence[_GivenWord]], int]:
    """Cut the text into each window's part; also return how many words are recognized as given."""
    parts: list[Sequence[_GivenWord]] = []
    done = known = 0
    for number, window in enumerate(recognized):
        following = recognized[number + 1].words if number + 1 < len(recognized) else ()
        ahead = given[done : done + 2 * len(window.words + following) + _AHEAD]
        count, equal = _share([_plain(each.word.text) for each in ahead], window.words, following)
        known += equal
        end = done + count if following else len(given)
        parts.append(given[done:end])
        done = end
    return parts, known


def _share(ahead: Sequence[str], words: Sequence[str], following: Sequence[str]) -> tuple[int, int]:
    """Return how many of the next words belong to a window, and how many are recognized in it.

    Words between its last recognized one and the next window's first are divided in proportion to
    the differing words that were recognized there.
    """
    here = [_plain(word) for word in words]
    recognized = [*here, *map(_plain, following)]
    blocks = SequenceMatcher(None, ahead, recognized, autojunk=False).get_matching_blocks()
    pairs = [(b.a + i, b.b + i) for b in blocks for i in range(b.size) if ahead[b.a + i]]
    in_window = [pair for pair in pairs if pair[1] < len(here)]
    after = [pair for pair in pairs if pair[1] >= len(here)]
    last, last_recognized = in_window[-1] if in_window else (-1, -1)
    first = after[0][0] if after else len(ahead)
    count = last + 1 + min(len(here) - 1 - last_recognized, first - last - 1)
    while count < first and not ahead[count]:  # punctuation belongs to the word before it
        count += 1
    return count, len(in_window)


def _plain(word: str) -> str:
    return "".join(character for character in word.casefold() if character.isalnum())


def _placed(
    part: Sequence[_GivenWord],
    window: Window,
    recording: MelWindows,
    requests: WindowRequests,
    language: str,
    params: TranscribeParams,
) -> Policy[list[tuple[int, Word]]]:
    lines_of_part = sorted({each.line for each in part})
    spans = [
        Span(window.start, window.end, tuple(_tokens(each for each in part if each.line == number)))
        for number in lines_of_part
    ]
    times = yield from requests.align(
        Features(recording.window(window.seek, window.seek + window.frames)),
        [token for span in spans for token in span.tokens],
        language=language,
        task=params.task,
        frames=round(window.duration * ENCODER_FRAMES_PER_SECOND),
    )
    fitted = with_words(
        spans,
        times,
        window,
        tokenizer=requests.tokenizer,
        language=language,
        punctuation=Punctuation(params.prepend_punctuations, params.append_punctuations),
        last_speech=window.start,
    )
    return [
        (number, word)
        for number, span in zip(lines_of_part, fitted, strict=True)
        for word in span.words or ()
    ]


def _tokens(words: Iterable[_GivenWord]) -> Iterator[int]:
    for each in words:
        yield from each.word.tokens


def _lines(
    lines: Sequence[str],
    placed: Sequence[tuple[int, Word]],
    recognized: Sequence[_RecognizedWindow],
    language: str,
) -> Iterator[Segment]:
    latest = 0.0
    for number, text in enumerate(lines):
        words = tuple(word for line, word in placed if line == number)
        start, end = (words[0].start, words[-1].end) if words else (latest, latest)
        latest = end
        yield Segment(
            id=number,
            seek=max((w.window.seek for w in recognized if w.window.start <= start), default=0),
            start=start,
            end=end,
            text=f" {text}",
            tokens=(),
            language=language,
            temperature=0.0,
            avg_logprob=_mean_log([word.probability for word in words]),
            compression_ratio=compression_ratio(text),
            no_speech_prob=0.0,
            fallback=(),
            words=words,
        )


def _mean_log(probabilities: Sequence[float]) -> float:
    logs = [math.log(max(probability, 1e-9)) for probability in probabilities]
    return sum(logs) / len(logs) if logs else 0.0


def _notices(known: int, given: Sequence[_GivenWord]) -> Iterator[str]:
    words = sum(bool(_plain(each.word.text)) for each in given)
    if known < _DOUBTFUL * words:
        yield (
            f"of {words} words, {known} were recognised as given: does the text belong to the "
            "recording?"
        )
