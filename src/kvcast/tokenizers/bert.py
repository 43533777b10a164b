"""BERT's tokenizers, on top of the tokenizers library: sources between [CLS] and [SEP].

SimBERT and RoFormer-Sim's character models use the plain one. T5-PEGASUS and RoFormer look for
Chinese words first: a word that jieba finds and the vocabulary contains is one token, and the rest
is split as in BERT. jieba's rules and dictionary come from rjieba, an optional extra, which splits
as jieba does, is maintained, and reads no cache from a folder that other users may write to.

Special tokens are never recognised in a text, since BERT splits off brackets.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.spec.text_files import whole_characters
from kvcast.tokenizers.huggingface import ids_of
from kvcast.tokenizers.plain import PlainTokenizer
from kvcast.tokenizers.stream import TextStream
from kvcast.tokenizers.word_pieces import WordPieceStream, is_special
from tokenizers import Tokenizer

_BEGIN, _END, _UNKNOWN = "[CLS]", "[SEP]", "[UNK]"


class BertTokenizer(PlainTokenizer):
    decoder = None

    def __init__(
        self, vocabulary: Mapping[str, int], end_tokens: Sequence[int], *, lowercase: bool
    ) -> None:
        """Take a vocabulary, text to id; `lowercase` also strips accents.

        Raises KvcastError if it lacks a special token or an end token.
        """
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
        """Return the tokens of a source between [CLS] and [SEP].

        Special tokens spelt out in the text are treated as plain text.
        """
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
        """Take the same as BertTokenizer; also raises KvcastError if rjieba is not installed."""
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
