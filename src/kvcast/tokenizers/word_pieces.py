"""Decodes word pieces to text, deciding where spaces go between them.

The rules follow bert4keras (bojone/bert4keras, tokenizers.py, Tokenizer.decode), which users of
SimBERT and T5-PEGASUS know, applied to two pieces at a time. Two of them are extended where the
outcome depended on later pieces: a contraction is joined whatever follows it ("it's."), and so is
every number between two points (1.2.3).
"""

import unicodedata
from collections.abc import Mapping

from typing_extensions import override

from kvcast.tokenizers.stream import TextStream

_CONTINUATION = "##"
_CONTRACTIONS = frozenset(["re", "m", "s", "t", "ve", "d", "ll"])
_CHINESE = (  # first and last character of each block
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
"""Characters of Chinese in BERT's sense (google-research/bert, tokenization.py)."""

_WIDE_MARKS = (  # first and last character of each run
    (0xFF01, 0xFF0D),
    (0xFF0F, 0xFF0F),
    (0xFF1A, 0xFF20),
    (0xFF3B, 0xFF40),
    (0xFF5B, 0xFF64),
    (0x3000, 0x3003),
    (0x3008, 0x3011),
    (0x3014, 0x301F),
    (0x3030, 0x3030),
    (0x303E, 0x303F),
    (0x2013, 0x2014),
    (0x2018, 0x2019),
    (0x201B, 0x201F),
    (0x2026, 0x2027),
    (0xFE4F, 0xFE4F),
    (0xFE51, 0xFE51),
    (0xFE54, 0xFE54),
    (0x00B7, 0x00B7),
)
_NO_SPACE_AFTER = frozenset("+-/={(<[") | {
    chr(code) for first, last in _WIDE_MARKS for code in range(first, last + 1)
}


def is_special(piece: str) -> bool:
    """Return whether a piece is a special token; all of them are in brackets."""
    return piece.startswith("[") and piece.endswith("]")


class WordPieceStream(TextStream):
    def __init__(self, pieces: Mapping[int, str]) -> None:
        """Start a text; `pieces`: id to the token as the vocabulary spells it."""
        self._pieces = pieces
        self._end = ""  # the last two characters so far
        self._after_mark = False

    @override
    def push(self, token: int) -> str:
        """Take one token; return its text, with a space before it where one belongs."""
        piece = self._pieces.get(token, "")
        glued = piece.startswith(_CONTINUATION)
        text = piece.removeprefix(_CONTINUATION)
        if not text or is_special(piece):
            return ""
        alone = not glued and len(text) == 1
        is_mark = alone and _is_mark(text)
        closed = glued or is_mark or (alone and _is_chinese(text))
        gap = " " if self._is_apart(text, closed) else ""
        self._end = (self._end + gap + text)[-2:]
        self._after_mark = is_mark
        return gap + text

    @override
    def finish(self) -> str:
        """Return nothing: no text is held back."""
        return ""

    def _is_apart(self, text: str, closed: bool) -> bool:
        """Return whether a space goes before a text; `closed`: only after a punctuation mark."""
        before = self._end[-1:]
        if not before or before in _NO_SPACE_AFTER:
            return False
        if before == "'" and text in _CONTRACTIONS:
            return False
        if before == "." and self._end[0].isdecimal() and text[0].isdecimal():
            return False
        return self._after_mark or not (closed or _is_chinese(before))


def _is_chinese(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _CHINESE)


def _is_mark(character: str) -> bool:
    """Return whether BERT treats a character as punctuation, which includes ASCII symbols."""
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")
