"""ByT5's bytes, compared with transformers' tokenizer."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import ByT5Tokenizer

from kit.small_tokenizers import TEXT, streamed
from kvcast.errors import KvcastError
from kvcast.tokenizers.opening import open_text

_FILES = {"text.json": b'{"tokenizer": "byt5", "end_tokens": [1]}'}


@pytest.fixture(scope="module")
def both():
    return ByT5Tokenizer(), open_text(_FILES)


@given(text=st.text() | TEXT)
@example(text="")
@example(text="The <extra_id_0> walks<extra_id_124> in <extra_id_125><extra_id_07>")
def test_sources_are_those_of_transformers(both, text: str):
    theirs, ours = both
    plain = text.replace("</s>", "").replace("<pad>", "").replace("<unk>", "")
    assert ours.encode(plain) == theirs(plain).input_ids


@given(text=st.text() | TEXT)
def test_what_a_user_writes_comes_back_and_never_ends_a_text(both, text: str):
    _, ours = both
    tokens = ours.encode(text)
    assert tokens[-1] == 1
    assert min(tokens[:-1], default=3) >= 3
    assert ours.decode([0, *tokens]) == streamed(ours, tokens) == text


@given(tokens=st.lists(st.integers(0, 383), max_size=40))
@example(tokens=[3 + 0xF0, 3 + 0x9F, 1])
def test_any_tokens_read_as_in_transformers_but_for_bytes_that_make_no_character(both, tokens):
    theirs, ours = both
    text = ours.decode(tokens)
    assert text == streamed(ours, tokens)
    assert text.replace("\ufffd", "") == theirs.decode(tokens, skip_special_tokens=True)


def test_a_character_comes_once_it_is_whole(both):
    _, ours = both
    stream = ours.stream()
    assert [stream.push(token) for token in ours.encode("🙂é")] == [*[""] * 3, "🙂", "", "é", ""]
    assert stream.push(3 + 0xE6) == ""
    assert stream.finish() == "\ufffd"


def test_sizes_are_those_of_transformers(both):
    theirs, ours = both
    assert ours.vocab_size == len(theirs) == 384
    assert ours.decode([384, 100_000]) == ""
    assert ours.end_tokens == (1,)


def test_half_a_surrogate_pair_is_no_character(both):
    _, ours = both
    assert ours.encode("a\ud800b") == ours.encode("a\ufffdb")


def test_an_end_token_of_another_model_is_one_line():
    with pytest.raises(KvcastError, match="end token 384 is not one of ByT5's 384 tokens"):
        open_text({"text.json": b'{"tokenizer": "byt5", "end_tokens": [384]}'})
