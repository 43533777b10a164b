"""spiece.model and T5's tokenizer.json give the tokens of sentencepiece and of transformers."""

import json
import random
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import T5Tokenizer

from kit.errors import one_line
from kit.small_tokenizers import SENTENCES, TEXT, spiece_files, spiece_model, streamed
from kvcast.errors import KvcastError
from kvcast.tokenizers.base import TextTokenizer
from kvcast.tokenizers.opening import open_text
from kvcast.tokenizers.sentencepiece_model import to_tokenizer_json

_SETTINGS = b'{"end_tokens": [1]}'
_OWN_SENTINELS = ",".join(f"▁<extra_id_{number}>" for number in range(2, -1, -1))
_KINDS = {
    "t5": {},
    "mt5": {"byte_fallback": True, "vocab_size": 460, "user_defined_symbols": _OWN_SENTINELS},
    "no rules": {"normalization_rule_name": "identity"},
    "every space": {"remove_extra_whitespaces": False},
    "no prefix": {"add_dummy_prefix": False},
    "phrases": {"split_by_whitespace": False},
}


@pytest.fixture(scope="module", params=_KINDS)
def both(request: pytest.FixtureRequest):
    model = spiece_model(**_KINDS[request.param])
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    return theirs, open_text(spiece_files(model))


@given(text=TEXT)
@example(text=" \n ")
@example(text="  two   spaces  ")
@example(text="▁ a ▁")
@example(text="x</s><pad> <unk></s>")
@example(text="\uff1c/s\uff1e ½ ﬁ Å")
@example(text="<0x41>")
def test_sources_are_sentencepiece_s_tokens_and_an_end(both, text: str):
    theirs, ours = both
    # A mark that combines with a replaced character is lost in tokenizers, as in transformers.
    text = text.replace("\u0301", "")
    assert ours.encode(text) == [*theirs.encode(text), theirs.eos_id()]


@given(text=TEXT)
def test_tokens_read_as_in_sentencepiece(both, text: str):
    theirs, ours = both
    tokens = [token for token in theirs.encode(text) if token != theirs.unk_id()]
    # Without what was unknown a text may begin with two spaces: transformers takes one away.
    assert ours.decode([*tokens, 1]).lstrip(" ") == theirs.decode(tokens).lstrip(" ")
    assert streamed(ours, tokens) == ours.decode(tokens)


@given(tokens=st.lists(st.integers(0, 480), max_size=30))
def test_any_tokens_stream_to_what_they_decode_to(both, tokens: list[int]):
    _, ours = both
    assert streamed(ours, tokens) == ours.decode(tokens)


@pytest.fixture(scope="module", params=["spiece.model", "tokenizer.json", "old tokenizer.json"])
def t5(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("t5")
    (folder / "spiece.model").write_bytes(spiece_model())
    theirs = T5Tokenizer.from_pretrained(folder)
    theirs.save_pretrained(folder)
    saved = json.loads((folder / "tokenizer.json").read_text())
    if request.param == "spiece.model":
        return theirs, open_text(spiece_files(spiece_model()))
    if request.param == "old tokenizer.json":
        for part in (saved["decoder"], *saved["pre_tokenizer"]["pretokenizers"]):
            if part["type"] == "Metaspace":
                del part["prepend_scheme"], part["split"]
                part |= {"add_prefix_space": True, "str_rep": "▁"}
    files = {"tokenizer.json": json.dumps(saved).encode(), "text.json": _SETTINGS}
    return theirs, open_text(files)


_WHOLE = "The <extra_id_0> walks in <extra_id_99>  park<extra_id_1>."


@pytest.mark.parametrize("text", [*SENTENCES, "", "  a  b ", "hé ½ ﬁ 🙂🙂 x", "a\n\tb", _WHOLE])
def test_t5_sources_and_targets_are_those_of_transformers(t5, text: str):
    theirs, ours = t5
    tokens = theirs(text).input_ids
    assert ours.encode(text) == tokens
    assert ours.decode([0, *tokens]) == theirs.decode(tokens, skip_special_tokens=True)
    assert streamed(ours, [0, *tokens]) == ours.decode(tokens)


def test_the_first_sentinel_is_the_last_token(t5):
    theirs, ours = t5
    assert ours.vocab_size == len(theirs)
    assert ours.encode("<extra_id_0>") == [len(theirs) - 1, 1]
    assert ours.encode("<extra_id_99>") == [len(theirs) - 100, 1]
    assert ours.decode([len(theirs) - 1]) == ""


@given(text=TEXT)
@example(text="a </s> b<pad>")
@example(text="\uff1c/s\uff1e")
def test_what_a_user_writes_never_ends_or_pads(t5, text: str):
    _, ours = t5
    tokens = ours.encode(text)
    assert tokens[-1] == 1
    assert not {0, 1} & set(tokens[:-1])


def test_a_control_token_spelled_out_stays_in_the_text():
    ours = open_text(spiece_files(spiece_model(byte_fallback=True, vocab_size=460)))
    assert ours.decode(ours.encode("a </s> <pad>b")) == "a </s> <pad>b"


def test_a_vocabulary_with_sentinels_gets_no_others():
    theirs = sentencepiece.SentencePieceProcessor(model_proto=spiece_model(**_KINDS["mt5"]))
    ours = open_text(spiece_files(spiece_model(**_KINDS["mt5"])))
    assert ours.vocab_size == theirs.get_piece_size()
    assert theirs.piece_to_id("▁<extra_id_1>") in ours.encode("a <extra_id_1> b")


@pytest.mark.parametrize("extra_ids", [0, 7])
def test_text_json_may_say_how_many_sentinels_follow(extra_ids: int):
    theirs = sentencepiece.SentencePieceProcessor(model_proto=spiece_model())
    ours = open_text(spiece_files(spiece_model(), extra_ids=extra_ids))
    assert ours.vocab_size == theirs.get_piece_size() + extra_ids


def _json_files(**parts: object) -> dict[str, bytes]:
    whole = json.loads(to_tokenizer_json(spiece_model(), None, "spiece.model"))
    return {"tokenizer.json": json.dumps(whole | parts).encode(), "text.json": _SETTINGS}


def test_where_conversations_are_written_sentinels_are_control_tokens_too():
    plain, chat = _json_files(), _json_files() | {"chat_template.jinja": b"<extra_id_0>"}
    assert open_text(plain).encode("a<extra_id_0>")[-2] == open_text(plain).vocab_size - 1
    assert open_text(plain).vocab_size - 1 not in open_text(chat).encode("a<extra_id_0>")


def test_unused_pieces_are_never_chosen():
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(spiece_model())
    used = open_text(spiece_files(spiece_model())).encode("Some years ago")
    chosen = max(used[:-1], key=lambda token: len(proto.pieces[token].piece))
    proto.pieces[chosen].type = proto.SentencePiece.UNUSED
    model = proto.SerializeToString()
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = open_text(spiece_files(model))
    assert chosen not in ours.encode("Some years ago")
    assert ours.encode("Some years ago") == [*theirs.encode("Some years ago"), 1]


def _line(model: bytes) -> str:
    return one_line(KvcastError, open_text, spiece_files(model))


@pytest.mark.parametrize("kind", ["bpe", "char", "word"])
def test_another_kind_of_model_is_one_line(kind: str):
    assert _line(spiece_model(model_type=kind)) == (
        "spiece.model cannot be read: it is not a Unigram model, the only kind that is supported; "
        "fetch it again"
    )


def test_another_way_to_mark_spaces_is_one_line():
    assert "marks spaces" in _line(spiece_model(treat_whitespace_as_suffix=True))


def test_a_truncated_model_is_one_line():
    whole = spiece_model(normalization_rule_name="identity")
    for length in range(0, len(whole), 97):
        assert _line(whole[:length]).startswith("spiece.model cannot be read: ")


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f", b"{}", b"\x0b"]
)
def test_what_is_no_model_is_one_line(content: bytes):
    assert _line(content).startswith("spiece.model cannot be read: ")


def _exercise(tokenizer: TextTokenizer) -> None:
    text = "".join(map(chr, range(1, 0x3000))) + "東京 한글 🙂 </s><pad>"
    tokens = tokenizer.encode(text)
    assert streamed(tokenizer, tokens) == tokenizer.decode(tokens)


@pytest.mark.parametrize("options", [{}, {"normalization_rule_name": "identity"}])
def test_damaged_models_are_refused_or_work(options: dict[str, str]):
    whole = spiece_model(**options)
    chance = random.Random(7)
    refused = []
    for _ in range(60):
        model = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            # Pieces and settings lie at the ends; rules, which are long, between them.
            where = chance.choice([chance.randrange(len(model)), chance.randrange(400), -1, -9])
            model[where] = chance.randrange(256)
        try:
            tokenizer = open_text(spiece_files(bytes(model)))
        except KvcastError as error:
            refused.append(str(error))
        else:
            _exercise(tokenizer)
    assert 0 < len(refused) < 60
    assert not any("\n" in line for line in refused)


@pytest.mark.parametrize("kept", [0, 8, 4000])
def test_damaged_rules_in_tokenizer_json_are_one_line(kept: int):
    whole = json.loads(_json_files()["tokenizer.json"])["normalizer"]
    rules = whole["normalizers"][0]
    rules["precompiled_charsmap"] = rules["precompiled_charsmap"][:kept]
    with pytest.raises(KvcastError, match=r"^tokenizer\.json cannot be read: .*fetch it again$"):
        open_text(_json_files(normalizer=whole))


def test_a_unigram_model_without_an_unknown_token_is_one_line():
    model = json.loads(_json_files()["tokenizer.json"])["model"]
    with pytest.raises(KvcastError, match="its model has no unknown token"):
        open_text(_json_files(model=model | {"unk_id": None}))


def test_end_tokens_of_another_model_are_one_line():
    files = spiece_files(spiece_model(), end_tokens=[100_000])
    with pytest.raises(KvcastError, match=r"end token 100000 is not in spiece\.model"):
        open_text(files)
