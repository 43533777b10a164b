"""Word pieces: sources equal transformers' tokens, targets bert4keras's texts."""

# ruff: noqa: RUF001, marks of Chinese are meant

import json
import re
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import BertTokenizerFast, RoFormerTokenizer

from kit.errors import one_line
from kit.small_tokenizers import CONTROLS, SENTENCES, TEXT, VOCABULARY, bert_files, streamed
from kvcast.errors import InputMissingError, KvcastError
from kvcast.tokenizers.bert import WordPieceStream
from kvcast.tokenizers.opening import open_text

_IDS = {token: number for number, token in enumerate(VOCABULARY)}
_CONTROL_IDS = {_IDS[token] for token in CONTROLS if token in _IDS} - {_IDS["[UNK]"]}
_KINDS = {
    f"{'words' if words else 'pieces'} {'uncased' if lowercase else 'cased'}": (lowercase, words)
    for lowercase in (True, False)
    for words in (False, True)
}


@pytest.fixture(scope="module", params=_KINDS)
def ours(request: pytest.FixtureRequest):
    lowercase, words = _KINDS[request.param]
    return open_text(bert_files(lowercase=lowercase, words=words))


@pytest.fixture(scope="module", params=_KINDS)
def both(request: pytest.FixtureRequest):
    lowercase, words = _KINDS[request.param]
    kind = RoFormerTokenizer if words else BertTokenizerFast
    theirs = kind(vocab=_IDS, do_lower_case=lowercase)
    return theirs, open_text(bert_files(lowercase=lowercase, words=words))


@given(text=TEXT)
@example(text="")
@example(text="Größe NAÏVE façade 今天天气 ok🙂 İ \u0130")
def test_sources_are_those_of_transformers(both, text: str):
    theirs, ours = both
    for control in CONTROLS:  # which transformers takes for what they spell
        text = text.replace(control, "")
    assert ours.encode(text) == theirs(text).input_ids


@given(text=TEXT)
@example(text="[SEP] [CLS][PAD] a[MASK]b [unused1]")
def test_what_a_user_writes_never_becomes_a_control_token(ours, text: str):
    first, *tokens, last = ours.encode(text)
    assert (first, last) == (_IDS["[CLS]"], _IDS["[SEP]"])
    assert not _CONTROL_IDS & set(tokens)


def test_a_control_token_spelled_out_stays_in_the_text(ours):
    assert ours.decode(ours.encode("[SEP]")).lower().replace(" ", "") == "[sep]"


def test_an_empty_source_is_the_special_tokens(ours):
    assert ours.encode("") == ours.encode(" \n") == [_IDS["[CLS]"], _IDS["[SEP]"]]


def test_words_of_the_vocabulary_are_tokens_and_others_are_split():
    text = "今天天气非常好，明天去北京。"
    words = open_text(bert_files(words=True)).encode(text)
    pieces = open_text(bert_files(words=False)).encode(text)
    # jieba takes the first four characters for one word, which is not in the vocabulary.
    spelled = [VOCABULARY[token] for token in words[1:-1]]
    assert spelled == [*"今天天气", "非常", "好", "[UNK]", "明天", "去", "北京", "。"]
    assert [VOCABULARY[token] for token in pieces[1:7]] == [*"今天天气非常"]


def test_words_are_looked_for_in_the_normalised_text():
    ours = open_text(bert_files(words=True))
    assert ours.encode("CALL Me") == ours.encode("call me")
    assert _IDS["call"] in ours.encode("CALL")


def _by_definition(pieces: list[str]) -> str:
    """bert4keras's decode, rewritten from its rules: pieces first, then spaces are taken away."""
    text = ""
    for piece in pieces:
        alone = len(piece) == 1
        if piece.startswith("[") and piece.endswith("]"):
            continue
        if piece.startswith("##"):
            text += piece[2:]
        elif alone and _is_chinese(piece):
            text += piece
        elif alone and _is_punctuation(piece):
            text += piece + " "
        else:
            text += piece if text and _is_chinese(text[-1]) else " " + piece
    text = re.sub(" +", " ", text)
    text = re.sub(r"' (re|m|s|t|ve|d|ll) ", r"'\1 ", text)
    text = re.sub(r"([-+/={(<\[，。？！：；（）“”…、《》·—]) ", r"\1", text)
    return re.sub(r"(\d\.) (\d)", r"\1\2", text).strip()


def _is_chinese(character: str) -> bool:
    return "CJK" in unicodedata.name(character, "")


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] == "P" or character in "$+<=>^`|~"


_PIECES = [
    *["今", "天", "气", "今天", "北京", "##京", "##天"],
    *["hello", "it", "##ing", "##s", "2021", "03", "7"],
    *["，", "。", "？", "！", "“", "”", "…", "、", "（", "）", "《", "》", "·", "—", "：", "；"],
    *".,!?;:\"'()[]{}<>+-/=%$#&*@^_`|~\\",
    *["[CLS]", "[SEP]", "[UNK]", "[unused1]", "é", "🙂", "ß"],
]


@given(pieces=st.lists(st.sampled_from(_PIECES), max_size=12))
def test_targets_are_written_as_in_bert4keras(pieces: list[str]):
    numbered = dict(enumerate(pieces))
    stream = WordPieceStream(numbered)
    text = "".join([*map(stream.push, numbered), stream.finish()])
    expected = _by_definition(pieces)
    # Joined here and not there: the second of two numbers in a row between points, and what looks
    # like a contraction before anything but a space.
    differs = re.search(r"\d\. ?\d+\. ?\d", text) or re.search(r"' (re|m|s|t|ve|d|ll)", expected)
    if not differs:
        assert text == expected


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ("今 天 去 北京 吗 ？", "今天去北京吗？"),
        ("hello , wor ##ld !", "hello, world!"),
        ("我 用 iphone 12 拍 照", "我用iphone 12拍照"),
        ("2021 - 03 - 03", "2021-03-03"),
        ("it ' s 3 . 5 % of 1 . 2 . 3", "it's 3.5% of 1.2.3"),
        ("that ' s .", "that's."),
        ("[CLS] a [SEP] [PAD] b [UNK]", "a b"),
        ("", ""),
    ],
)
def test_texts_read_as_people_write(pieces: str, text: str):
    numbered = dict(enumerate(pieces.split()))
    stream = WordPieceStream(numbered)
    assert "".join(map(stream.push, numbered)) == text


@given(tokens=st.lists(st.integers(0, len(VOCABULARY) + 3), max_size=40))
def test_any_tokens_stream_to_what_they_decode_to(ours, tokens: list[int]):
    assert streamed(ours, tokens) == ours.decode(tokens)


@pytest.mark.parametrize("text", ["今天天气非常好。", "hello world, isn't it?", "3 march 2021"])
def test_a_text_comes_back(ours, text: str):
    assert ours.decode(ours.encode(text)) == text


def test_a_tokenizer_json_gives_its_vocabulary():
    theirs = BertTokenizerFast(vocab=_IDS, do_lower_case=True)
    files = bert_files() | {"tokenizer.json": theirs.backend_tokenizer.to_str().encode()}
    del files["vocab.txt"]
    ours = open_text(files)
    for text in SENTENCES:
        assert ours.encode(text) == theirs(text).input_ids
    assert ours.vocab_size == len(VOCABULARY)


def test_half_a_surrogate_pair_is_no_character(ours):
    assert ours.encode("a\ud800b") == ours.encode("a\ufffdb")


def test_without_jieba_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rjieba", None)
    assert open_text(bert_files(words=False)).encode("好")
    assert one_line(KvcastError, open_text, bert_files(words=True)) == (
        "this model splits Chinese into words with rjieba: pip install 'kvcast[chinese]'"
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "vocab.txt is damaged: line 1 is empty"),
        (b"[CLS]\n\n[SEP]\n[UNK]", "vocab.txt is damaged: line 2 is empty"),
        (b"[CLS]\n[SEP]\n[CLS]\n[UNK]", "vocab.txt is damaged: line 3 repeats a token"),
        (b"[CLS]\n\xff\n[SEP]\n[UNK]", "vocab.txt is damaged: not UTF-8"),
        (b"[CLS]\n[UNK]\na\nb\nc", "the vocabulary has no [SEP]"),
        (b"[SEP]\n[UNK]\na\nb\nc", "the vocabulary has no [CLS]"),
        (b"[SEP]\n[CLS]\na\nb\nc", "the vocabulary has no [UNK]"),
        (b"[SEP]\n[CLS]\n[UNK]", "end token 4 is not in the vocabulary"),
    ],
)
def test_a_damaged_vocabulary_is_one_line(content: bytes, told: str):
    assert one_line(KvcastError, open_text, bert_files() | {"vocab.txt": content}).startswith(told)


def test_line_ends_of_windows_and_empty_lines_at_the_end_are_none():
    content = bert_files()["vocab.txt"].replace(b"\n", b"\r\n") + b"\r\n\n"
    ours = open_text(bert_files() | {"vocab.txt": content})
    assert ours.vocab_size == len(VOCABULARY)
    assert ours.encode(SENTENCES[0]) == open_text(bert_files()).encode(SENTENCES[0])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "tokenizer.json is damaged: fetch it again"),
        (b"[]", "tokenizer.json is damaged: fetch it again"),
        (b"[" * 100_000, "tokenizer.json is damaged: fetch it again"),
        (b'{"model": {"type": "WordPiece"}}', "tokenizer.json is damaged: fetch it again"),
        (b'{"model": {"type": "BPE", "vocab": {}}, "added_tokens": []}', "not WordPiece"),
        (
            b'{"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 0}}, "added_tokens": []}',
            "does not number its tokens",
        ),
        (
            b'{"model": {"type": "WordPiece", "vocab": {"a": -1}}, "added_tokens": []}',
            "does not number its tokens",
        ),
    ],
)
def test_a_damaged_tokenizer_json_is_one_line(content: bytes, told: str):
    files = bert_files() | {"tokenizer.json": content}
    del files["vocab.txt"]
    assert told in one_line(KvcastError, open_text, files)


def test_a_missing_vocabulary_is_one_line():
    with pytest.raises(InputMissingError, match=r"no vocab\.txt or tokenizer\.json"):
        open_text({"text.json": bert_files()["text.json"]})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"lowercase": None}, "lowercase is not true or false"),
        ({"lowercase": "yes"}, "lowercase is not true or false"),
        ({"words": 1}, "words is not true or false"),
        (
            {"tokenizer": "gpt"},
            "tokenizer 'gpt' is not known: one of bert, byt5, marian, m2m100, mbart, mbart50, "
            "pegasus, blenderbot, blenderbot-small, byte-level",
        ),
        ({"tokenizer": 3}, "tokenizer is not a text"),
        ({"end_tokens": []}, "end_tokens is not a list of one or more ids"),
        ({"end_tokens": [True]}, "end_tokens is not a list of one or more ids"),
    ],
)
def test_wrong_fields_are_one_line(settings: dict[str, object], told: str):
    whole = json.loads(bert_files()["text.json"]) | settings
    line = one_line(
        KvcastError, open_text, bert_files() | {"text.json": json.dumps(whole).encode()}
    )
    assert line == f"text.json is damaged: {told}"


@pytest.mark.parametrize("extra_ids", [-1, 1001, True, "7"])
def test_a_wrong_number_of_sentinels_is_one_line(extra_ids: object):
    settings = json.dumps({"end_tokens": [1], "extra_ids": extra_ids}).encode()
    line = one_line(KvcastError, open_text, {"text.json": settings, "spiece.model": b""})
    assert line == "text.json is damaged: extra_ids is not a whole number from 0 to 1000"


def test_a_spiece_model_without_settings_is_one_line():
    with pytest.raises(InputMissingError, match=r"no text\.json beside spiece\.model"):
        open_text({"spiece.model": b""})
