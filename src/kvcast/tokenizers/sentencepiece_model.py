"""Converts SentencePiece files, the spiece.model of T5 and mT5, to a tokenizer.json.

Parses the protocol buffer (google/sentencepiece, sentencepiece_model.proto): libraries that do
bring a second tokenizer. The result splits as SentencePiece does, except that tokenizers drops a
combining mark after a character that the normalisation rules replace, as in transformers.
Supports Unigram models, and BPE where texts are only split.
"""

import base64
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvcast.errors import KvcastError
from kvcast.tokenizers.decoder import SPACE_MARK
from kvcast.tokenizers.vocabulary import SENTINEL, sentinel

_SENTINELS = 100  # T5's
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED = 1, 2, 3, 5
_SPECIAL = (_UNKNOWN, _CONTROL, _UNUSED)
_MOST_PIECES = 1 << 24
# Begins a piece that no text spells: Unicode has no such character.
_NO_TEXT = "\U0010ffff"
_SPELLED_BYTE = "<(?=0x[0-9A-F]{2}>)"

_Message = Mapping[int, int | bytes]
_Value = TypeVar("_Value", int, bytes)


def to_tokenizer_json(content: bytes, extra_ids: int | None, label: str) -> bytes:
    """Return the tokenizer.json of a spiece.model; it adds </s> after a text.

    `extra_ids`: number of sentinels after the pieces, with <extra_id_0> last, as in T5. None: T5's
    100, or none if the pieces include sentinels, as in mT5. KvcastError, naming `label`, for a file
    that is damaged or of another kind.
    """
    return json.dumps(_unigram(content, label).description(extra_ids)).encode()


@dataclass(frozen=True, kw_only=True)
class Numbering:
    """How a vocabulary assigns ids to a model's pieces."""

    first: Sequence[str]  # special tokens, which take the place of the model's first pieces
    replaced: int
    last: Sequence[str] = ()


def to_numbered_json(content: bytes, numbering: Numbering, label: str) -> bytes:
    """As `to_tokenizer_json`, for a vocabulary with other ids."""
    model = _unigram(content, label)
    try:
        return json.dumps(model.numbered(numbering)).encode()
    except ValueError as error:
        raise KvcastError(f"{label} cannot be read: {error}; fetch it again") from None


def to_splitter_json(content: bytes, label: str) -> bytes:
    """As `to_tokenizer_json`, for splitting texts only: without special tokens."""
    model = _read(content, label)
    description = model.description(0)
    special = {token["id"] for token in description.pop("added_tokens")}
    vocabulary = description["model"]["vocab"]
    for i in special:
        vocabulary[i] = (f"{_NO_TEXT}{i}", vocabulary[i][1])
    if model.bpe:
        description["model"] = _merging(vocabulary, model.unknown)
    return json.dumps(description | {"added_tokens": [], "post_processor": None}).encode()


def _unigram(content: bytes, label: str) -> "_SentencePieceModel":
    model = _read(content, label)
    if model.bpe:
        problem = "it is not a Unigram model, the only kind that is supported"
        raise KvcastError(f"{label} cannot be read: {problem}; fetch it again")
    return model


def _read(content: bytes, label: str) -> "_SentencePieceModel":
    try:
        return _SentencePieceModel.read(content)
    except ValueError as error:
        raise KvcastError(f"{label} cannot be read: {error}; fetch it again") from None


@dataclass(frozen=True, kw_only=True)
class _SentencePieceModel:
    """A parsed model. `pieces` by id: text, score and type; `unknown` and `end` are ids."""

    pieces: list[tuple[str, float, int]]
    unknown: int
    end: int
    charsmap: bytes
    prefix: bool
    collapses: bool
    byte_fallback: bool
    bpe: bool

    @classmethod
    def read(cls, content: bytes) -> "_SentencePieceModel":
        model = _message(content)
        pieces = [_piece(value) for number, value in _fields(content) if number == 1]
        trainer, normalizer = _message(_last(model, 2, b"")), _message(_last(model, 3, b""))
        if (kind := _last(trainer, 3, _UNIGRAM)) not in (_UNIGRAM, _BPE):
            raise ValueError("it is not a Unigram model, the only kind that is supported")
        # trainer 24: treat_whitespace_as_suffix; normalizer 5: escape_whitespaces.
        if _last(trainer, 24, 0) or not _last(normalizer, 5, 1):
            raise ValueError("it marks spaces in a way that is not supported")
        if not 0 < len(pieces) < _MOST_PIECES or len({text for text, _, _ in pieces}) < len(pieces):
            raise ValueError("it has no pieces, too many, or duplicates")
        unknown = [i for i, (_, _, kind) in enumerate(pieces) if kind == _UNKNOWN]
        end = _last(trainer, 47, b"</s>").decode()
        ends = [i for i, (text, _, kind) in enumerate(pieces) if (text, kind) == (end, _CONTROL)]
        if len(unknown) != 1 or not ends:
            raise ValueError("it has no unknown piece, or no end piece")
        return cls(
            pieces=pieces,
            unknown=unknown[0],
            end=ends[0],
            charsmap=_last(normalizer, 2, b""),
            prefix=bool(_last(normalizer, 3, 1)),
            collapses=bool(_last(normalizer, 4, 1)),
            byte_fallback=bool(_last(trainer, 35, 0)),
            bpe=kind == _BPE,
        )

    def description(self, extra_ids: int | None) -> dict[str, Any]:
        if extra_ids is None:
            own = any(SENTINEL.fullmatch(text.lstrip(SPACE_MARK)) for text, _, _ in self.pieces)
            extra_ids = 0 if own else _SENTINELS
        vocabulary = self._scored()
        special = [i for i, piece in enumerate(self.pieces) if piece[2] in _SPECIAL]
        special += range(len(vocabulary), len(vocabulary) + extra_ids)
        vocabulary += [(sentinel(number), 0.0) for number in reversed(range(extra_ids))]
        return self._described(vocabulary, special, self.unknown, self.end)

    def numbered(self, numbering: Numbering) -> dict[str, Any]:
        first, kept = len(numbering.first), self._scored()[numbering.replaced :]
        vocabulary = [(text, 0.0) for text in numbering.first] + kept
        last = range(len(vocabulary), len(vocabulary) + len(numbering.last))
        vocabulary += [(text, 0.0) for text in numbering.last]
        ids = {text: i for i, (text, _) in enumerate(vocabulary)}
        ends = [ids.get(self.pieces[i][0], 0) for i in (self.unknown, self.end)]
        if len(ids) < len(vocabulary) or not all(ends):
            raise ValueError("its pieces are not those of the model's kind")
        kinds = [kind for _, _, kind in self.pieces[numbering.replaced :]]
        own = [first + i for i, kind in enumerate(kinds) if kind in _SPECIAL]
        return self._described(vocabulary, [*range(first), *own, *last], *ends)

    def _scored(self) -> list[tuple[str, float]]:
        """Unused pieces, like special tokens, are in no text."""
        return [
            (f"<unused_piece_{i}>" if kind == _UNUSED else text, score)
            for i, (text, score, kind) in enumerate(self.pieces)
        ]

    def _described(
        self, vocabulary: Sequence[tuple[str, float]], special: Sequence[int], unknown: int, at: int
    ) -> dict[str, Any]:
        """`unknown` and `at`, the end, are ids."""
        end = vocabulary[at][0]
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_added(i, vocabulary[i][0]) for i in special],
            "normalizer": {"type": "Sequence", "normalizers": self._normalizers()},
            # Text that looks like a byte token is split, so that it is not taken for one.
            "pre_tokenizer": _cut(_SPELLED_BYTE) if self.byte_fallback else None,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [_slot("Sequence", "A"), _slot("SpecialToken", end)],
                "pair": [_slot("Sequence", "A"), _slot("Sequence", "B")],
                "special_tokens": {end: {"id": end, "ids": [at], "tokens": [end]}},
            },
            "decoder": {
                "type": "Metaspace",
                "replacement": SPACE_MARK,
                "prepend_scheme": "always" if self.prefix else "never",
                "split": False,
            },
            "model": {
                "type": "Unigram",
                "unk_id": unknown,
                "vocab": vocabulary,
                "byte_fallback": self.byte_fallback,
            },
        }

    def _normalizers(self) -> list[dict[str, Any]]:
        steps = []
        if self.charsmap:
            rules = base64.b64encode(self.charsmap).decode()
            steps.append({"type": "Precompiled", "precompiled_charsmap": rules})
        if self.collapses:
            steps += [_replace(r"\A +", ""), _replace(" {2,}", " ")]
        steps.append(_replace(" ", SPACE_MARK))
        if self.collapses:
            steps.append(_replace(SPACE_MARK + r"+\z", ""))
        if self.prefix:
            steps.append({"type": "Prepend", "prepend": SPACE_MARK})
        return steps


def _merging(vocabulary: Sequence[tuple[str, float]], unknown: int) -> dict[str, Any]:
    """Order merges by the pieces' scores."""
    ids = {piece: i for i, (piece, _) in enumerate(vocabulary)}
    merges = [
        (-score, ids[piece[:at]], ids[piece[at:]])
        for piece, score in vocabulary
        for at in range(1, len(piece))
        if piece[:at] in ids and piece[at:] in ids
    ]
    return {
        "type": "BPE",
        "vocab": ids,
        "merges": [[vocabulary[i][0] for i in pair] for _, *pair in sorted(merges)],
        "unk_token": vocabulary[unknown][0],
        "fuse_unk": True,
    }


def _added(number: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **flags, "special": True}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _cut(pattern: str) -> dict[str, Any]:
    how = {"behavior": "MergedWithPrevious", "invert": False}
    return {"type": "Split", "pattern": {"Regex": pattern}, **how}


def _slot(kind: str, name: str) -> dict[str, Any]:
    return {kind: {"id": name, "type_id": 0}}


def _piece(content: int | bytes) -> tuple[str, float, int]:
    """Text, score and type of a SentencePiece message."""
    if isinstance(content, int):
        raise ValueError("a piece is a number")  # noqa: TRY004, it is the file's
    fields = _message(content)
    text, score = _last(fields, 1, b"").decode(), _last(fields, 2, bytes(4))
    if not text or len(score) != 4 or not math.isfinite(value := struct.unpack("<f", score)[0]):
        raise ValueError("a piece has no text, or its score is not a number")
    return text, value, _last(fields, 3, _NORMAL)


def _last(fields: _Message, number: int, default: _Value) -> _Value:
    value = fields.get(number, default)
    if not isinstance(value, type(default)):
        raise ValueError(f"field {number} is of another kind")  # noqa: TRY004, it is the file's
    return value


def _message(content: bytes) -> _Message:
    return dict(_fields(content))


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields in order, with their values or bytes; ValueError if one extends beyond the end."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        match tag & 7:
            case 0:
                value, at = _varint(content, at)
                yield tag >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(content, at)
            case 5:
                size = 4
            case _:
                raise ValueError("it is not a SentencePiece model")
        if size > len(content) - at:
            raise ValueError("it is cut short")
        yield tag >> 3, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to 64 bits, stored 7 per byte, and the next value's offset."""
    value = 0
    for i in range(min(10, len(content) - at)):
        byte = content[at + i]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise ValueError("it is cut short")
