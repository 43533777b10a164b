"""Which tokenizer.json files are accepted, and errors about others."""

import json
from typing import Any

import pytest

from kit.errors import one_line
from kit.openai_whisper import openai_tokenizer, openai_tokenizer_json
from kvcast.errors import KvcastError, UsageError
from kvcast.speech.languages import LANGUAGES
from kvcast.whisper.tokenizer import WhisperTokenizer

MULTILINGUAL = 51865


def added_tokens(tokenizer_json: bytes) -> list[dict[str, Any]]:
    return json.loads(tokenizer_json)["added_tokens"]


def changed(tokenizer_json: bytes, added: list[dict[str, Any]]) -> bytes:
    return json.dumps(json.loads(tokenizer_json) | {"added_tokens": added}).encode()


@pytest.mark.parametrize("multilingual", [False, True])
def test_timestamps_need_not_be_listed(multilingual: bool):
    """Older files of Hugging Face's hub end at <|notimestamps|>."""
    complete = openai_tokenizer_json(multilingual)
    steering = [
        entry for entry in added_tokens(complete) if not entry["content"].strip("<|>")[0].isdigit()
    ]
    assert len(added_tokens(complete)) - len(steering) == 1501
    tokenizer = WhisperTokenizer(changed(complete, steering), 51864 + multilingual)
    theirs = openai_tokenizer(multilingual)
    assert tokenizer.timestamp_begin == theirs.timestamp_begin
    stamps = range(theirs.timestamp_begin, theirs.timestamp_begin + 1501)
    assert tokenizer.decode_with_timestamps(stamps) == theirs.decode_with_timestamps(stamps)
    assert tokenizer.decode([*tokenizer.encode(" a"), *stamps]) == " a"


def test_older_names_of_special_tokens_are_known():
    older = {"<|nospeech|>": "<|nocaptions|>", "<|he|>": "<|iw|>"}
    complete = openai_tokenizer_json(True)
    entries = [
        e | {"content": older.get(e["content"], e["content"])} for e in added_tokens(complete)
    ]
    tokenizer = WhisperTokenizer(changed(complete, entries), MULTILINGUAL)
    theirs = openai_tokenizer(True)
    assert tokenizer.no_speech == theirs.no_speech
    assert tokenizer.languages == tuple(LANGUAGES)[:99]
    assert tokenizer.language_tokens == tuple(sorted(theirs.all_language_tokens))


def test_merges_are_read_in_both_spellings():
    pairs = json.loads(openai_tokenizer_json(False))
    pairs["model"]["merges"] = [" ".join(pair) for pair in pairs["model"]["merges"]]
    tokenizer = WhisperTokenizer(json.dumps(pairs).encode(), 51864)
    text = " And Mr. John Dashwood, naïvely: 東京!"
    assert tokenizer.encode(text) == openai_tokenizer(False).encode(text)


_END = {"id": 2, "content": "<|endoftext|>"}
_MODEL = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
_FOREIGN: dict[str, Any] = {
    "a list": [],
    "null": None,
    "no model": {"added_tokens": [_END]},
    "no added tokens": {"model": _MODEL},
    "WordPiece": {
        "added_tokens": [_END],
        "model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"},
    },
    "Unigram": {
        "added_tokens": [_END],
        "model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0]], "unk_id": 0},
    },
    "SentencePiece": {
        "added_tokens": [_END],
        "model": {"vocab": {"▁": 0, "a": 1, "▁a": 2}, "merges": [["▁", "a"]]},
    },
    "a merge of three": {"added_tokens": [_END], "model": _MODEL | {"merges": ["a b c"]}},
    "a merge of strangers": {"added_tokens": [_END], "model": _MODEL | {"merges": [["b", "x"]]}},
    "ids that are words": {
        "added_tokens": [{"id": "one", "content": "<|endoftext|>"}],
        "model": _MODEL,
    },
    "GPT-2": {"added_tokens": [_END], "model": _MODEL},
}
_FOREIGN_FILES = {name: json.dumps(content).encode() for name, content in _FOREIGN.items()}
_FOREIGN_FILES |= {"empty": b"", "not JSON": b"{", "not UTF-8": b'{"model": "\xff"}'}


@pytest.mark.parametrize("tokenizer_json", _FOREIGN_FILES.values(), ids=_FOREIGN_FILES)
def test_a_foreign_file_is_refused_in_one_line(tokenizer_json: bytes):
    assert "tokenizer.json" in one_line(KvcastError, WhisperTokenizer, tokenizer_json, 51864)


def test_a_file_of_a_larger_model_is_refused_in_one_line():
    line = one_line(KvcastError, WhisperTokenizer, openai_tokenizer_json(True), 50000)
    assert "does not belong to this model" in line


def test_an_id_between_text_and_special_tokens_that_nothing_names_is_one_line():
    complete = openai_tokenizer_json(True)
    entries = [entry for entry in added_tokens(complete) if entry["content"] != "<|de|>"]
    tokenizer = WhisperTokenizer(changed(complete, entries), MULTILINGUAL)
    assert "de" not in tokenizer.languages
    unnamed = tokenizer.sot + 1 + list(LANGUAGES).index("de")
    assert "not in the vocabulary" in one_line(KvcastError, tokenizer.decode, [unnamed])


@pytest.fixture(scope="module")
def multilingual() -> WhisperTokenizer:
    return WhisperTokenizer(openai_tokenizer_json(True), MULTILINGUAL)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("germann", "did you mean german?"),
        ("Englsh", "did you mean english?"),
        ("qqqqqq", "give a code such as en, or a name"),
        ("", "give a code such as en, or a name"),
        ("Cantonese", "does not know Cantonese"),
    ],
)
def test_an_unknown_language_is_one_line_with_advice(
    multilingual: WhisperTokenizer, given: str, advice: str
):
    line = one_line(UsageError, multilingual.language_code, given)
    assert given in line
    assert advice in line


def test_a_language_of_an_english_model_is_one_line():
    english = WhisperTokenizer(openai_tokenizer_json(False), 51864)
    assert "English only, not German" in one_line(UsageError, english.language_code, "de")
