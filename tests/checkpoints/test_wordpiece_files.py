"""The text files of BERT and its relatives: which are read, and errors about them."""

import json

import pytest

from checkpoints.folder_checks import one_line
from checkpoints.tiny_unilms import TOKENS, random_unilm, save_unilm
from checkpoints.tiny_whisper import edit_json
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import InputMissingError, InputOutputError

ABOUT = {
    "end_tokens": [3],
    "tokenizer": "bert",
    "lowercase": True,
    "words": False,
}
# With a word of two characters.
WORDS = (*TOKENS[:-2], "今天", "天")
VOCABULARY = "".join(f"{token}\n" for token in TOKENS).encode()


@pytest.fixture
def bert(tmp_path):
    return save_unilm(random_unilm("bert"), tmp_path / "bert")


@pytest.fixture
def roformer(tmp_path):
    return save_unilm(random_unilm("roformer"), tmp_path / "roformer", tokens=WORDS)


def text_of(folder):
    text = dict(open_checkpoint(folder).text)
    return json.loads(text.pop("text.json")), text


def tokenizer_json(folder, tokens=TOKENS, **fields):
    """The parts of transformers' file that are read here."""
    vocabulary = {token: i for i, token in enumerate(tokens)}
    content = {
        "added_tokens": [{"id": i, "content": token} for i, token in enumerate(tokens[:5])],
        "model": {"type": "WordPiece", "vocab": vocabulary},
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**content, **fields}))
    return path.read_bytes()


def test_the_vocabulary_goes_along(bert):
    tokenizer_json(bert)
    assert text_of(bert) == (ABOUT, {"vocab.txt": VOCABULARY})
    (bert / "tokenizer_config.json").unlink()
    assert text_of(bert) == (ABOUT, {"vocab.txt": VOCABULARY})


def test_without_a_vocabulary_the_whole_tokenizer_does(bert):
    (bert / "vocab.txt").unlink()
    content = tokenizer_json(bert)
    assert text_of(bert) == (ABOUT, {"tokenizer.json": content})


def test_what_transformers_saves_of_a_tokenizer_is_enough(bert):
    from transformers import BertTokenizer

    BertTokenizer(vocab={token: i for i, token in enumerate(TOKENS)}).save_pretrained(bert)
    (bert / "vocab.txt").unlink()
    about, text = text_of(bert)
    assert about == ABOUT
    assert set(text) == {"tokenizer.json"}


@pytest.mark.parametrize("lowercase", [True, False])
def test_case_is_as_the_configuration_says(bert, lowercase):
    edit_json(bert / "tokenizer_config.json", do_lower_case=lowercase)
    assert text_of(bert)[0] == {**ABOUT, "lowercase": lowercase}


@pytest.mark.parametrize(
    ("name", "tokens", "words"),
    [
        ("RoFormerTokenizer", WORDS, True),
        ("RoFormerTokenizerFast", WORDS, True),
        (None, WORDS, True),
        # Characters only, so splitting into words would find none.
        ("RoFormerTokenizer", TOKENS, False),
        (None, TOKENS, False),
        ("BertTokenizer", WORDS, False),
        ("BertTokenizerFast", WORDS, False),
    ],
)
def test_texts_are_cut_into_words_where_the_vocabulary_has_any(tmp_path, name, tokens, words):
    folder = save_unilm(random_unilm("roformer"), tmp_path / "model", tokens=tokens)
    edit_json(folder / "tokenizer_config.json", tokenizer_class=name)
    about, text = text_of(folder)
    assert about == {**ABOUT, "words": words}
    assert text == {"vocab.txt": "".join(f"{token}\n" for token in tokens).encode()}


def test_a_bert_is_not_cut_into_words_unless_it_says_so(tmp_path):
    folder = save_unilm(random_unilm("bert"), tmp_path / "model", tokens=WORDS)
    edit_json(folder / "tokenizer_config.json", tokenizer_class=None)
    assert text_of(folder)[0] == ABOUT
    edit_json(folder / "tokenizer_config.json", tokenizer_class="RoFormerTokenizer")
    assert text_of(folder)[0] == {**ABOUT, "words": True}


def test_words_may_come_from_the_whole_tokenizer(roformer):
    (roformer / "vocab.txt").unlink()
    content = tokenizer_json(roformer, WORDS)
    edit_json(roformer / "tokenizer_config.json", tokenizer_class="RoFormerTokenizer")
    assert text_of(roformer) == ({**ABOUT, "words": True}, {"tokenizer.json": content})


def test_ids_are_those_of_transformers_whatever_ends_a_line(tmp_path):
    tokens = ("[PAD]", "\u2028", "\x85", "", "[CLS]", "[SEP]", "[UNK]")
    folder = save_unilm(random_unilm("bert"), tmp_path / "model", tokens=tokens)
    assert text_of(folder)[0]["end_tokens"] == [5]
    path = folder / "vocab.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert text_of(folder)[0]["end_tokens"] == [5]


@pytest.mark.parametrize("fields", [{}, {"strip_accents": None}, {"strip_accents": True}], ids=str)
def test_what_is_usual_may_be_said(bert, fields):
    path = bert / "tokenizer_config.json"
    path.write_text(json.dumps({"do_lower_case": True, **fields}))
    assert text_of(bert)[1] == {"vocab.txt": VOCABULARY}


def test_no_vocabulary_at_all_says_what_to_do(bert):
    (bert / "vocab.txt").unlink()
    message = one_line(bert, InputMissingError)
    assert "no vocab.txt and no tokenizer.json" in message
    assert "copy the base model's" in message


def test_a_vocabulary_without_the_token_that_ends_a_target_is_one_line(bert):
    (bert / "vocab.txt").write_text("[CLS]\n[UNK]\n")
    message = one_line(bert)
    assert "vocab.txt" in message
    assert "has no [SEP]" in message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class 'BertJapaneseTokenizer'"),
        ({"tokenizer_class": 3}, "tokenizer_class 3 is not supported (supported: BertTokenizer"),
        ({"do_lower_case": 1}, "do_lower_case must be true or false"),
        ({"strip_accents": "no"}, "strip_accents must be true or false"),
        ({"strip_accents": False}, "strip_accents other than do_lower_case is not supported"),
        ({"do_lower_case": False, "strip_accents": True}, "strip_accents other than do_lower"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars must be true"),
        ({"cls_token": "<s>"}, "cls_token must be [CLS], not '<s>'"),
        ({"sep_token": {"content": "</s>"}}, "sep_token must be [SEP], not '</s>'"),
    ],
)
def test_settings_that_cannot_be_served_are_one_line(bert, fields, words):
    edit_json(bert / "tokenizer_config.json", **fields)
    assert words in one_line(bert)


def test_a_vocabulary_that_is_no_text_is_one_line(bert):
    (bert / "vocab.txt").write_bytes(b"[CLS]\n\xff\n")
    assert "vocab.txt is damaged: not UTF-8" in one_line(bert, InputOutputError)


@pytest.mark.parametrize("content", ["[", "3"])
def test_a_damaged_tokenizer_is_one_line(bert, content):
    (bert / "vocab.txt").unlink()
    (bert / "tokenizer.json").write_text(content)
    assert "tokenizer.json" in one_line(bert, InputOutputError)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]]}},
        {"model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(TOKENS)}}},
        {"model": 3},
        {"added_tokens": 3},
    ],
    ids=str,
)
def test_another_kind_of_tokenizer_is_one_line(bert, fields):
    (bert / "vocab.txt").unlink()
    tokenizer_json(bert, **fields)
    assert "is not a WordPiece tokenizer" in one_line(bert)


@pytest.mark.parametrize("added", [[3], [{"id": 1}], [{"id": "1", "content": "x"}]], ids=str)
def test_added_tokens_that_are_none_are_one_line(bert, added):
    (bert / "vocab.txt").unlink()
    tokenizer_json(bert, added_tokens=added)
    assert "tokenizer.json is damaged" in one_line(bert, InputOutputError)


def test_a_vocabulary_that_numbers_nothing_is_one_line(bert):
    (bert / "vocab.txt").unlink()
    tokenizer_json(bert, model={"type": "WordPiece", "vocab": {"a": "b"}})
    assert "a token has no number" in one_line(bert, InputOutputError)
