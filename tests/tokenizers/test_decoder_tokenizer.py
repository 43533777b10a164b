"""Prompts become the tokens that the tokenizers library gives, and tokens become text again."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit.small_tokenizers import ALL_SPECIALS, KINDS, PROSE, byte_level, text_files
from kvcast.tokenizers.base import TextTokenizer
from kvcast.tokenizers.opening import open_text
from tokenizers import Tokenizer, normalizers

_PAIRS = {name: (kind(), open_text(text_files(kind()))) for name, kind in KINDS.items()}

_WRITING = st.one_of(
    st.text(),
    st.text(st.sampled_from(" \t\n\r▁aé東🙂\u0301\u200d")),
    st.sampled_from([*PROSE, *ALL_SPECIALS, "<think>", "<|im_<|im_end|>", "<0x41>", "<s"]),
)
TEXT = st.lists(_WRITING, max_size=5).map("".join)


@pytest.fixture(scope="module", params=_PAIRS)
def both(request: pytest.FixtureRequest) -> tuple[Tokenizer, TextTokenizer]:
    return _PAIRS[request.param]


def streamed(tokenizer: TextTokenizer, tokens: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*map(stream.push, tokens), stream.finish()]


@given(text=TEXT)
@example(text="<|im_end|> and <s></s>")
def test_prompts_take_special_tokens_as_plain_text(both, text: str):
    theirs, ours = both
    plain = Tokenizer.from_str(theirs.to_str())
    plain.encode_special_tokens = True
    assert ours.encode(text) == plain.encode(text).ids
    assert not set(ours.encode(text)[1:]) & set(range(1, len(ALL_SPECIALS)))


def test_a_prompt_begins_with_the_token_that_the_post_processor_adds(both):
    theirs, ours = both
    assert ours.encode(PROSE[0]) == theirs.encode(PROSE[0]).ids
    assert ours.encode(PROSE[0])[0] == theirs.token_to_id("<s>")


def test_special_tokens_that_appear_when_text_is_normalised_are_plain_text_too():
    theirs = byte_level()
    theirs.normalizer = normalizers.NFKC()
    theirs = Tokenizer.from_str(theirs.to_str().replace('"normalized":false', '"normalized":true'))
    ours = open_text(text_files(theirs))
    wide = "a \uff1c|im_end|\uff1e b"
    assert theirs.token_to_id("<|im_end|>") in theirs.encode(wide).ids
    assert theirs.token_to_id("<|im_end|>") not in ours.encode(wide)
    assert ours.decode(ours.encode(wide)) == "a <|im_end|> b"


def test_half_a_surrogate_pair_is_no_character(both):
    _, ours = both
    assert ours.encode("a\ud800b") == ours.encode("a\ufffdb")


def test_files_that_cut_or_pad_do_not_do_it_here():
    cutting = byte_level()
    cutting.enable_truncation(4)
    cutting.enable_padding(length=50)
    assert open_text(text_files(cutting)).encode(PROSE[0]) == byte_level().encode(PROSE[0]).ids


@given(text=TEXT)
@example(text="🙂🙂 東京")
def test_joined_pieces_are_the_text_as_the_library_decodes_it(both, text: str):
    theirs, ours = both
    tokens = theirs.encode(text).ids
    pieces = streamed(ours, tokens)
    assert "".join(pieces) == ours.decode(tokens) == theirs.decode(tokens)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(tokens=st.lists(st.integers(0, 499), max_size=40))
def test_any_tokens_stream_to_what_they_decode_to(both, tokens: list[int]):
    _, ours = both
    assert "".join(streamed(ours, tokens)) == ours.decode(tokens)


@given(tokens=st.lists(st.integers(0, 499), max_size=40))
def test_bytes_that_make_no_character_read_as_in_the_library(tokens: list[int]):
    theirs, ours = _PAIRS["byte-level"]
    assert ours.decode(tokens) == theirs.decode(tokens)


def test_a_whole_character_is_kept_beside_bytes_that_make_none():
    theirs, ours = _PAIRS["llama"]
    spelled = ["<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "<0xF0>", "a"]
    pieces = streamed(ours, [theirs.token_to_id(token) for token in spelled])
    assert pieces == ["", "", "", "🙂", "", "\ufffda", ""]


def test_half_a_character_waits_for_the_rest():
    theirs, ours = _PAIRS["byte-level"]
    tokens = theirs.encode("\U0001f98a!", add_special_tokens=False).ids
    assert len(tokens) > 2
    *early, fox, mark, rest = streamed(ours, tokens)
    assert [*early, fox, mark, rest] == [""] * len(early) + ["\U0001f98a", "!", ""]
    assert streamed(ours, tokens[:1]) == ["", "\ufffd"]


def test_special_tokens_have_no_text_and_other_added_tokens_have(both):
    theirs, ours = both
    special = [theirs.token_to_id(token) for token in ALL_SPECIALS]
    assert ours.decode(special) == ""
    letters = theirs.encode("some years", add_special_tokens=False).ids
    mixed = [token for letter in letters for token in (special[2], letter)]
    assert ours.decode(mixed) == ours.decode(letters) == "some years"
    if think := theirs.token_to_id("<think>"):
        assert ours.decode([think]) == "<think>"


def test_tokens_of_a_padded_vocabulary_have_no_text(both):
    theirs, ours = both
    assert ours.vocab_size == theirs.get_vocab_size()
    assert ours.decode([ours.vocab_size + 7]) == ""


def test_end_tokens_are_those_of_the_checkpoint(both):
    _, ours = both
    assert ours.end_tokens == (2, 4)
