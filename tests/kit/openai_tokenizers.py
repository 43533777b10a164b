"""openai-whisper's tokenizers: as an oracle, and rewritten as tokenizer.json files."""

import json
import warnings
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from whisper.tokenizer import Tokenizer, get_tokenizer

from kvcast.whisper.tokenizer import WhisperTokenizer


@dataclass(frozen=True)
class Pair:
    """kvcast's tokenizer and openai-whisper's of one vocabulary."""

    ours: WhisperTokenizer
    theirs: Tokenizer
    num_languages: int


@cache
def openai_tokenizer(multilingual: bool, **options: Any) -> Tokenizer:
    """`get_tokenizer`, which leaves a file open when it first reads a vocabulary."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        return get_tokenizer(multilingual, **options)


@cache
def openai_tokenizer_json(multilingual: bool, num_languages: int = 99) -> bytes:
    """Write one of openai-whisper's vocabularies, which has ranks, as one with merges."""
    encoding = openai_tokenizer(multilingual, num_languages=num_languages).encoding
    ranks = encoding._mergeable_ranks
    specials = encoding._special_tokens
    merges = [_halves(token, rank, ranks) for token, rank in ranks.items() if len(token) > 1]
    return json.dumps(
        {
            "added_tokens": [{"id": i, "content": name} for name, i in specials.items()],
            "model": {
                "type": "BPE",
                "vocab": {_printable(token): rank for token, rank in ranks.items()},
                "merges": [[_printable(left), _printable(right)] for left, right in merges],
            },
        }
    ).encode()


def changed(tokenizer_json: bytes, added_tokens: list[dict[str, Any]]) -> bytes:
    """Return the file with other added tokens."""
    return json.dumps(json.loads(tokenizer_json) | {"added_tokens": added_tokens}).encode()


def _halves(token: bytes, rank: int, ranks: dict[bytes, int]) -> list[bytes]:
    """Merge the bytes of a token by all lower ranks, which leaves what its own rank joins."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        joined = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
        first = joined.index(min(joined))
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts


def _printable(token: bytes) -> str:
    """Spell bytes as GPT-2's files do: those that do not print are counted from U+0100 on."""
    return "".join(_STAND_INS[byte] for byte in token)


_PRINTS = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTS]
_STAND_INS = [chr(byte if byte in _PRINTS else 0x100 + _HIDDEN.index(byte)) for byte in range(256)]
