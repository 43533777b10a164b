"""ByT5's tokenizer: the bytes of a text in UTF-8. It needs no file.

ByT5 (Xue et al., 2021, section 3.1): <pad> 0, </s> 1, <unk> 2, byte b is b + 3, and 125 sentinels
follow, numbered as in transformers' ByT5Tokenizer.
"""

from collections.abc import Sequence

from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.spec.text_files import whole_characters
from kvcast.tokenizers.base import PlainTokenizer
from kvcast.tokenizers.decoder import TextStream, TokenDecoder
from kvcast.tokenizers.vocabulary import SENTINEL

_END = 1
_FIRST_BYTE = 3
_FIRST_SENTINEL = _FIRST_BYTE + 256
_SENTINELS = 125


class ByteTokenizer(PlainTokenizer):
    def __init__(self, end_tokens: Sequence[int]) -> None:
        self.end_tokens = tuple(end_tokens)
        if unknown := [token for token in end_tokens if token >= self.vocab_size]:
            raise KvcastError(
                f"end token {unknown[0]} is not one of ByT5's {self.vocab_size} tokens"
            )
        self.decoder = TokenDecoder(token_bytes=_token_bytes, leading_spaces=0)

    @property
    @override
    def vocab_size(self) -> int:
        return _FIRST_SENTINEL + _SENTINELS

    @override
    def encode(self, text: str) -> list[int]:
        """Encode a source and </s>; sentinels spelt out in it are recognised."""
        whole = whole_characters(text)
        tokens, start = [], 0
        for match in SENTINEL.finditer(whole):
            if (number := int(match[1])) < _SENTINELS and str(number) == match[1]:
                tokens += _bytes(whole[start : match.start()])
                tokens.append(_FIRST_SENTINEL + number)
                start = match.end()
        return [*tokens, *_bytes(whole[start:]), _END]

    @override
    def decode(self, tokens: Sequence[int]) -> str:
        return self.decoder.decode(tokens)

    @override
    def stream(self) -> TextStream:
        return self.decoder.stream()


def _bytes(text: str) -> list[int]:
    return [byte + _FIRST_BYTE for byte in text.encode()]


def _token_bytes(token: int) -> bytes:
    return bytes([token - _FIRST_BYTE]) if _FIRST_BYTE <= token < _FIRST_SENTINEL else b""
