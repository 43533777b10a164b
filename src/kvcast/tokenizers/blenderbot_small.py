"""The tokenizer of small Blenderbots: words in small letters, merged from characters.

A piece of the vocabulary that does not end a word ends with @@; merges mark ends of words with
</w>. Punctuation marks and line ends are separate words. Nothing is added to a text, and special
tokens that it spells are text. Reads no files: the caller gives their contents.
"""

import re
from collections.abc import Mapping, Sequence

from tokenizers.models import BPE
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.spec.text_files import whole_characters
from kvcast.tokenizers.base import PlainTokenizer
from kvcast.tokenizers.decoder import TextStream
from kvcast.tokenizers.vocabulary import read_merges
from tokenizers import Tokenizer

_START, _END, _UNKNOWN, _PADDING = "__start__", "__end__", "__unk__", "__null__"
_SPECIAL = (_START, _END, _UNKNOWN, _PADDING)
_GOES_ON, _LAST, _NO_PIECE = "@@", "</w>", "\U0010ffff"  # the last is no character
_WORD = re.compile(r"\S+\n?")


class BlenderbotSmallTokenizer(PlainTokenizer):
    decoder = None

    def __init__(
        self, vocabulary: Mapping[str, int], merges: bytes, end_tokens: Sequence[int], label: str
    ) -> None:
        """Take merges, best first; KvcastError for damage or a missing special token."""
        if lacking := [token for token in _SPECIAL if token not in vocabulary]:
            raise KvcastError(f"the vocabulary has no {lacking[0]}: fetch it again")
        self._vocabulary = vocabulary
        self._unknown = vocabulary[_UNKNOWN]
        special = {vocabulary[token] for token in _SPECIAL}
        self._pieces = {n: "" if n in special else piece for piece, n in vocabulary.items()}
        if unknown := [token for token in end_tokens if token not in self._pieces]:
            raise KvcastError(
                f"end token {unknown[0]} is not in the vocabulary: the files belong to two models"
            )
        self.end_tokens = tuple(end_tokens)
        pairs = read_merges(merges, label)
        # Merges make pieces that the vocabulary has not: they become the unknown token.
        characters = set("".join([*vocabulary, *(a.removesuffix(_LAST) for p in pairs for a in p)]))
        pieces = [*characters, *(f"{each}{_LAST}" for each in characters)]
        pieces += [part for a, b in pairs for part in (a, b, a + b)]
        ids = {piece: i for i, piece in enumerate(dict.fromkeys([_NO_PIECE, *pieces]))}
        model = BPE(ids, pairs, unk_token=_NO_PIECE, end_of_word_suffix=_LAST)
        self._splitter = Tokenizer(model)

    @property
    @override
    def vocab_size(self) -> int:
        return max(self._pieces) + 1

    @override
    def encode(self, text: str) -> list[int]:
        words = [part for word in _WORD.findall(whole_characters(text)) for part in _parts(word)]
        if not words:
            return []
        [encoding] = self._splitter.encode_batch(
            [words], is_pretokenized=True, add_special_tokens=False
        )
        return [self._number(piece) for piece in encoding.tokens]

    @override
    def decode(self, tokens: Sequence[int]) -> str:
        stream = self.stream()
        return "".join([*map(stream.push, tokens), stream.finish()])

    @override
    def stream(self) -> TextStream:
        return _Words(self._pieces)

    def _number(self, piece: str) -> int:
        spelled = piece.removesuffix(_LAST) if piece.endswith(_LAST) else piece + _GOES_ON
        number = self._vocabulary.get(spelled, self._unknown)
        # A text that spells a special token has no such token.
        return number if self._pieces[number] else self._unknown


class _Words(TextStream):
    """One text that is being decoded: a space follows each end of a word, except the last."""

    def __init__(self, pieces: Mapping[int, str]) -> None:
        self._pieces = pieces
        self._space = ""

    @override
    def push(self, token: int) -> str:
        piece = self._pieces.get(token, "")
        if not piece:
            return ""
        before, self._space = self._space, "" if piece.endswith(_GOES_ON) else " "
        return before + piece.removesuffix(_GOES_ON)

    @override
    def finish(self) -> str:
        return ""


def _parts(word: str) -> list[str]:
    """Words and marks in the text between spaces, which may have a line end."""
    spaced = re.sub("([.,!?()])", r" \1", word)
    spaced = re.sub("(')", r" \1 ", spaced)
    spaced = re.sub(r"\s{2,}", " ", spaced)
    spaced = spaced.replace("\n", " __newln__")
    return [part.lower() for part in spaced.split(" ") if part]
