"""Descriptions that would make the tokenizers library hang are refused before it reads them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kit.errors import one_line
from kit.small_tokenizers import KINDS, spiece_model
from kvcast.errors import KvcastError
from kvcast.tokenizers.sentencepiece_model import to_tokenizer_json
from kvcast.tokenizers.tokenizer_json import JsonTokenizer


def unigram() -> dict[str, Any]:
    return json.loads(to_tokenizer_json(spiece_model(), 100, "spiece.model"))


def bpe() -> dict[str, Any]:
    return json.loads(KINDS["llama"]().to_str())


def message(description: dict[str, Any]) -> str:
    return one_line(KvcastError, JsonTokenizer, json.dumps(description).encode(), [1], None)


@pytest.mark.parametrize(
    ("piece", "says"),
    [
        (["", -3.0], "no characters"),
        ([None, -3.0], "no characters"),
        (["x", float("nan")], "is not a finite number"),
        (["x", float("inf")], "is not a finite number"),
        (["x"], "cannot be read"),
    ],
)
def test_pieces_that_are_none(piece: list[Any], says: str):
    description = unigram()
    description["model"]["vocab"][50] = piece
    assert says in message(description)


@pytest.mark.parametrize("token", [-1, 1.5, True, 1 << 24, 2**32 - 1, 2**63])
def test_ids_that_no_vocabulary_has(token: Any):
    for change in (in_vocabulary, in_added_tokens):
        description = bpe()
        change(description, token)
        assert "an id of its vocabulary" in message(description)


def in_vocabulary(description: dict[str, Any], token: Any) -> None:
    description["model"]["vocab"]["a"] = token


def in_added_tokens(description: dict[str, Any], token: Any) -> None:
    description["added_tokens"][3]["id"] = token


def in_sequences(steps: list[Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": steps}]}


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([{"type": "NFC"}] * 300, "steps"),
        ([{"type": "Replace", "pattern": {"Regex": "(a" * 9000}, "content": ""}], "too long"),
        ([{"type": "Prepend", "prepend": "a" * 9000}], "too long"),
    ],
)
def test_more_than_a_tokenizer_needs(steps: list[Any], says: str):
    description = bpe()
    description["normalizer"] = in_sequences(steps)
    assert says in message(description)


@pytest.mark.parametrize("make", [unigram, bpe])
def test_whole_ones_are_read(make: Callable[[], dict[str, Any]]):
    JsonTokenizer(json.dumps(make()).encode(), [1], None).encode("Call me Ishmael.")
