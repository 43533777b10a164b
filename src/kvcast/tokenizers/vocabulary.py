"""Reads vocabularies and merges (vocab.txt, vocab.json, merges.txt, WordPiece's tokenizer.json).

Names T5's sentinels, and calls the tokenizers library.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kvcast.errors import KvcastError
from tokenizers import Encoding, Tokenizer

_MOST = 1 << 31


def read_vocab_txt(content: bytes) -> dict[str, int]:
    """One token per line, from token 0 on; empty lines at the end do not count.

    KvcastError for invalid UTF-8, an empty line between tokens, and duplicates.
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
    """Include added tokens; KvcastError for a damaged file or another kind than WordPiece."""
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


_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def read_merges(content: bytes, label: str) -> list[tuple[str, str]]:
    """Pairs, best first; KvcastError, naming `label`, for other lines."""
    pairs = []
    for line in content.decode(errors="replace").split("\n"):
        match line.split():
            case []:
                continue
            case [first, second]:
                pairs.append((first, second))
            case _ if line.startswith("#version") and not pairs:
                continue
            case _:
                raise KvcastError(f"{label} is damaged: {line[:40]!r} is no merge; fetch it again")
    return pairs[1:] if pairs[:1] and pairs[0][0] == "#version:" else pairs


def special_tokens(vocabulary: Mapping[str, int], tokens: Iterable[str]) -> list[dict[str, Any]]:
    """Return tokenizer.json's "added_tokens" for those of these that the vocabulary has."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": vocabulary[token], "content": token, **flags, "special": True}
        for token in sorted(vocabulary.keys() & tokens, key=vocabulary.__getitem__)
    ]


def to_byte_level_json(
    vocabulary: Mapping[str, int],
    merges: list[tuple[str, str]],
    *,
    begin: str | None,
    end: str,
    prefix_space: bool,
) -> bytes:
    """Return the tokenizer.json of a byte-level vocabulary; `begin` and `end` surround a source.

    `prefix_space`: whether a space is put before the first word. KvcastError if it lacks a token.
    """
    around = [token for token in (begin, end) if token is not None]
    if lacking := [token for token in around if token not in vocabulary]:
        raise KvcastError(f"the vocabulary has no {lacking[0][:40]}: fetch it again")
    slots: list[dict[str, Any]] = [
        {"SpecialToken": {"id": token, "type_id": 0}} for token in around
    ]
    slots.insert(len(slots) - 1, {"Sequence": {"id": "A", "type_id": 0}})
    spaces = {"add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": True}
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_tokens(vocabulary, {*_SPECIAL, *around}),
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", **spaces},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": slots,
            "pair": [*slots, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]}
                for token in around
            },
        },
        "decoder": {"type": "ByteLevel", **spaces},
        "model": {
            "type": "BPE",
            "vocab": dict(vocabulary),
            "merges": [list(pair) for pair in merges],
            "unk_token": None,
            "fuse_unk": False,
        },
    }
    return json.dumps(description).encode()


SENTINEL = re.compile(r"<extra_id_(\d{1,4})>")


def sentinel(number: int) -> str:
    return f"<extra_id_{number}>"


def ids_of(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    ids: list[int] = encoding_of(tokenizer, text, add_special_tokens=add_special_tokens).ids
    return ids


def encoding_of(
    tokenizer: Tokenizer, text: str | tuple[str, ...], *, add_special_tokens: bool
) -> Encoding:
    """Encode a batch of one: `encode` would hold the interpreter's lock, blocking threads."""
    given = text[0] if isinstance(text, tuple) and len(text) == 1 else text
    [encoding] = tokenizer.encode_batch([given], add_special_tokens=add_special_tokens)
    return encoding


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """Unknown pieces are as the text spells them."""
    [encoding] = tokenizer.encode_batch([text], add_special_tokens=False)
    pieces: list[str] = encoding.tokens
    return pieces
