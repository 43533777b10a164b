"""Which files make up a tokenizer, and the one-line errors for others."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream

from kit.errors import one_line
from kit.small_tokenizers import (
    bert_files,
    byte_level,
    spiece_files,
    spiece_model,
    text_files,
    user,
)
from kvcast.errors import InputMissingError, KvcastError
from kvcast.tokenizers.opening import open_text
from tokenizers import Tokenizer, decoders, models


def line(files: dict[str, bytes]) -> str:
    return one_line(KvcastError, open_text, files)


BYT5 = {"text.json": b'{"tokenizer": "byt5", "end_tokens": [1]}'}


@pytest.mark.parametrize("files", [bert_files(), BYT5, spiece_files(spiece_model())])
def test_without_a_template_chat_is_refused(files: dict[str, bytes]):
    with pytest.raises(KvcastError, match="no chat template: prompt it with plain text"):
        open_text(files).encode_chat(user("Hi"))


def with_decoder(decoder: object) -> dict[str, bytes]:
    description = json.loads(byte_level().to_str()) | {"decoder": decoder}
    return text_files(byte_level()) | {"tokenizer.json": json.dumps(description).encode()}


@pytest.mark.parametrize(
    "files", [{}, {"text.json": b"{}"}, {"tokenizer.json": byte_level().to_str().encode()}]
)
def test_missing_files_are_named(files: dict[str, bytes]):
    with pytest.raises(InputMissingError, match=r"text\.json"):
        open_text(files)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b"\xff", b"null", b'{"decoder": 1}', b"[" * 100_000]
)
def test_a_damaged_tokenizer_is_one_line(content: bytes):
    files = text_files(byte_level()) | {"tokenizer.json": content}
    assert line(files).startswith("tokenizer.json cannot be read: ")


def test_a_truncated_tokenizer_is_one_line():
    whole = byte_level().to_str().encode()
    for length in range(0, len(whole), len(whole) // 7):
        line(text_files(byte_level()) | {"tokenizer.json": whole[:length]})


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "Fuse"},
        {"type": "Strip", "content": "_", "start": 1, "stop": 0},
    ],
)
def test_a_decoder_of_another_kind_is_refused(decoder: object):
    assert line(with_decoder(decoder)).startswith("tokenizer.json cannot be read: it")


@given(tokens=st.lists(st.integers(0, 9), max_size=9))
def test_without_a_decoder_texts_are_those_of_the_library(tokens: list[int]):
    words = {"a": 0, "b": 1, "": 2, " c": 3, "<0x41>": 4, "▁é": 5, "<unk>": 6}
    library = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    library.add_special_tokens(["<s>"])
    library.add_tokens(["added"])
    files = {"tokenizer.json": library.to_str().encode(), "text.json": b'{"end_tokens": [7]}'}
    tokenizer = open_text(files)
    assert tokenizer.decode(tokens) == library.decode(tokens)
    stream, theirs = tokenizer.stream(), DecodeStream(skip_special_tokens=True)
    assert [stream.push(token) for token in tokens] == [
        theirs.step(library, token) or "" for token in tokens
    ]
    assert stream.finish() == ""


def test_a_metaspace_decoder_is_known():
    tokenizer = open_text(with_decoder(json.loads(decoders.Metaspace().__getstate__())))
    assert tokenizer.decode(tokenizer.encode("hi")) == "hi"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "end_tokens"),
        (b"{}", "end_tokens"),
        (b'{"end_tokens": []}', "end_tokens"),
        (b'{"end_tokens": 2}', "end_tokens"),
        (b'{"end_tokens": ["</s>"]}', "end_tokens"),
        (b'{"end_tokens": [true]}', "end_tokens"),
        (b'{"end_tokens": [-1]}', "end_tokens"),
        (b'{"end_tokens": [99999999999]}', "end_tokens"),
        (b'{"end_tokens": [2, 100000]}', "end token 100000 is not in tokenizer.json"),
        (b'{"end_tokens": [2], "bos_token": 1}', "bos_token is not a text"),
    ],
)
def test_damaged_settings_are_one_line(content: bytes, told: str):
    assert told in line(text_files(byte_level()) | {"text.json": content})


def test_a_model_may_have_no_beginning_of_text():
    settings = b'{"end_tokens": [2], "bos_token": null}'
    template = b"{{ bos_token }}{{ messages[0].content }}"
    files = {"text.json": settings, "chat_template.jinja": template}
    tokenizer = open_text(text_files(byte_level()) | files)
    chat = tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
    assert chat == tokenizer.encode("Hi")[1:]


def test_a_template_that_is_no_text_is_one_line():
    files = text_files(byte_level()) | {"chat_template.jinja": b"\xff"}
    assert line(files).startswith("chat_template.jinja is damaged")


@pytest.mark.parametrize("name", ["tekken.json", "tokenizer.model", "tokenizer.model.v3"])
def test_without_mistral_common_it_says_what_to_install(name, monkeypatch: pytest.MonkeyPatch):
    for module in ("mistral_common", "mistral_common.tokens.tokenizers.mistral"):
        monkeypatch.setitem(sys.modules, module, None)
    assert line({name: b"{}"}) == (
        f"{name} is read by mistral-common: pip install 'kvcast[mistral]'"
    )
