"""Ids and texts are those of openai-whisper, for every kind of vocabulary."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

from kit.openai_whisper import Pair, openai_tokenizer

_WRITING = st.one_of(
    st.text(),
    st.text(st.characters(exclude_categories=())),  # halves of surrogate pairs as well
    st.text(
        st.sampled_from(" \t\n\r\u00a0\u2003\u3000'\u2019sStTdDmMrRvVeElL.,-0\u0661五½_é\u0301")
    ),
    st.text(st.sampled_from("कि१한글あア漢字ไทยعَرَبִי👩‍👧🏽🇩🇪♪♭『")),
    st.sampled_from(["<|endoftext|>", "<|startoftranscript|>", "<|0.00|>", "<|en|>", "I'LL we'Ve"]),
)
_TEXT = st.lists(_WRITING, max_size=6).map("".join)


@pytest.mark.parametrize(
    "name",
    [
        *("eot", "sot", "translate", "transcribe", "sot_lm", "sot_prev", "no_speech"),
        *("no_timestamps", "timestamp_begin", "non_speech_tokens"),
    ],
)
def test_special_ids_are_equal(pair: Pair, name: str):
    assert getattr(pair.ours, name) == getattr(pair.theirs, name)


def test_control_tokens_are_those_that_openai_always_suppresses(pair: Pair):
    theirs = pair.theirs
    suppressed = {theirs.transcribe, theirs.translate, theirs.sot, theirs.sot_prev, theirs.sot_lm}
    assert set(pair.ours.control_tokens) == suppressed | {theirs.no_speech}


def test_blank_tokens_are_equal(pair: Pair):
    assert list(pair.ours.blank) == [*pair.theirs.encode(" "), pair.theirs.eot]


def test_languages_and_their_tokens_are_equal(pair: Pair):
    if not pair.ours.is_multilingual:
        assert pair.ours.languages == ("en",)
        return
    # openai-whisper's order is that of a set of strings.
    theirs = sorted(
        zip(pair.theirs.all_language_tokens, pair.theirs.all_language_codes, strict=True)
    )
    assert list(zip(pair.ours.language_tokens, pair.ours.languages, strict=True)) == theirs
    assert len(pair.ours.languages) == pair.num_languages


def test_names_aliases_and_codes_give_the_same_language(pair: Pair):
    for spelled, code in TO_LANGUAGE_CODE.items() | {(code, code) for code in LANGUAGES}:
        if code in pair.ours.languages:
            assert pair.ours.language_code(f" {spelled.upper()} ") == code


@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_start_sequences_are_equal_for_every_language(pair: Pair, task: str):
    for language in pair.ours.languages:
        theirs = openai_tokenizer(
            pair.ours.is_multilingual,
            num_languages=pair.num_languages,
            language=language,
            task=task,
        )
        with_timestamps = pair.ours.sot_sequence(language, task, timestamps=True)
        without = pair.ours.sot_sequence(language, task, timestamps=False)
        assert with_timestamps == theirs.sot_sequence
        assert without == theirs.sot_sequence_including_notimestamps


@given(text=_TEXT)
@example("\ud83d lone half")
@example("日本語\u3000テスト 123\uff11\uff12\uff13")
@settings(deadline=None)
def test_text_is_encoded_equally_and_never_to_a_special_token(pair: Pair, text: str):
    encoded = pair.ours.encode(text)
    assert encoded == pair.theirs.encode(text, disallowed_special=())
    assert all(token < pair.ours.eot for token in encoded)


@given(text=_TEXT.filter(str.isprintable))
@settings(deadline=None)
def test_encoded_text_comes_back(pair: Pair, text: str):
    assert pair.ours.decode(pair.ours.encode(text)) == text


@given(data=st.data())
@settings(deadline=None)
def test_ids_are_decoded_equally_even_where_they_split_characters(pair: Pair, data: st.DataObject):
    split_characters = _TEXT.map(lambda text: pair.ours.encode(text)[1::2])
    any_ids = st.lists(st.integers(0, pair.theirs.timestamp_begin + 1500))
    tokens = data.draw(split_characters | any_ids)
    assert pair.ours.decode(tokens) == pair.theirs.decode(tokens)
    assert pair.ours.decode_with_timestamps(tokens) == pair.theirs.decode_with_timestamps(tokens)


def test_every_single_id_is_decoded_equally(pair: Pair):
    for token in range(pair.theirs.encoding.n_vocab):
        spelled = pair.theirs.decode_with_timestamps([token])
        assert pair.ours.decode_with_timestamps([token]) == spelled
