"""Groups timed words into cues that hold sentences.

A sentence that does not fit is cut behind a comma or the like, or else into parts of equal length,
never so that a word is alone. Two short sentences may share a cue, if one of them is a word.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

_CLOSING = "\"'”’»)]"  # noqa: RUF001 - quotation marks
_SENTENCE_END = re.compile(rf"[.!?…。！？؟।]+[{re.escape(_CLOSING)}]*$")  # noqa: RUF001 - CJK
_CLAUSE_END = re.compile(rf"[,;:，、；：—–][{re.escape(_CLOSING)}]*$")  # noqa: RUF001 - CJK
_TITLES = frozenset({"mr.", "mrs.", "ms.", "dr.", "st.", "prof.", "vs.", "no."})

_WIDTH, _LINES = 42, 2
"""Characters in a line and lines in a cue, as Netflix and the BBC have them (Timed Text Style
Guide; Subtitle Guidelines)."""

_LONGEST = 7.0  # seconds that a cue lasts at most, if it can be cut
_PAUSE = 1.0  # seconds without a word that part two cues, whatever is said
_LEAST = 2  # words that a part of a sentence has at least


@dataclass(frozen=True)
class CueWord:
    """A word in a cue, with the space or the line break before it."""

    start: float
    end: float
    text: str


def sentence_cues(
    words: Iterable[CueWord], width: int | None = None, lines: int | None = None
) -> Iterator[list[CueWord]]:
    """Yield the words of each cue, broken into lines, as soon as its sentence is known.

    `words`: in order, none wider than a line.
    """
    room = _Room(width or _WIDTH, lines or _LINES)
    for sentence in _joined(_sentences(words), room):
        yield from map(room.broken, _parts(sentence, room))


@dataclass(frozen=True)
class _Room:
    width: int
    lines: int

    def holds(self, words: Sequence[CueWord]) -> bool:
        return len(self._filled(words)) <= self.lines

    def cues(self, words: Sequence[CueWord]) -> int:
        by_lines = math.ceil(len(self._filled(words)) / self.lines)
        return max(by_lines, math.ceil((words[-1].end - words[0].start) / _LONGEST))

    def broken(self, words: Sequence[CueWord]) -> list[CueWord]:
        """Break words into lines, two of them of about the same length."""
        lines = self._filled(words)
        if len(lines) == 2:
            lines = min(
                ([[*words[:at]], [*words[at:]]] for at in range(1, len(words))),
                key=self._unevenness,
            )
        broken = []
        for number, line in enumerate(lines):
            first = line[0].text.strip()
            broken.append(replace(line[0], text=f"\n{first}" if number else first))
            broken += line[1:]
        return broken

    def _filled(self, words: Sequence[CueWord]) -> list[list[CueWord]]:
        lines: list[list[CueWord]] = []
        for word in words:
            if not lines or _length([*lines[-1], word]) > self.width:
                lines.append([])
            lines[-1].append(word)
        return lines

    def _unevenness(self, lines: Sequence[Sequence[CueWord]]) -> float:
        lengths = [_length(line) for line in lines]
        return max(lengths) + (math.inf if max(lengths) > self.width else 0)


def _length(words: Sequence[CueWord]) -> int:
    return len("".join(word.text for word in words).strip())


def _sentences(words: Iterable[CueWord]) -> Iterator[list[CueWord]]:
    sentence: list[CueWord] = []
    for word in words:
        if sentence and (_ends(sentence[-1], word) or _is_apart(sentence, word)):
            yield sentence
            sentence = []
        sentence.append(word)
    if sentence:
        yield sentence


def _ends(word: CueWord, following: CueWord) -> bool:
    """Return whether a word ends a sentence; not titles, initials, or before a lower-case word."""
    text = word.text.strip()
    if _SENTENCE_END.search(text) is None or text.lower() in _TITLES:
        return False
    is_initial = re.fullmatch(r"[A-Z]\.", text) is not None
    return not is_initial and not following.text.lstrip()[:1].islower()


def _is_apart(words: Sequence[CueWord], following: CueWord) -> bool:
    return following.start - words[-1].end > _PAUSE


def _joined(sentences: Iterable[list[CueWord]], room: _Room) -> Iterator[list[CueWord]]:
    """Yield sentences; one of a single word shares a cue with its neighbour if there is room."""
    before: list[CueWord] = []
    for sentence in sentences:
        is_short = min(len(before), len(sentence)) < _LEAST
        if before and is_short and not _is_apart(before, sentence[0]):
            together = [*before, *sentence]
            if room.holds(together):
                before = together
                continue
        if before:
            yield before
        before = sentence
    if before:
        yield before


def _parts(words: list[CueWord], room: _Room) -> Iterator[list[CueWord]]:
    while (parts := room.cues(words)) > 1 and len(words) >= 2 * _LEAST:
        cut = _cut(words, parts, room)
        yield words[:cut]
        words = words[cut:]
    yield words


def _cut(words: Sequence[CueWord], parts: int, room: _Room) -> int:
    """Return how many words to cut off: near an equal share, and best behind a clause."""
    share = _length(words) / parts

    def cost(cut: int) -> float:
        first = words[:cut]
        behind_clause = _CLAUSE_END.search(first[-1].text) is not None
        far = abs(_length(first) - share) + (0 if behind_clause else share / 2)
        return far + (0 if room.holds(first) else math.inf)

    return min(range(_LEAST, len(words) - _LEAST + 1), key=cost)
