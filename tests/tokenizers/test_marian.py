"""Marian's pieces and numbers equal those of transformers' MarianTokenizer."""

import json
import warnings

import pytest
from hypothesis import given
from sentencepiece import SentencePieceProcessor
from transformers import M2M100Tokenizer as Many
from transformers import MarianTokenizer as Theirs

from kit.errors import one_line
from kit.small_tokenizers import SENTENCES, TEXT, spiece_model, streamed
from kvcast.errors import KvcastError
from kvcast.tokenizers.opening import open_text
from kvcast.tokenizers.sentencepiece_model import to_tokenizer_json

ROLES = {"pad_id": -1, "eos_id": 0, "unk_id": 1, "bos_id": -1}
LANGUAGES = [">>fra<<", ">>deu<<"]


def pieces(model):
    vocabulary = json.loads(to_tokenizer_json(model, 0, "spm"))["model"]["vocab"]
    return [piece for piece, _ in vocabulary]


@pytest.fixture(scope="module", params=["shared", "apart"])
def both(request, tmp_path_factory):
    source, target = (spiece_model(vocab_size=size, **ROLES) for size in (180, 230))
    special = ["</s>", "<unk>"]
    joint = [*special, *sorted({*pieces(source)[2:-9], *pieces(target)[2:]}), *LANGUAGES, "<pad>"]
    lists = {"vocab.json": joint}
    if request.param == "apart":
        lists["target_vocab.json"] = [*special, *reversed(pieces(target)[2:]), "<pad>"]
    files = {
        "source.spm": source,
        "target.spm": target,
        **{
            name: json.dumps({piece: i for i, piece in enumerate(table)}).encode()
            for name, table in lists.items()
        },
    }
    folder = tmp_path_factory.mktemp("marian")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with warnings.catch_warnings():  # it recommends a library that it does not call
        warnings.simplefilter("ignore")
        theirs = Theirs(
            *(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")),
            target_vocab_file=str(folder / "target_vocab.json"),
            separate_vocabs=request.param == "apart",
        )
    settings = {"tokenizer": "marian", "end_tokens": [0]}
    ours = open_text({**files, "text.json": json.dumps(settings).encode()})
    return theirs, ours


@given(text=TEXT)
def test_sources_are_the_same_tokens(both, text):
    theirs, ours = both
    if any(token in text for token in ("</s>", "<unk>", "<pad>")):
        return  # there they are control tokens, here text
    text = text.replace("\u0301", "")  # as in the test of SentencePiece's files
    assert ours.encode(text) == theirs(text).input_ids


@pytest.mark.parametrize("text", [">>fra<< The house", ">>deu<<", ">>xyz<< The house"])
def test_a_language_at_the_beginning_is_a_token(both, text):
    theirs, ours = both
    known = text[:7] in LANGUAGES
    assert (ours.encode(text) == theirs(text).input_ids) == known
    assert (ours.encode(text)[0] in theirs.convert_tokens_to_ids(LANGUAGES)) == known


def test_targets_are_the_same_texts(both):
    theirs, ours = both
    for sentence in SENTENCES:
        tokens = theirs(text_target=sentence).input_ids
        expected = theirs.decode(tokens, skip_special_tokens=True)
        assert ours.decode(tokens) == streamed(ours, tokens) == expected


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    roles = {"pad_id": -1, "bos_id": 0, "eos_id": 1, "unk_id": 2}
    model = spiece_model(vocab_size=160, model_type="bpe", **roles)
    folder = tmp_path_factory.mktemp("m2m")
    (folder / "spm").write_bytes(model)
    split = SentencePieceProcessor(model_proto=model)
    own = [split.id_to_piece(i) for i in range(3, split.get_piece_size())]
    table = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *own])}
    (folder / "vocab").write_text(json.dumps(table))
    theirs = Many(str(folder / "vocab"), str(folder / "spm"), src_lang="en")
    settings = {"tokenizer": "m2m100", "end_tokens": [2], "eos_token": "</s>"}
    files = {"sentencepiece.bpe.model": model, "vocab.json": json.dumps(table).encode()}
    german = {**settings, "source_language": "de"}
    each = ({**files, "text.json": json.dumps(text).encode()} for text in (settings, german))
    return theirs, *map(open_text, each)


@given(text=TEXT)
def test_sources_of_many_languages_are_the_same_tokens(many, text):
    theirs, ours, german = many
    if any(token in text for token in ("</s>", "<unk>", "<pad>", "<s>")):
        return
    text = text.replace("\u0301", "")
    assert ours.encode(text) == theirs(text).input_ids
    theirs.src_lang = "de"
    assert german.encode(text) == theirs(text).input_ids
    assert ours.languages.before(ours.encode(text), "de", "fr") == theirs(text).input_ids
    theirs.src_lang = "en"
    assert {f"__{code}__": i for code, i in ours.languages.tokens.items()} == (
        theirs.lang_token_to_id
    )


def test_control_tokens_in_a_source_are_text(both):
    _, ours = both
    end = ours.encode("")
    assert end == [0]
    assert ours.encode("a </s> b").count(0) == 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("vocab.json", b'{"a": 1}', "has no </s>"),
        ("vocab.json", b"[1]", "does not number pieces"),
        ("vocab.json", b'{"a": -1}', "does not number pieces"),
        ("vocab.json", b"{", "not valid JSON"),
        ("source.spm", b"abc", "cannot be read"),
        ("source.spm", None, "no source.spm"),
        ("text.json", b'{"tokenizer": "marian", "end_tokens": [9999]}', "two models"),
    ],
)
def test_damaged_files_are_one_line(name, content, said):
    table = {"</s>": 0, "<unk>": 1, "a": 2}
    files = {
        "source.spm": spiece_model(vocab_size=180, **ROLES),
        "vocab.json": json.dumps(table).encode(),
        "text.json": b'{"tokenizer": "marian", "end_tokens": [0]}',
    }
    files = {k: v for k, v in {**files, name: content}.items() if v is not None}
    assert said in one_line(KvcastError, open_text, files)
