"""Where in a recording the parts of a given text belong, by its words that were recognized.

Text and recording may each have stretches that the other lacks. A text is placed phrase by phrase:
a phrase that is expected nowhere, for want of time between its neighbours, is left out.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import ceil
from operator import attrgetter
from typing import Self

from kvcast.transcripts.segments import FRAMES_PER_SECOND, Segment
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast.whisper.word_matching import Pair, matched
from kvcast.whisper.word_timestamps import WINDOW_FRAMES, TokenWord, Window, split_words

_SHORTEST_PHRASE, _LONGEST_PHRASE = 4, 12  # words
_SENTENCE_ENDS = (".", "!", "?", "。", "！", "？", "…")  # noqa: RUF001 - CJK
_CLOSING = "\"'»”’) "  # noqa: RUF001
_FASTEST = 6  # words a second
_SKIPPED = 3  # recognized words, one after the other, that the text does not have
_MARGIN = 0.5  # seconds of a pause that belong to the words beside it
_SHORTEST = 10  # frames of a chunk


@dataclass(frozen=True)
class GivenWord:
    """A word of the text with the tokens that spell it, punctuation included.

    `spelled`: the first of these without punctuation, and the one after the last. `plain`: without
    case and punctuation. `phrase`: counts a text's phrases, which are sentences or parts of them
    within a line.
    """

    tokens: tuple[int, ...]
    spelled: tuple[int, int]
    plain: str
    line: int
    phrase: int


def given_words(
    lines: Iterable[str], tokenizer: WhisperTokenizer, language: str
) -> Iterator[GivenWord]:
    number = 0
    for line, text in enumerate(lines):
        words = split_words(tokenizer, tokenizer.encode(f" {text}"), language)
        for phrase in _phrases(list(_with_punctuation(words))):
            yield from (_given(word, line, number) for word in phrase)
            number += 1


def _phrases(words: Sequence[Sequence[TokenWord]]) -> Iterator[Sequence[Sequence[TokenWord]]]:
    """Yield a line's sentences, short ones together, and long ones in equal parts."""
    sentences = [list[Sequence[TokenWord]]()]
    for word in words:
        if len(sentences[-1]) >= _SHORTEST_PHRASE and _ends_sentence(sentences[-1][-1]):
            sentences.append([])
        sentences[-1].append(word)
    if len(sentences) > 1 and len(sentences[-1]) < _SHORTEST_PHRASE:
        last = sentences.pop()
        sentences[-1] += last
    for sentence in sentences:
        length = ceil(len(sentence) / ceil(len(sentence) / _LONGEST_PHRASE))
        yield from (sentence[at : at + length] for at in range(0, len(sentence), length))


def _with_punctuation(words: Sequence[TokenWord]) -> Iterator[list[TokenWord]]:
    """Yield each word with the punctuation after it; the first one with that before it, too."""
    together = list[TokenWord]()
    for word in words:
        if _plain(word.text) and any(_plain(each.text) for each in together):
            yield together
            together = []
        together.append(word)
    yield together


def _given(words: Sequence[TokenWord], line: int, phrase: int) -> GivenWord:
    plain = [_plain(word.text) for word in words]
    at = next((at for at, text in enumerate(plain) if text), 0)
    before = sum(len(word.tokens) for word in words[:at])
    return GivenWord(
        tokens=tuple(token for word in words for token in word.tokens),
        spelled=(before, before + len(words[at].tokens)),
        plain=plain[at],
        line=line,
        phrase=phrase,
    )


def _ends_sentence(words: Sequence[TokenWord]) -> bool:
    return any(word.text.rstrip(_CLOSING).endswith(_SENTENCE_ENDS) for word in words)


def _plain(word: str) -> str:
    return "".join(character for character in word.casefold() if character.isalnum())


@dataclass(frozen=True)
class RecognizedWord:
    plain: str
    start: float
    end: float
    window: Window


def recognized_words(segments: Sequence[Segment], content_frames: int) -> Iterator[RecognizedWord]:
    for seek, spoken in groupby(segments, attrgetter("seek")):
        window = Window(seek, min(WINDOW_FRAMES, content_frames - seek))
        for segment in spoken:
            for word in segment.words or ():
                yield RecognizedWord(_plain(word.word), word.start, word.end, window)


@dataclass(frozen=True)
class TextChunk:
    """Words of the text that are spoken one after the other, and the audio that has them."""

    words: tuple[GivenWord, ...]
    audio: Window


@dataclass(frozen=True)
class MatchedText:
    """A text's words, those recognized in the recording, and the pairs of both that are equal."""

    words: Sequence[GivenWord]
    recognized: Sequence[RecognizedWord]
    pairs: Sequence[Pair]

    @classmethod
    def of(cls, words: Sequence[GivenWord], recognized: Sequence[RecognizedWord]) -> Self:
        pairs = matched([word.plain for word in words], [word.plain for word in recognized])
        return cls(words, recognized, pairs)

    def without(self, phrases: Collection[int]) -> Self:
        kept = [i for i, word in enumerate(self.words) if word.phrase not in phrases]
        places = {i: place for place, i in enumerate(kept)}
        pairs = [(places[i], j) for i, j in self.pairs if i in places]
        return replace(self, words=[self.words[i] for i in kept], pairs=pairs)

    def without_room(self, duration: float) -> frozenset[int]:
        """Return the phrases without a match that take more time than there is in the recording.

        `duration`: of the recording, in seconds.
        """
        found = {self.words[i].phrase for i, _ in self.pairs}
        phrases = set[int]()
        for (i, j), (next_i, next_j) in self._gaps():
            between = [w.phrase for w in self.words[i + 1 : next_i] if w.phrase not in found]
            start = self.recognized[j].end if j >= 0 else 0.0
            end = self.recognized[next_j].start if next_j < len(self.recognized) else duration
            if len(between) > _FASTEST * (end - start):
                phrases.update(between)
        return frozenset(phrases)

    def chunks(self) -> Iterator[TextChunk]:
        """Yield chunks in order; each is within a window that was recognized."""
        anchors = self._anchors()
        first = 0
        for i, (anchor, following) in enumerate(pairwise([*anchors, len(self.recognized)]), 1):
            if i < len(anchors) and not self._parted(anchor, following):
                continue
            before = anchors[first - 1] if first else -1
            start = self._start(anchors[first], anchors[first] - before > _SKIPPED)
            end = self._end(anchor, following - anchor > _SKIPPED)
            yield TextChunk(tuple(self.words[first:i]), Window(start, max(_SHORTEST, end - start)))
            first = i

    def _gaps(self) -> Iterator[tuple[Pair, Pair]]:
        return pairwise([(-1, -1), *self.pairs, (len(self.words), len(self.recognized))])

    def _anchors(self) -> list[int]:
        """Return the recognized word at which each word of the text is expected.

        Words without a match are next to those with one in their phrase, or else in the phrase
        before them, as far as there are recognized words.
        """
        anchors = list[int]()
        for (i, j), (next_i, next_j) in self._gaps():
            last = min(next_j, len(self.recognized) - 1)
            for at in range(i + 1, next_i):
                if self._belongs_to_next(at, i, next_i):
                    anchor = max(next_j - (next_i - at), anchors[-1] if anchors else 0)
                else:
                    anchor = j + at - i
                anchors.append(min(anchor, last))
            if next_i < len(self.words):
                anchors.append(next_j)
        return anchors

    def _belongs_to_next(self, at: int, before: int, following: int) -> bool:
        if before < 0 or following == len(self.words):
            return following < len(self.words)
        phrase = self.words[at].phrase
        return self.words[before].phrase != phrase == self.words[following].phrase

    def _parted(self, anchor: int, following: int) -> bool:
        """Return whether two recognized words are in two chunks."""
        windows = [self.recognized[each].window for each in (anchor, following)]
        return windows[0] != windows[1] or following - anchor > _SKIPPED

    def _start(self, anchor: int, after_others: bool) -> int:
        """Return the first frame of a chunk, after words that are not in the text."""
        word, before = self.recognized[anchor], self.recognized[anchor - 1]
        if not after_others or not anchor or before.window != word.window:
            return word.window.seek
        return round(FRAMES_PER_SECOND * max(before.end, word.start - _MARGIN))

    def _end(self, anchor: int, before_others: bool) -> int:
        word, window = self.recognized[anchor], self.recognized[anchor].window
        following = self.recognized[anchor + 1] if anchor + 1 < len(self.recognized) else word
        if not before_others or following is word or following.window != window:
            return window.seek + window.frames
        return round(FRAMES_PER_SECOND * min(following.start, word.end + _MARGIN))
