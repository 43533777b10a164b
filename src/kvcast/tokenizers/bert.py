"""BERT's tokenizers, on top of the tokenizers library: sources between [CLS] and [SEP].

T5-PEGASUS and RoFormer look for Chinese words first: a word that jieba finds and the vocabulary
contains is one token, and the rest is split as in BERT. jieba's rules and dictionary come from
rjieba, an optional extra, which splits as jieba does, is maintained, and reads no cache from a
folder that other users may write to. Special tokens are never recognised in a text.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.spec.text_files import whole_characters
from kvcast.tokenizers.base import PlainTokenizer
from kvcast.tokenizers.decoder import TextStream
from kvcast.tokenizers.vocabulary import ids_of
from tokenizers import Tokenizer

_BEGIN, _END, _UNKNOWN = "[CLS]", "[SEP]", "[UNK]"


class BertTokenizer(PlainTokenizer):
    decoder = None

    def __init__(
        self, vocabulary: Mapping[str, int], end_tokens: Sequence[int], *, lowercase: bool
    ) -> None:
        """`lowercase` also strips accents; KvcastError for a missing special or end token."""
        for token in (_BEGIN, _END, _UNKNOWN):
            if token not in vocabulary:
                raise KvcastError(f"the vocabulary has no {token}: fetch it again")
        self._pieces = {number: token for token, number in vocabulary.items()}
        if unknown := [token for token in end_tokens if token not in self._pieces]:
            raise KvcastError(
                f"end token {unknown[0]} is not in the vocabulary: the files belong to two models"
            )
        self.end_tokens = tuple(end_tokens)
        self._begin, self._end = vocabulary[_BEGIN], vocabulary[_END]
        self._tokenizer = Tokenizer(WordPiece(dict(vocabulary), unk_token=_UNKNOWN))
        self._tokenizer.normalizer = BertNormalizer(lowercase=lowercase)
        self._tokenizer.pre_tokenizer = BertPreTokenizer()

    @property
    @override
    def vocab_size(self) -> int:
        return len(self._pieces)

    @override
    def encode(self, text: str) -> list[int]:
        return [self._begin, *self._split(whole_characters(text)), self._end]

    @override
    def decode(self, tokens: Sequence[int]) -> str:
        stream = self.stream()
        return "".join([*map(stream.push, tokens), stream.finish()])

    @override
    def stream(self) -> TextStream:
        return WordPieceStream(self._pieces)

    def _split(self, text: str) -> list[int]:
        return ids_of(self._tokenizer, text, add_special_tokens=False)


class ChineseWordTokenizer(BertTokenizer):
    def __init__(
        self, vocabulary: Mapping[str, int], end_tokens: Sequence[int], *, lowercase: bool
    ) -> None:
        super().__init__(vocabulary, end_tokens, lowercase=lowercase)
        try:
            import rjieba
        except ImportError:
            raise KvcastError(
                "this model splits Chinese into words with rjieba: pip install 'kvcast[chinese]'"
            ) from None
        self._jieba: Any = rjieba
        self._words = {word: i for word, i in vocabulary.items() if not is_special(word)}
        # As the models were trained (bert4keras, tokenizers.py): normalised first, then cut.
        self._normalizer = BertNormalizer(handle_chinese_chars=False, lowercase=lowercase)

    def _split(self, text: str) -> list[int]:
        tokens: list[int] = []
        for word in self._jieba.cut(self._normalizer.normalize_str(text), False):
            known = self._words.get(word)
            tokens += super()._split(word) if known is None else [known]
        return tokens


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
    return piece.startswith("[") and piece.endswith("]")


class WordPieceStream(TextStream):
    def __init__(self, pieces: Mapping[int, str]) -> None:
        self._pieces = pieces
        self._end = ""  # the last two characters so far
        self._after_mark = False

    @override
    def push(self, token: int) -> str:
        """Return the token's text, with a space before it where one belongs."""
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
        return ""

    def _is_apart(self, text: str, closed: bool) -> bool:
        """Whether a space precedes `text`; if `closed`, one does only after a punctuation mark."""
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
    """Punctuation as in BERT, which includes ASCII symbols."""
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")
