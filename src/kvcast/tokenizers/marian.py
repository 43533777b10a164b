"""Tokenizers of Marian and M2M-100: SentencePiece splits a text, a table maps pieces to ids.

Source and target share the table, or each has one. A text that begins with a language's token, such
as >>fra<<, keeps it; no other special token is recognised in a text. Reads no files: the caller
gives their contents.
"""

import json
import re
from collections.abc import Mapping, Sequence

from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.spec.text_files import whole_characters
from kvcast.tokenizers.base import PlainTokenizer
from kvcast.tokenizers.decoder import TextStream, TokenDecoder, sentencepiece
from kvcast.tokenizers.languages import Languages, codes
from kvcast.tokenizers.sentencepiece_model import to_splitter_json
from kvcast.tokenizers.vocabulary import pieces_of
from tokenizers import Tokenizer

END, UNKNOWN, PADDING = "</s>", "<unk>", "<pad>"
_LANGUAGE = re.compile(r">>[^<>\s]+<<")
_MOST_TOKENS = 1 << 24
_USUAL_LANGUAGE = "en"


class MarianTokenizer(PlainTokenizer):
    translates = True

    def __init__(
        self,
        pieces: bytes,
        vocabulary: Mapping[str, int],
        end_tokens: Sequence[int],
        label: str,
        targets: Mapping[str, int] | None = None,
    ) -> None:
        """`targets`: the target's ids, if they differ.

        KvcastError, naming `label` for a model that is damaged or of another kind, or if a table
        lacks a special token.
        """
        targets = vocabulary if targets is None else targets
        for table in (vocabulary, targets):
            for token in (END, UNKNOWN):
                if token not in table:
                    raise KvcastError(f"the vocabulary has no {token}: fetch it again")
        self._splitter = Tokenizer.from_str(to_splitter_json(pieces, label).decode())
        self._vocabulary = vocabulary
        special = {END, UNKNOWN, PADDING} | set(filter(_LANGUAGE.fullmatch, targets))
        self._texts = {
            number: b"" if piece in special else sentencepiece(piece)
            for piece, number in targets.items()
        }
        if unknown := [token for token in end_tokens if token not in self._texts]:
            raise KvcastError(
                f"end token {unknown[0]} is not in the vocabulary: the files belong to two models"
            )
        self.end_tokens = tuple(end_tokens)
        if languages := codes(vocabulary):
            self.languages = Languages(tokens=languages, place="target")
        self.decoder = TokenDecoder(
            token_bytes=lambda token: self._texts.get(token, b""), leading_spaces=1
        )

    @property
    @override
    def vocab_size(self) -> int:
        return max(self._texts) + 1

    @override
    def encode(self, text: str) -> list[int]:
        whole = whole_characters(text)
        begun = _LANGUAGE.match(whole)
        language = [] if begun is None or begun[0] not in self._vocabulary else [begun[0]]
        rest = whole[len(language[0]) :] if language else whole
        pieces = [*language, *pieces_of(self._splitter, rest), END]
        unknown = self._vocabulary[UNKNOWN]
        return [self._vocabulary.get(piece, unknown) for piece in pieces]

    @override
    def decode(self, tokens: Sequence[int]) -> str:
        return self.decoder.decode(tokens)

    @override
    def stream(self) -> TextStream:
        return self.decoder.stream()


class M2MTokenizer(MarianTokenizer):
    """Pieces after a language's token; these tokens end the vocabulary."""

    def __init__(
        self,
        pieces: bytes,
        vocabulary: Mapping[str, int],
        end_tokens: Sequence[int],
        label: str,
        languages: Sequence[str],
        source: str | None = None,
    ) -> None:
        """`languages`: tokens, in order; `source`: the default; KvcastError for an unknown one."""
        named = {token: len(vocabulary) + i for i, token in enumerate(languages)}
        super().__init__(pieces, {**vocabulary, **named}, end_tokens, label)
        tokens = codes(named)
        usual = source or _USUAL_LANGUAGE
        if usual not in tokens:
            raise KvcastError(f"the tokens of languages have no {usual[:40]}: fetch them again")
        self.languages = Languages(tokens=tokens, place="first")
        self._texts |= dict.fromkeys(named.values(), b"")
        self._first = tokens[usual]

    @override
    def encode(self, text: str) -> list[int]:
        return [self._first, *super().encode(text)]


def read_vocabulary(content: bytes, label: str) -> dict[str, int]:
    """KvcastError, naming `label`, for anything else."""
    try:
        ids = json.loads(content)
    except (ValueError, RecursionError):
        raise KvcastError(f"{label} is not valid JSON: fetch it again") from None
    if not isinstance(ids, dict) or not all(
        type(number) is int and 0 <= number < _MOST_TOKENS for number in ids.values()
    ):
        raise KvcastError(f"{label} is damaged: it does not number pieces; fetch it again")
    return ids
