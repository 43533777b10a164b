"""Segments and words of a window's tokens, with their times, as in openai/whisper.

Segments are cut and windows advance by the rules of `transcribe` in its transcribe.py. Dynamic time
warping (DTW) is in `kvcast.runtimes.alignment` and in the native library.
"""

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np

from kvcast.runtimes.base import Float32, Int64
from kvcast.speech.languages import WITHOUT_SPACES
from kvcast.transcripts.segments import FRAMES_PER_SECOND, Word
from kvcast.whisper.tokenizer import SECONDS_PER_TIMESTAMP, WhisperTokenizer, timestamps_from

FRAMES_PER_TIMESTAMP = 2
WINDOW_FRAMES = 30 * FRAMES_PER_SECOND


@dataclass(frozen=True)
class Window:
    """Frames `seek` to `seek + frames` of a recording; all other times are in seconds."""

    seek: int
    frames: int

    @property
    def start(self) -> float:
        return self.seek / FRAMES_PER_SECOND

    @property
    def duration(self) -> float:
        return self.frames / FRAMES_PER_SECOND

    @property
    def end(self) -> float:
        return (self.seek + self.frames) / FRAMES_PER_SECOND


@dataclass(frozen=True)
class Span:
    """A segment's tokens, its times in seconds from the recording's start, and its words."""

    start: float
    end: float
    tokens: tuple[int, ...]
    words: tuple[Word, ...] | None = None


def split(tokens: Sequence[int], window: Window, timestamp_begin: int) -> tuple[list[Span], int]:
    """Cut a window's tokens into segments; also return the frames to advance.

    Two timestamps in a row are a cut: one segment ends, the next starts. Text after the last cut is
    unfinished, and the next window begins there; but a lone timestamp at the very end means that no
    speech follows, and the whole window is done, as it is without any cut.

    Example: tokens `<|0.00|> a <|1.00|> <|1.00|> b` give one segment, 0 s to 1 s, and an advance
    of 100 frames; with `<|2.00|>` at the end they give two, and the whole window is done.
    """
    tokens = tuple(tokens)
    timestamps = timestamps_from(timestamp_begin)
    is_timestamp = [token in timestamps for token in tokens]
    cuts = [i for i, pair in enumerate(pairwise(is_timestamp), start=1) if all(pair)]
    whole = ends_alone(tokens, timestamp_begin)
    if not cuts:
        return [_uncut(tokens, window, timestamps)], window.frames
    ends = [*cuts, len(tokens)] if whole else cuts
    spans = [
        Span(
            window.start + (tokens[start] - timestamp_begin) * SECONDS_PER_TIMESTAMP,
            window.start + (tokens[end - 1] - timestamp_begin) * SECONDS_PER_TIMESTAMP,
            tokens[start:end],
        )
        for start, end in pairwise([0, *ends])
    ]
    spoken = (tokens[ends[-1] - 1] - timestamp_begin) * FRAMES_PER_TIMESTAMP
    # A cut at 0.00, possible only without timestamp rules, must still advance.
    return spans, window.frames if whole else spoken or window.frames


def ends_alone(tokens: Sequence[int], timestamp_begin: int) -> bool:
    """Return whether a lone timestamp ends a window's tokens."""
    timestamps = timestamps_from(timestamp_begin)
    return [token in timestamps for token in tokens[-2:]] == [False, True]


def _uncut(tokens: tuple[int, ...], window: Window, timestamps: range) -> Span:
    times = [token - timestamps.start for token in tokens if token in timestamps]
    last = times[-1] if times else 0
    duration = last * SECONDS_PER_TIMESTAMP if last else window.duration
    return Span(window.start, window.start + duration, tokens)


def end_of_speech(spans: Sequence[Span]) -> float | None:
    """Return when the last word ends; without any word, the last span."""
    ends = [word.end for span in spans for word in span.words or ()]
    return ends[-1] if ends else spans[-1].end if spans else None


def within(spans: Sequence[Span], end: float) -> list[Span]:
    """Return spans, in order, that do not pass `end`, where the window's audio ends.

    Models emit times up to 30 s in any window. Spans past the end share the last of the audio.
    """
    room = [end - SECONDS_PER_TIMESTAMP * after for after in reversed(range(len(spans)))]
    return [_before(span, latest) for span, latest in zip(spans, room, strict=True)]


def _before(span: Span, end: float) -> Span:
    if span.end <= end:
        return span
    start = max(0.0, min(span.start, end - SECONDS_PER_TIMESTAMP))
    end = max(start, end)
    words = span.words and tuple(
        replace(word, start=min(word.start, end), end=min(word.end, end)) for word in span.words
    )
    return Span(start, end, span.tokens, words)


_INVALID = "\ufffd"


@dataclass(frozen=True)
class TokenWord:
    """A word with the tokens that spell it; the text starts with its space, if there is one."""

    text: str
    tokens: tuple[int, ...]


def split_words(
    tokenizer: WhisperTokenizer, tokens: Sequence[int], language: str
) -> list[TokenWord]:
    """Split text tokens, without timestamps, into words, whose joined tokens are the tokens.

    A word begins at a space, and punctuation at its start or alone is a word.
    """
    characters = list(_characters(tokenizer, tokens))
    return characters if language in WITHOUT_SPACES else list(_spaced(characters))


def _characters(tokenizer: WhisperTokenizer, tokens: Sequence[int]) -> Iterator[TokenWord]:
    text = tokenizer.decode(tokens)
    done, run, spelled = 0, list[int](), b""
    for token in tokens:
        run.append(token)
        spelled += tokenizer.token_bytes(token)
        decoded = spelled.decode("utf-8", errors="replace")
        invalid = decoded.find(_INVALID)
        # Bytes that are invalid in the whole text, too, wait for nothing.
        if invalid < 0 or text[done + invalid : done + invalid + 1] == _INVALID:
            yield TokenWord(decoded, tuple(run))
            done, run, spelled = done + len(decoded), [], b""
    if run:
        yield TokenWord(decoded, tuple(run))


def _spaced(parts: Sequence[TokenWord]) -> Iterator[TokenWord]:
    """Yield words, each from a space or a punctuation mark up to the next."""
    texts, tokens = list[str](), list[int]()
    for part in parts:
        begins = part.text.startswith(" ") or part.text.strip() in string.punctuation
        if begins and tokens:
            yield TokenWord("".join(texts), tuple(tokens))
            texts, tokens = [], []
        texts.append(part.text)
        tokens += part.tokens
    if tokens:
        yield TokenWord("".join(texts), tuple(tokens))


ENCODER_FRAMES_PER_SECOND = 50  # frames of the encoder


@dataclass(frozen=True, eq=False)
class TokenTimes:
    """The frames of a window's n text tokens, and their probabilities.

    `begins_n`: frame at which each token begins, and at which the last ends, [n + 1].
    `probabilities_n`: of each token among all text tokens, given the tokens before it, [n].
    `attended_n`: frame to which each token attends most, [n]; not ascending.
    """

    begins_n: Int64
    probabilities_n: Float32
    attended_n: Int64

    def record(self) -> dict[str, Any]:
        """Return the times as lists, of which `of` makes the same."""
        return {name: values_n.tolist() for name, values_n in vars(self).items()}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        return cls(
            begins_n=np.array(record["begins_n"], np.int64),
            probabilities_n=np.array(record["probabilities_n"], np.float32),
            attended_n=np.array(record["attended_n"], np.int64),
        )

    def padded(self, count: int) -> Self:
        """Return the times of `count` tokens; the last ones may lack times."""
        rest = count - len(self.probabilities_n)
        return replace(
            self,
            begins_n=np.pad(self.begins_n, (0, rest), mode="edge"),
            probabilities_n=np.pad(self.probabilities_n, (0, rest)),
            attended_n=np.pad(self.attended_n, (0, rest), mode="edge"),
        )


_SENTENCE_ENDS = ".。!！?？"  # noqa: RUF001
_LONGEST_MEDIAN = 0.7
_FAR = 0.5  # a word that passes its segment's end by more seconds is corrected
_DECIMALS = 2  # of times in seconds; the encoder's frames are 0.02 s


@dataclass(frozen=True)
class Punctuation:
    """Marks that belong to the word after them, and marks that belong to the word before."""

    prepended: str
    appended: str


@dataclass
class _Timed:
    """A word under correction; times are seconds, `count` is how many tokens it has."""

    text: str
    count: int
    start: float
    end: float
    probability: float

    @property
    def duration(self) -> float:
        return self.end - self.start

    def word(self) -> Word:
        start, end = round(self.start, _DECIMALS), round(self.end, _DECIMALS)
        return Word(start=start, end=end, word=self.text, probability=self.probability)


@dataclass(frozen=True)
class _TypicalDuration:
    """The usual duration of a window's words, in seconds; at pauses they take `most` at most."""

    median: float

    @property
    def most(self) -> float:
        return 2 * self.median

    @classmethod
    def of(cls, timed: Sequence[_Timed]) -> Self:
        durations = [word.duration for word in timed if word.duration]
        return cls(min(_LONGEST_MEDIAN, float(np.median(durations)) if durations else 0.0))


def text_tokens(spans: Sequence[Span], tokenizer: WhisperTokenizer) -> list[int]:
    return [token for span in spans for token in span.tokens if tokenizer.is_text(token)]


def with_words(
    spans: Sequence[Span],
    times: TokenTimes,
    window: Window,
    *,
    tokenizer: WhisperTokenizer,
    language: str,
    punctuation: Punctuation,
    last_speech: float,
) -> list[Span]:
    """Return a window's spans with their words, in order and within their span, not overlapping.

    `punctuation`: marks that belong to a neighbouring word. `last_speech`: end of the last word
    before this window, in seconds.
    """
    words = split_words(tokenizer, text_tokens(spans, tokenizer), language)
    timed = list(_timed(words, times))
    usual = _TypicalDuration.of(timed)
    _shorten_at_sentence_ends(timed, usual)
    rest = _merged(timed, punctuation)
    fitted = []
    for span in spans:
        count = sum(tokenizer.is_text(token) for token in span.tokens)
        taken, rest = _taken(rest, count)
        for word in taken:
            word.start = round(window.start + word.start, _DECIMALS)
            word.end = round(window.start + word.end, _DECIMALS)
        fitted.append(
            _fitted(span, taken, usual, last_speech) if taken else replace(span, words=())
        )
        last_speech = fitted[-1].end if taken else last_speech
    return _in_order(fitted)


def _timed(words: Sequence[TokenWord], times: TokenTimes) -> Iterator[_Timed]:
    counts_w = np.array([len(word.tokens) for word in words], np.int64)
    ends_w = np.cumsum(counts_w)
    totals_w = np.add.reduceat(times.probabilities_n, ends_w - counts_w)
    means = (totals_w / counts_w.astype(np.float32)).tolist()
    starts = (times.begins_n[ends_w - counts_w] / ENCODER_FRAMES_PER_SECOND).tolist()
    ends = (times.begins_n[ends_w] / ENCODER_FRAMES_PER_SECOND).tolist()
    for word, start, end, probability in zip(words, starts, ends, means, strict=True):
        yield _Timed(word.text, len(word.tokens), start, end, probability)


def _shorten_at_sentence_ends(timed: Sequence[_Timed], usual: _TypicalDuration) -> None:
    """Cut the pause off a mark that ends a sentence, or off the word after it."""
    for before, word in pairwise(timed):
        if word.duration > usual.most:
            if word.text in _SENTENCE_ENDS:
                word.end = word.start + usual.most
            elif before.text in _SENTENCE_ENDS:
                word.start = word.end - usual.most


def _merged(timed: Sequence[_Timed], punctuation: Punctuation) -> list[_Timed]:
    backwards: list[_Timed] = []
    for word in reversed(timed):
        opens = word.text.startswith(" ") and word.text.strip() in punctuation.prepended
        if opens and backwards:
            backwards[-1].text = word.text + backwards[-1].text
            backwards[-1].count += word.count
        else:
            backwards.append(word)
    merged: list[_Timed] = []
    for word in reversed(backwards):
        closes = word.text in punctuation.appended
        if closes and merged and not merged[-1].text.endswith(" "):
            merged[-1].text += word.text
            merged[-1].count += word.count
        else:
            merged.append(word)
    return merged


def _taken(timed: Sequence[_Timed], count: int) -> tuple[list[_Timed], list[_Timed]]:
    """Split off the words that have the first `count` tokens."""
    taken = 0
    while count > 0 and taken < len(timed):
        count -= timed[taken].count
        taken += 1
    return list(timed[:taken]), list(timed[taken:])


def _fitted(
    span: Span, words: Sequence[_Timed], usual: _TypicalDuration, last_speech: float
) -> Span:
    """Return a span with its words; either may correct the ends of the other."""
    first, last = words[0], words[-1]
    if first.end - last_speech > 2 * usual.most:
        _shorten_after_pause(words, usual)
    start, end = first.start, last.end
    if span.start < first.end and span.start - _FAR > first.start:
        start = span.start
        first.start = max(0.0, min(first.end - usual.median, start))
    if span.end > last.start and span.end + _FAR < last.end:
        end = span.end
        last.end = max(last.start + usual.median, end)
    return Span(start, end, span.tokens, tuple(word.word() for word in words))


def _shorten_after_pause(words: Sequence[_Timed], usual: _TypicalDuration) -> None:
    """Cut the pause off the first word, and off the second if it took part of the pause, too."""
    first, second = words[0], words[1] if len(words) > 1 else None
    both_long = second is not None and second.end - first.start > 2 * usual.most
    if first.duration > usual.most or both_long:
        if second is not None and second.duration > usual.most:
            first.end = second.start = max(second.end / 2, second.end - usual.most)
        first.start = max(0.0, first.end - usual.most)


def _in_order(spans: Sequence[Span]) -> list[Span]:
    """Clamp words to begin after the previous word ends, and widen spans to contain their words.

    The corrections at both ends of a span ignore its neighbours.
    """
    ordered = []
    latest = 0.0
    for span in spans:
        words = []
        for word in span.words or ():
            start = max(word.start, latest)
            latest = max(start, word.end)
            words.append(replace(word, start=start, end=latest))
        if words:
            start, end = min(round(span.start, _DECIMALS), words[0].start), words[-1].end
            end = max(round(span.end, _DECIMALS), end)
            span = Span(start, end, span.tokens, tuple(words))
        ordered.append(span)
    return ordered
