"""A Whisper's tokenizer is the same from every layout; files beside the weights are checked."""

import json
from itertools import product

import pytest

from checkpoints.tiny_whisper import TIED, ct2_bytes, ct2_folder, ct2_variables
from kit.openai_whisper import openai_tokenizer, openai_tokenizer_json
from kvcast.checkpoints.source import fingerprint, locate, open_checkpoint
from kvcast.checkpoints.speech import whisper_tokenizer
from kvcast.whisper.tokenizer import WhisperTokenizer
from tokenizers import Tokenizer

TEXTS = (
    " And Mr. John Dashwood, naïvely: 東京! \n\t'll",
    " Ünïcödé 👩‍👧🏽 <|endoftext|> 1234567 ♪♪♪",
    "",
)
KINDS = {"English": (False, 99), "multilingual": (True, 99), "since large-v3": (True, 100)}


def parts(complete: bytes, folder) -> None:
    tokenizer = json.loads(complete)
    added = {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    end = {"<|endoftext|>": added.pop("<|endoftext|>")}
    merges = "\n".join(" ".join(pair) for pair in tokenizer["model"]["merges"])
    (folder / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"] | end))
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (folder / "added_tokens.json").write_text(json.dumps(added))


def every_token(complete: bytes) -> list[str]:
    tokenizer = json.loads(complete)
    ids = dict(tokenizer["model"]["vocab"])
    ids |= {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    return sorted(ids, key=ids.__getitem__)


def listed(complete: bytes, folder) -> None:
    (folder / "vocabulary.json").write_text(json.dumps(every_token(complete)))


def lines(complete: bytes, folder) -> None:
    (folder / "vocabulary.txt").write_text("".join(f"{t}\n" for t in every_token(complete)))


# Since large-v3 there is one more language, which no layout writes in another way.
@pytest.mark.parametrize(
    ("kind", "write"),
    [
        *product(("English", "multilingual"), (parts, listed)),
        ("multilingual", lines),
        ("since large-v3", parts),
        *(pytest.param("since large-v3", way, marks=pytest.mark.slow) for way in (listed, lines)),
        pytest.param("English", lines, marks=pytest.mark.slow),
    ],
)
def test_every_layout_makes_openais_tokenizer_which_the_tokenizers_library_reads(
    tmp_path, write, kind
):
    multilingual, languages = KINDS[kind]
    write(openai_tokenizer_json(multilingual, languages), tmp_path)
    size = 51764 + languages + 2 * multilingual + (not multilingual)
    written = whisper_tokenizer.tokenizer_json(tmp_path)
    tokenizer = WhisperTokenizer(written, size)
    theirs = openai_tokenizer(multilingual, num_languages=languages)
    assert tokenizer.vocab_size == theirs.encoding.n_vocab
    for name in ("eot", "sot", "no_speech", "no_timestamps", "timestamp_begin"):
        assert getattr(tokenizer, name) == getattr(theirs, name)
    for text in TEXTS:
        ids = theirs.encoding.encode(text, disallowed_special=())
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.unused_tokens == ()
    if multilingual:
        assert tokenizer.language_tokens == tuple(sorted(theirs.all_language_tokens))
    library = Tokenizer.from_str(written.decode())
    ids = theirs.encode(TEXTS[0])
    assert library.encode(TEXTS[0]).ids == ids
    assert library.decode(ids) == TEXTS[0]
    assert library.encode("<|startoftranscript|>").ids == [theirs.sot]


def test_the_list_of_the_packaged_model_implies_its_merges(tmp_path):
    folder = locate("demo-base")
    (tmp_path / "vocabulary.json").write_bytes((folder / "vocabulary.json").read_bytes())
    model = json.loads(whisper_tokenizer.tokenizer_json(tmp_path))["model"]
    expected = json.loads((folder / "tokenizer.json").read_bytes())["model"]
    assert model["vocab"] == expected["vocab"]
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in expected["merges"]]
    assert model["merges"] == merges


def test_settings_tell_added_text_from_added_special_tokens(tmp_path):
    parts(openai_tokenizer_json(True), tmp_path)
    decoder = {
        "51865": {"content": "<|speaker|>", "special": True},
        "51866": {"content": " kvcast", "special": False},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    tokenizer = WhisperTokenizer(whisper_tokenizer.tokenizer_json(tmp_path), 51872)
    assert [tokenizer.is_text(token) for token in range(51864, 51868)] == [0, 0, 1, 0]
    assert tokenizer.unused_tokens == (51865, *range(51867, 51872))
    assert tokenizer.decode([*tokenizer.encode(" use"), 51866]) == " use kvcast"


def test_a_whole_file_comes_first_and_stays_as_it_is(tmp_path):
    listed(openai_tokenizer_json(True), tmp_path)
    (tmp_path / "tokenizer.json").write_text("{ }")
    assert whisper_tokenizer.tokenizer_json(tmp_path) == b"{ }"


@pytest.fixture
def folder(tmp_path):
    return ct2_folder(tmp_path / "ct2", ct2_bytes(ct2_variables(mels=2), TIED))


def test_a_preprocessor_that_agrees_or_says_nothing_is_accepted(folder):
    for fields in ({}, {"feature_size": 2, "chunk_length": 30, "padding_side": "right"}):
        (folder / "preprocessor_config.json").write_text(json.dumps(fields))
        assert open_checkpoint(folder).dimensions.n_mels == 2


def test_the_fingerprint_follows_the_tokenizers_parts(folder):
    (folder / "tokenizer.json").unlink()
    parts(openai_tokenizer_json(True), folder)
    seen = {fingerprint(folder)}
    for name in ("vocab.json", "merges.txt", "added_tokens.json"):
        path = folder / name
        path.write_bytes(path.read_bytes() + b" ")
        seen.add(fingerprint(folder))
    assert len(seen) == 4
