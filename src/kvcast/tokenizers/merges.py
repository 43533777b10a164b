"""Reads merges.txt, the merges of a vocabulary in vocab.json, as GPT-2's files have them.

Reads no files: the caller gives their contents. Splits no text.
"""

import json
from collections.abc import Mapping
from typing import Any

from kvcast.errors import KvcastError

_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def read_merges(content: bytes, label: str) -> list[tuple[str, str]]:
    """Return pairs of pieces, best first; raises KvcastError, naming `label`, for other lines."""
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


def to_byte_level_json(
    vocabulary: Mapping[str, int],
    merges: list[tuple[str, str]],
    *,
    begin: str | None,
    end: str,
    prefix_space: bool,
) -> bytes:
    """Return the tokenizer.json of a byte-level vocabulary whose sources end with a token.

    `begin`: the token before a source. `prefix_space`: whether a space is put before the first
    word. Raises KvcastError if the vocabulary lacks such a token.
    """
    around = [token for token in (begin, end) if token is not None]
    if lacking := [token for token in around if token not in vocabulary]:
        raise KvcastError(f"the vocabulary has no {lacking[0][:40]}: fetch it again")
    slots: list[dict[str, Any]] = [
        {"SpecialToken": {"id": token, "type_id": 0}} for token in around
    ]
    slots.insert(len(slots) - 1, {"Sequence": {"id": "A", "type_id": 0}})
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    spaces = {"add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": True}
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary[token], "content": token, **flags, "special": True}
            for token in sorted({*_SPECIAL, *around}, key=lambda token: vocabulary.get(token, 0))
            if token in vocabulary
        ],
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
