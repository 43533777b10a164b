"""The text files of BERT and its relatives: which are read, and errors about them."""

import json

import pytest

from checkpoints.tiny_whisper import edit_json
from kit.random_unilms import TOKENS, random_unilm, save_unilm, tokenizer_json
from kvcast.checkpoints.source import open_checkpoint

ABOUT = {"end_tokens": [3], "tokenizer": "bert", "lowercase": True, "words": False}
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


def test_the_vocabulary_goes_along(bert):
    (bert / "tokenizer.json").write_bytes(tokenizer_json())
    assert text_of(bert) == (ABOUT, {"vocab.txt": VOCABULARY})
    (bert / "tokenizer_config.json").unlink()
    assert text_of(bert) == (ABOUT, {"vocab.txt": VOCABULARY})


def test_generation_config_recommends_options_here_too(bert):
    (bert / "generation_config.json").write_text('{"repetition_penalty": 1.2}')
    assert text_of(bert)[0] == {**ABOUT, "generation": {"repetition_penalty": 1.2}}


def test_without_a_vocabulary_the_whole_tokenizer_does(bert):
    (bert / "vocab.txt").unlink()
    content = tokenizer_json()
    (bert / "tokenizer.json").write_bytes(content)
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
    content = tokenizer_json(WORDS)
    (roformer / "tokenizer.json").write_bytes(content)
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
