"""Tokenizers of models without a tokenizer.json equal transformers' own of the same files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from sentencepiece import SentencePieceProcessor
from transformers import (
    BartTokenizer,
    BlenderbotSmallTokenizer,
    MBart50Tokenizer,
    MBartTokenizer,
    PegasusTokenizer,
)

from kit.errors import one_line
from kit.small_tokenizers import SENTENCES, TEXT, byte_level, spiece_model, streamed
from kvcast.errors import KvcastError
from kvcast.tokenizers.opening import open_text

FAIRSEQ = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
PEGASUS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
LETTERS = sorted(set("abcdefghijklmnopqrstuvwxyz0123456789.,!?()'_"))
MERGES = ("t h", "th e</w>", "h e", "l l", "he ll", "hell o</w>", "o u", "y ou</w>", "_ _")
SPECIAL = ["__null__", "__start__", "__end__", "__unk__"]
# Not all that merges make: "he" inside a word is no piece.
PIECES = ["the", "th@@", "hello", "hell@@", "ll@@", "ou@@", "you", "__@@", "__newln__"]


def opened(files: dict[str, bytes], **about: Any) -> Any:
    return open_text({**files, "text.json": json.dumps({"end_tokens": [2], **about}).encode()})


@pytest.mark.parametrize(
    ("kind", "theirs_of", "place"),
    [("mbart", MBartTokenizer, "last"), ("mbart50", MBart50Tokenizer, "first")],
)
def test_an_mbarts_pieces_and_languages(kind: str, theirs_of: Any, place: str, tmp_path: Path):
    model = spiece_model(vocab_size=180, **FAIRSEQ)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    theirs = theirs_of.from_pretrained(tmp_path)
    about = {"tokenizer": kind, "translates": True, "language_place": place, "eos_token": "</s>"}
    ours = opened({"sentencepiece.bpe.model": model}, **about)
    assert ours.vocab_size == len(theirs)
    assert ours.source_language == "en_XX"
    for code in ("de_DE", "zh_CN"):
        assert ours.languages.forced(code) == theirs.convert_tokens_to_ids(code)
    split = SentencePieceProcessor(model_proto=model)
    english, end = theirs.convert_tokens_to_ids(["en_XX", "</s>"])
    for text in SENTENCES:  # which transformers does not normalise for the older kind
        pieces = theirs.convert_tokens_to_ids(split.encode(text, out_type=str))
        around = [english, *pieces, end] if place == "first" else [*pieces, end, english]
        assert ours.encode(text) == around
        said = theirs.decode(pieces)
        assert ours.decode(around) == streamed(ours, around) == said
    assert ours.encode("the house") == theirs("the house").input_ids
    french = opened({"sentencepiece.bpe.model": model}, **about, source_language="fr_XX")
    theirs.src_lang = "fr_XX"
    assert french.encode("the house") == theirs("the house").input_ids
    with pytest.raises(KvcastError, match="no token is of src_lang 'xx_XX'"):
        opened({"sentencepiece.bpe.model": model}, **about, source_language="xx_XX")


def test_a_pegasuss_pieces(tmp_path: Path):
    model = spiece_model(vocab_size=180, **PEGASUS)
    (tmp_path / "spiece.model").write_bytes(model)
    theirs = PegasusTokenizer.from_pretrained(tmp_path)
    ours = opened({"spiece.model": model}, tokenizer="pegasus", end_tokens=[1])
    assert ours.vocab_size == len(theirs)
    for text in SENTENCES:
        tokens = theirs(text).input_ids
        assert ours.encode(text) == tokens
        assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True)


def test_a_barts_pieces():
    model = json.loads(byte_level().to_str())["model"]
    vocabulary = model["vocab"] | {"<pad>": 1000, "<mask>": 1001}
    theirs = BartTokenizer(vocab=vocabulary, merges=[tuple(pair) for pair in model["merges"]])
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"]), ""]
    files = {"vocab.json": json.dumps(vocabulary).encode(), "merges.txt": "\n".join(lines).encode()}
    ours = opened(files, tokenizer="byte-level", prefix_space=False)
    spaced = opened(files, tokenizer="blenderbot", prefix_space=True)
    end = vocabulary["</s>"]
    for text in SENTENCES:
        tokens = theirs(text).input_ids
        assert ours.encode(text) == tokens
        assert ours.decode(tokens) == text
        assert spaced.encode(text) == [*theirs(f" {text}").input_ids[1:-1], end]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    pieces = [*SPECIAL, *LETTERS, *(f"{letter}@@" for letter in LETTERS if letter != "q"), *PIECES]
    files = {
        "vocab.json": json.dumps({piece: i for i, piece in enumerate(pieces)}).encode(),
        "merges.txt": "\n".join(["#version: 0.2", *MERGES, ""]).encode(),
    }
    folder = tmp_path_factory.mktemp("small")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    theirs = BlenderbotSmallTokenizer(*(str(folder / name) for name in files))
    return theirs, opened(files, tokenizer="blenderbot-small")


@settings(deadline=None)
@given(text=TEXT)
def test_a_small_blenderbots_pieces(small: tuple[Any, Any], text: str):
    theirs, ours = small
    if any(token in text for token in SPECIAL):
        return  # there they are control tokens, here text
    assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize(
    "text", ["Hello there, you! How's the (old) house?\nWell.", "it'\na  q", "x.y\n\nz", "Übel"]
)
def test_marks_lines_and_unknown_letters_of_a_small_blenderbot(small: tuple[Any, Any], text: str):
    theirs, ours = small
    tokens = theirs(text).input_ids
    assert ours.encode(text) == tokens
    said = theirs.decode(tokens, skip_special_tokens=True)
    assert ours.decode(tokens) == streamed(ours, tokens) == said
    assert ours.encode("__end__ a") != [2, ours.encode("a")[0]]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("merges.txt", b"a b c", "'a b c' is no merge"),
        ("vocab.json", b'{"a": 1}', "has no __start__|has no __null__"),
        ("vocab.json", None, "no vocab.json"),
        ("text.json", b'{"tokenizer": "blenderbot-small", "end_tokens": [9999]}', "two models"),
        ("text.json", b'{"tokenizer": "pegasus", "end_tokens": [1]}', "no spiece.model"),
        ("text.json", b'{"tokenizer": "byte-level", "end_tokens": [1]}', "prefix_space"),
    ],
)
def test_damaged_files_are_one_line(name: str, content: bytes | None, said: str):
    vocabulary = {token: i for i, token in enumerate(SPECIAL)}
    files = {
        "vocab.json": json.dumps(vocabulary).encode(),
        "merges.txt": b"#version: 0.2\na b\n",
        "text.json": b'{"tokenizer": "blenderbot-small", "end_tokens": [2]}',
    }
    files = {k: v for k, v in {**files, name: content}.items() if v is not None}
    assert re.search(said, one_line(KvcastError, open_text, files))


def test_a_sentencepiece_model_of_another_kind_is_one_line():
    for kind, name in (("pegasus", "spiece.model"), ("mbart", "sentencepiece.bpe.model")):
        for content in (b"abc", spiece_model(vocab_size=180, model_type="bpe", **FAIRSEQ)):
            with pytest.raises(KvcastError, match=f"{name} cannot be read"):
                opened({name: content}, tokenizer=kind, translates=kind == "mbart")
