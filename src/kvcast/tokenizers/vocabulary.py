"""Reads BERT's vocabularies, text to id, from vocab.txt or tokenizer.json."""

import json
from collections.abc import Mapping

from kvcast.errors import KvcastError

_MOST = 1 << 31


def read_vocab_txt(content: bytes) -> dict[str, int]:
    """Read one token per line, starting with token 0; empty lines at the end do not count.

    Raises KvcastError for content that is not UTF-8, for an empty line between tokens, and for a
    duplicate token.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise KvcastError("vocab.txt is damaged: not UTF-8; fetch it again") from None
    # Not splitlines: one of Unicode's other line separators may be a token.
    lines = [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]
    vocabulary: dict[str, int] = {}
    for number, token in enumerate(lines):
        if not token or token in vocabulary:
            label = "repeats a token" if token else "is empty"
            raise KvcastError(f"vocab.txt is damaged: line {number + 1} {label}; fetch it again")
        vocabulary[token] = number
    return vocabulary


def read_tokenizer_json(content: bytes) -> dict[str, int]:
    """Read the vocabulary of a WordPiece tokenizer.json, including added tokens.

    Raises KvcastError if it is damaged or of another kind.
    """
    try:
        description = json.loads(content)
        kind, vocabulary = description["model"]["type"], description["model"]["vocab"]
        added = {token["content"]: token["id"] for token in description["added_tokens"]}
    except (ValueError, RecursionError, KeyError, TypeError):
        raise KvcastError("tokenizer.json is damaged: fetch it again") from None
    if kind != "WordPiece":
        raise KvcastError("tokenizer.json is not WordPiece, as text.json declares")
    if not isinstance(vocabulary, dict) or not _are_ids(whole := vocabulary | added):
        raise KvcastError("tokenizer.json is damaged: its vocabulary does not number its tokens")
    return whole


def _are_ids(vocabulary: Mapping[object, object]) -> bool:
    ids = vocabulary.values()
    each = all(
        type(i) is int and 0 <= i < _MOST and isinstance(t, str) for t, i in vocabulary.items()
    )
    return each and len(set(ids)) == len(ids)
